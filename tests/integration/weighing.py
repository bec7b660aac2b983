"""The real command, which weighs itself after each checkpoint.

python -m tests.integration.weighing FILE FLAGS...: once garbage is collected, the bytes
that are in use on the C heap go into FILE, one line for each save. Resident memory
would also count what the allocator keeps for later, which comes and goes by megabytes.
With PYTHONMALLOC=malloc Python's own objects lie on that heap too.
"""

import ctypes
import functools
import gc
import sys

FIELDS = (
    "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
).split()


class HeapInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def bytes_in_use() -> int:
    """What this process has allocated and not freed, mapped blocks included."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = HeapInfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def weigh_after_saves(path: str) -> None:
    """Replaces `checkpoint.save` by one that writes a line when it is done."""
    from fuprune.run import checkpoint

    save = checkpoint.save

    @functools.wraps(save)
    def weighing(directory, step, *arguments, **options):
        save(directory, step, *arguments, **options)
        with open(path, "a") as file:
            file.write(f"{step} {bytes_in_use()}\n")

    checkpoint.save = weighing


if __name__ == "__main__":
    from fuprune import main

    weigh_after_saves(sys.argv.pop(1))
    main.run()
