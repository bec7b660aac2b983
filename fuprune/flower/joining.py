"""The beginning of a run on the server: its workdir, and who is there.

Nothing here loads JAX, so that clients are asked before the server itself is ready.
"""

import logging
from pathlib import Path

from fuprune.errors import InputError
from fuprune.flower import ledger
from fuprune.flower.roster import Roster
from fuprune.flower.settings import Settings

COLOURS_FILE = "colours.json"
_LOGGER = logging.getLogger(__name__)


def server_folder(settings: Settings) -> Path:
    """The server's workdir, whole."""
    return Path(settings.workdir).expanduser().absolute()


def join_clients(grid, settings: Settings) -> Roster:
    """Waits for enough clients.

    Raises:
      TooFewClientsError: they did not come in time.
      InputError: the config asks for what a federation does not have.
    """
    config = settings.config
    _check_config(config)
    workdir = server_folder(settings)
    workdir.mkdir(parents=True, exist_ok=True)
    roster = Roster(
        grid,
        config.partition.clients,
        settings.timeouts,
        least=settings.min_clients,
        # Sums of colours are told once, before anything was ordered to be forgotten.
        normalise=config.data.normalise == "federated"
        and not (workdir / COLOURS_FILE).exists(),
    )
    roster.orders = ledger.read(workdir)
    present = roster.wait_for(settings.min_clients)
    _LOGGER.info("clients %s are there", ", ".join(map(str, present)))
    return roster


def _check_config(config) -> None:
    for key, value, allowed in (
        ("data.normalise", config.data.normalise, ("constants", "federated")),
        ("privacy.epsilon", config.privacy.epsilon, (0.0,)),
        ("privacy.min_count", config.privacy.min_count, (0,)),
        ("relabel.answer", config.relabel.answer, ("nearest",)),
    ):
        if value not in allowed:
            choices = " or ".join(map(str, allowed))
            raise InputError(
                f"{key} is {value!r}, which a federation of separate clients does not "
                f"have; allowed: {choices}."
            )
