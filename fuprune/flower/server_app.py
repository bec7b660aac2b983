"""The ServerApp: one run is one command, with files in the server's workdir."""

import logging
import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fuprune.errors import FupruneError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains, forgets or evaluates, as the run's config says."""
    # Deferred, so that Flower can look at the app without waiting for JAX.
    from fuprune.flower.loop import run
    from fuprune.flower.settings import read_settings

    # Only ours: Flower's transport has a line for every request.
    logger = logging.getLogger("fuprune")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.propagate = False
    try:
        run(grid, read_settings(context.run_config))
    except FupruneError as error:
        line = " ".join(str(error).split())
        print(f"fuprune: error: {line}", flush=True)
        raise SystemExit(2) from None
