"""What must not happen while a crafted file is read, and who notices.

An audit hook of the interpreter watches for unpickled classes, programs started,
libraries loaded, connections, and writes outside the directory in hand.
"""

import contextlib
import os
import sys

FORBIDDEN_EVENTS = {
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "ctypes.dlopen",
}
# Events that change the disk, and which of their arguments are the paths changed.
CHANGING_EVENTS = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
}


class Watch:
    """Collects what happens outside `home` while it is switched on."""

    def __init__(self):
        self.home = None
        self.seen = []

    def hook(self, event, arguments):
        if self.home is None:
            return
        if event in FORBIDDEN_EVENTS:
            self.seen.append((event, str(arguments)[:200]))
        elif event in CHANGING_EVENTS:
            for position in CHANGING_EVENTS[event]:
                self.check(event, arguments[position])
        elif event == "open":
            path, mode, flags = arguments
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
                self.check(event, path)

    def check(self, event, path):
        if isinstance(path, (str, bytes, os.PathLike)):
            folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
            path = os.path.join(os.path.realpath(folder), name)
            if event == "open":  # the others act on a link and do not follow it
                path = os.path.realpath(path)
            if not path.startswith((self.home, *CACHES)):
                self.seen.append((event, path))


# Compiled programs are kept there, whatever is read.
CACHES = tuple(
    os.path.realpath(place)
    for place in (os.environ.get("JAX_COMPILATION_CACHE_DIR"), "/dev/null")
    if place
)
WATCH = Watch()
sys.addaudithook(WATCH.hook)  # a hook cannot be removed, so there is only one


@contextlib.contextmanager
def nothing_happens_outside(home):
    """Also when what is done inside raises."""
    WATCH.home, WATCH.seen = os.path.realpath(home), []
    try:
        yield
    finally:
        WATCH.home = None
        assert WATCH.seen == []
