"""Retrained models of another run, for an audit that need not retrain again.

What `audit.reference` names is checked before anything is trained: a mistake in it must
not cost the training.
"""

from pathlib import Path

from fuprune import config as configuration
from fuprune import ledger
from fuprune.config import ConfigError


def retrained_models(config) -> list[Path]:
    """The saved retrained models of the run that audit.reference names, if any.

    Raises:
      ConfigError: if it is no run, forgets other classes or has other data, or has no
        retrained model.
    """
    place = config.audit.reference
    if not place:
        return []
    record = Path(place) / "config.json"
    stored = ledger.read_json(record) if record.exists() else None
    if not isinstance(stored, dict) or "config" not in stored:
        raise ConfigError(
            f"audit.reference is {place!r}, which is no run's workdir; allowed: "
            "one with retrained models, or nothing."
        )
    other = configuration.from_json(stored["config"])
    for key, mine, theirs in (
        ("data", config.data.to_dict(), other.data.to_dict()),
        (
            "unlearn.classes",
            configuration.classes(config),
            configuration.classes(other),
        ),
    ):
        if mine != theirs:
            raise ConfigError(
                f"audit.reference is {place!r}, whose {key} is {theirs}, but must be "
                f"{mine}, as here."
            )
    folders = sorted((Path(place) / "models").glob("retrain*"))
    if not folders:
        raise ConfigError(
            f"audit.reference is {place!r}, where there is no retrained model; add "
            "retrain to its unlearn.methods."
        )
    return folders
