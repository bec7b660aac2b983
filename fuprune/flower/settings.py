"""What a run of the app is told: its own few keys, and the config of fuprune.

The app's own table in `app/pyproject.toml` has the keys and their defaults.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fuprune import config as configuration
from fuprune.config import ConfigError, load_config
from fuprune.errors import InputError, check_choice
from fuprune.flower.orders import Entry

COMMANDS = ("train", "forget", "withdraw", "evaluate")
_APP = Path(__file__).parent / "app" / "pyproject.toml"
# What a federation of separate clients has, of keys that a simulation has more of.
_ALLOWED = {
    "data.normalise": ("constants", "federated"),
    "privacy.epsilon": (0.0,),
    "privacy.min_count": (0,),
    "relabel.answer": ("nearest",),
}


def _pair(text: str) -> tuple[int, int]:
    client, position = map(int, text.split(":"))
    return client, position


# What an order may name, how it is written, and how a part of that is read.
_NAMED = {
    "classes": ("numbers such as 3 or 3,7", int),
    "clients": ("numbers such as 3 or 3,7", int),
    "examples": ("client:position, such as 2:14,2:15", _pair),
}


class Timeouts(NamedTuple):
    """How long the server waits, in seconds."""

    reply: float = 600.0  # for the answers to one request
    join: float = 600.0  # for enough clients to be there
    poll: float = 0.5  # between two looks at who is there, and at what has come


class Settings(NamedTuple):
    """One run of the app."""

    command: str
    workdir: Path
    config: Any  # fuprune's
    order: Entry  # empty in a run that does something else
    method: str
    min_clients: int
    timeouts: Timeouts
    max_images: int  # that one client may say it has
    keys: Path | None  # folder of node-K.pub, by which clients prove their ids


def read_config(text: str) -> Any:
    """The quickstart's config with the keys that `text` sets, as on a command line."""
    parts = shlex.split(text)
    for part in parts:
        if "=" not in part:
            raise ConfigError(f"{part!r:.80} has no value; write {part:.80}=VALUE.")
    _, config = load_config("quickstart", dict(part.split("=", 1) for part in parts))
    configuration.validate(config)
    return config


def read_settings(run_config: Mapping[str, Any]) -> Settings:
    """The settings of a run, checked."""
    app = tomllib.loads(_APP.read_text("utf-8"))["tool"]["flwr"]["app"]
    given = {**app["config"], **run_config}
    command, text = str(given["command"]), str(given["config"])
    check_choice("command", command, COMMANDS)
    config = read_config(text)
    for key, allowed in _ALLOWED.items():
        if (value := configuration.read(config, key)) not in allowed:
            raise InputError(
                f"{key} is {value!r}, which a federation of separate clients does not "
                f"have; allowed: {' or '.join(map(str, allowed))}."
            )
    workdir = Path(str(given["workdir"])).expanduser().absolute()
    least = _positive(given, "min-clients")
    # Every round is on disk before the next.
    own = {
        "train.checkpoint_every": 1,
        "train.min_participants": min(least, config.train.cohort),
        "runtime.devices": 1,
        "runtime.compilation_cache": str(workdir / "compiled"),
        "runtime.progress": "plain",
    }
    if "prune.weighting" not in text and not config.privacy.secure_sum:
        # One client's word must not choose what is cut.
        own["prune.weighting"] = "median"
    configuration.update(config, own)
    return Settings(
        command,
        workdir,
        config,
        _read_order(given, command),
        str(given["method"]),
        least,
        Timeouts(_positive(given, "reply-seconds"), _positive(given, "join-seconds")),
        _positive(given, "max-images"),
        Path(str(given["keys"])) if given["keys"] else None,
    )


def _read_order(given: Mapping[str, Any], command: str) -> Entry:
    named = {}
    for name, (form, read) in _NAMED.items():
        text = str(given[name])
        try:
            named[name] = tuple(map(read, text.split(","))) if text else ()
        except ValueError:
            raise InputError(f"{name} is {text!r}, but must be {form}.") from None
    if command not in ("forget", "withdraw"):
        return Entry("")
    order, signatures = str(given["order"]), str(given["signatures"])
    if not order or sum(map(bool, named.values())) != (command == "forget"):
        raise InputError(
            "an order needs an id, and to forget classes or clients or examples; write "
            "command=forget classes=3 order=2026-001."
        )
    if not re.fullmatch(r"[\w.:@+-]{1,100}", order):
        raise InputError(
            f"order is {order!r:.120}, but an id is up to 100 letters, digits "
            "and . : @ + - _."
        )
    signed = tuple(signatures.split(",")) if signatures else ()
    return Entry(order, **named, signatures=signed)


def _positive(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}, but must be a whole number from 1.")
    return value
