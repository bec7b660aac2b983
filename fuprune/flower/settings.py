"""What a run of the app is told: its own few keys, and the config of fuprune.

`flwr run ... -c 'config="train.rounds=3 model.name=resnet8"'` sets keys of fuprune's
config, which are checked as on the command line. The other keys of the app say what to
do, where the server keeps its files, and how long it waits; the app's own table in
`app/pyproject.toml` has their defaults.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fuprune import config as configuration
from fuprune.config import ConfigError, load_config
from fuprune.errors import InputError, check_choice
from fuprune.flower.orders import Entry

COMMANDS = ("train", "forget", "withdraw", "evaluate")
_APP = Path(__file__).parent / "app" / "pyproject.toml"


class Timeouts(NamedTuple):
    """How long the server waits, in seconds."""

    reply: float = 600.0  # for the answers to one request
    join: float = 600.0  # for enough clients to be there
    poll: float = 0.5  # between two looks at who is there, and at what has come


class Settings(NamedTuple):
    """One run of the app."""

    command: str  # one of COMMANDS
    workdir: Path  # absolute
    config: Any  # fuprune's
    order: Entry  # to forget; empty in a run that does something else
    method: str
    min_clients: int
    timeouts: Timeouts
    max_images: int = 100_000  # that one client may say it has
    keys: Path | None = None  # folder of node-K.pub, by which clients prove their ids


def read_config(text: str) -> Any:
    """The quickstart's config with the keys that `text` sets.

    Args:
      text: `key=value` with spaces between; a value with spaces is quoted.

    Raises:
      FupruneError: a key is unknown, or a value makes no sense.
    """
    parts = shlex.split(text)
    for part in parts:
        if "=" not in part:
            raise ConfigError(f"{part!r:.80} has no value; write {part:.80}=VALUE.")
    _, config = load_config("quickstart", dict(part.split("=", 1) for part in parts))
    configuration.validate(config)
    return config


def read_settings(run_config: Mapping[str, Any]) -> Settings:
    """The settings of a run, checked.

    Raises:
      InputError: a key has a value that makes no sense.
    """
    app = tomllib.loads(_APP.read_text("utf-8"))["tool"]["flwr"]["app"]
    given = {**app["config"], **run_config}
    command = str(given["command"])
    check_choice("command", command, COMMANDS)
    config = read_config(str(given["config"]))
    _check_config(config)
    workdir = Path(str(given["workdir"])).expanduser().absolute()
    least = _positive(given, "min-clients")
    configuration.update(config, _of_server(workdir, config, least))
    if "prune.weighting" not in str(given["config"]) and not config.privacy.secure_sum:
        # One client's word must not choose what is cut.
        config.prune.weighting = "median"
    numbers = "numbers such as 3 or 3,7"
    order = Entry(
        str(given["order"]),
        _list(given, "classes", int, numbers),
        _list(given, "clients", int, numbers),
        _list(given, "examples", _pair, "client:position, such as 2:14,2:15"),
        signatures=_list(given, "signatures", str, "as `launch run` makes them"),
    )
    if command in ("forget", "withdraw"):
        _check_order(order, command)
    return Settings(
        command,
        workdir,
        config,
        order if command in ("forget", "withdraw") else Entry(""),
        str(given["method"]),
        least,
        Timeouts(_positive(given, "reply-seconds"), _positive(given, "join-seconds")),
        _positive(given, "max-images"),
        Path(str(given["keys"])) if given["keys"] else None,
    )


def _of_server(workdir: Path, config, least: int) -> dict[str, Any]:
    """Keys that the server sets: every round is on disk before the next."""
    return {
        "train.checkpoint_every": 1,
        "train.min_participants": min(least, config.train.cohort),
        "runtime.devices": 1,
        "runtime.compilation_cache": str(workdir / "compiled"),
        "runtime.progress": "plain",
    }


def _check_order(order: Entry, command: str) -> None:
    named = sum(map(bool, (order.classes, order.clients, order.examples)))
    if not order.order or named != (command == "forget"):
        raise InputError(
            "an order needs an id, and to forget classes or clients or examples; write "
            "command=forget classes=3 order=2026-001."
        )
    if not re.fullmatch(r"[\w.:@+-]{1,100}", order.order):
        raise InputError(
            f"order is {order.order!r:.120}, but an id is up to 100 letters, digits "
            "and . : @ + - _."
        )


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


def _list(
    given: Mapping[str, Any], name: str, read: Callable[[str], Any], form: str
) -> tuple:
    text = str(given[name])
    try:
        return tuple(map(read, text.split(","))) if text else ()
    except ValueError:
        raise InputError(f"{name} is {text!r}, but must be {form}.") from None


def _pair(text: str) -> tuple[int, int]:
    client, place = map(int, text.split(":"))
    return client, place


def _positive(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}, but must be a whole number from 1.")
    return value
