"""The ServerApp: one run is one command, with files in the server's workdir.

What it says is in `server.log` there, whatever becomes of Flower's stream.
"""

import contextlib
import logging
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

    workdir = Path(str(context.run_config["workdir"])).expanduser()
    workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        open(workdir / LOG, "a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stdout(file),
    ):
        # Only ours: Flower's transport has a line for every request.
        logger = logging.getLogger("fuprune")
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler(file))
        print(f"{TOLD}{context.run_id}")
        try:
            run(grid, read_settings(context.run_config))
            print(FINISHED)
        except (FupruneError, OSError) as error:
            # The app has a key of its own for what a simulation's config calls
            # otherwise.
            text = str(error).replace("train.min_participants", "min-clients")
            line = " ".join(text.split())
            print(f"{FAILED}{line}")
            # Raised, so that Flower marks the run as failed and gives this as the
            # reason; an exit would take the process away before its log has been sent.
            raise FupruneError(line) from None
