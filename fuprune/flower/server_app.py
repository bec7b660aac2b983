"""The ServerApp: one run is one command, with files in the server's workdir.

What it says is in `server.log` there as well, whatever becomes of Flower's stream.
"""

import contextlib
import logging
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fuprune.errors import FupruneError

LOG = "server.log"  # in the workdir
TOLD = "fuprune: "  # begins the line with a run's number
FAILED = f"{TOLD}error: "  # begins the one that says why a run stopped
FINISHED = f"{TOLD}finished"  # the last one of a run that did not stop
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains, forgets or evaluates, as the run's config says."""
    # Deferred, so that Flower can look at the app without waiting.
    from fuprune.flower.server import run
    from fuprune.flower.settings import read_settings

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_logged(context))
            settings = read_settings(context.run_config)
            run(grid, settings)
            print(FINISHED)
        except (FupruneError, OSError) as error:
            # The app has a key of its own for what a simulation's config calls
            # otherwise.
            text = str(error).replace("train.min_participants", "min-clients")
            line = " ".join(text.split())
            print(f"{FAILED}{line}", flush=True)
            # Raised, so that Flower marks the run as failed and gives this as the
            # reason; an exit would take the process away before its log has been sent.
            raise FupruneError(line) from None


@contextlib.contextmanager
def _logged(context: Context):
    """Writes what is printed, and fuprune's own log lines, to the workdir's log."""
    workdir = Path(str(context.run_config["workdir"])).expanduser()
    workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(workdir / LOG, "a", encoding="utf-8", buffering=1) as file:
        told = _Both(file, sys.stdout)
        # Only ours: Flower's transport has a line for every request.
        logger, handler = logging.getLogger("fuprune"), logging.StreamHandler(told)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        logger.propagate = False
        try:
            with contextlib.redirect_stdout(told):
                print(f"{TOLD}{context.run_id}")
                yield
        finally:
            logger.removeHandler(handler)


class _Both:
    """A stream that writes to several."""

    def __init__(self, *streams):
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()

    def isatty(self) -> bool:
        return False
