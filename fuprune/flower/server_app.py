"""The ServerApp: one run is one command, with files in the server's workdir."""

import logging
import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fuprune.errors import FupruneError

TOLD = "fuprune: "  # begins each of the server's lines, among those of Flower's log
FAILED = f"{TOLD}error: "  # begins the one that says why a run stopped
FINISHED = "finished"  # the last one of a run that did not stop
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains, forgets or evaluates, as the run's config says."""
    # Deferred, so that Flower can look at the app without waiting.
    from fuprune.flower.roster import join_clients
    from fuprune.flower.server import run
    from fuprune.flower.settings import read_settings

    # Only ours: Flower's transport has a line for every request.
    logger = logging.getLogger("fuprune")
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(f"{TOLD}%(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        settings = read_settings(context.run_config)
        run(join_clients(grid, settings), settings)
        logger.info(FINISHED)
    except FupruneError as error:
        # The app has a key of its own for what a simulation's config calls otherwise.
        text = str(error).replace("train.min_participants", "min-clients")
        line = " ".join(text.split())
        print(f"{FAILED}{line}", flush=True)
        # Raised, so that Flower marks the run as failed and gives this as the reason;
        # an exit would take the process away before its log has been sent.
        raise FupruneError(line) from None
