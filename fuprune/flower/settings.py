"""What a run of the app is told: its own few keys, and the config of fuprune.

`flwr run ... -c 'config="train.rounds=3 model.name=resnet8"'` sets keys of fuprune's
config, which are checked as on the command line. The other keys of the app say what to
do, where the server keeps its files, and how long it waits.
"""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.errors import InputError, check_choice
from fuprune.flower.ledger import Entry
from fuprune.flower.roster import Timeouts
from fuprune.run.config_loading import apply_overrides, load_config, split_overrides

COMMANDS = ("train", "forget", "evaluate")


class Settings(NamedTuple):
    """One run of the app."""

    command: str  # one of COMMANDS
    workdir: str
    config: Any  # fuprune's
    order: Entry  # to forget; it names nothing in a run that does something else
    method: str
    min_clients: int
    timeouts: Timeouts


def read_config(text: str) -> Any:
    """The quickstart's config with the keys that `text` sets.

    Args:
      text: `key=value` with spaces between; a value with spaces is quoted.

    Raises:
      FupruneError: a key is unknown, or a value makes no sense.
    """
    _, config = load_config("quickstart")
    parts = shlex.split(text)
    for part in parts:
        if "=" not in part:
            raise ConfigError(f"{part!r:.80} has no value; write {part:.80}=VALUE.")
    _, overrides = split_overrides([f"--config.{part}" for part in parts])
    apply_overrides(config, overrides)
    configuration.validate(config)
    return config


def read_settings(run_config: Mapping[str, Any]) -> Settings:
    """The settings of a run, checked.

    Raises:
      InputError: a key has a value that makes no sense.
    """
    command = str(run_config.get("command", "train"))
    check_choice("command", command, COMMANDS)
    config = read_config(str(run_config.get("config", "")))
    order = Entry(
        str(run_config.get("order", "")),
        _numbers(run_config, "classes"),
        _numbers(run_config, "clients"),
        _pairs(run_config, "examples"),
    )
    if command == "forget" and not (len(order.kinds) == 1 and order.order):
        raise InputError(
            "a forget order needs an id, and classes or clients or examples; write "
            '-c \'command="forget" classes="3" order="2026-001"\'.'
        )
    if order.classes:
        config.unlearn.classes = order.classes
    return Settings(
        command,
        str(run_config.get("workdir", "runs/federation")),
        config,
        order,
        str(run_config.get("method", "class_pruning")),
        _positive(run_config, "min-clients", 2),
        Timeouts(
            _positive(run_config, "reply-seconds", 600),
            _positive(run_config, "join-seconds", 600),
        ),
    )


def _numbers(run_config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    text = str(run_config.get(name, ""))
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise InputError(
            f"{name} is {text!r}, but must be numbers such as 3 or 3,7."
        ) from None


def _pairs(run_config: Mapping[str, Any], name: str) -> tuple[tuple[int, int], ...]:
    text = str(run_config.get(name, ""))
    try:
        parts = [part.split(":") for part in text.split(",")] if text else []
        return tuple((int(client), int(place)) for client, place in parts)
    except ValueError:
        raise InputError(
            f"{name} is {text!r}, but must be client:position, such as 2:14,2:15."
        ) from None


def _positive(run_config: Mapping[str, Any], name: str, default: int) -> int:
    value = run_config.get(name, default)
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}, but must be a whole number from 1.")
    return value
