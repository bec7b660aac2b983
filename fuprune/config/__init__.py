"""The configuration of a run, made from the table in `fuprune.config.keys`.

Files in `configs/` and flags change the values of `default()`. `validate` refuses what
makes no sense before any data is read, in one line that names the value seen and what
is allowed. Only `main`, `fuprune.run` and `fuprune.flower` see a config: the functions
of the other rooms take plain arguments. Nothing here waits for JAX.
"""

import contextlib
import difflib
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from fuprune import classes as classes_lib
from fuprune.config.keys import KEYS, PHASES, SECTIONS
from fuprune.config.kinds import pieces, quoted
from fuprune.data.known_sets import find_known
from fuprune.errors import InputError
from fuprune.unlearning.methods import METHODS

# An ml_collections ConfigDict: its leaves are checked by `validate`, not by a type.
Config = Any

# Keys of `train` that keep a record of the training, and what they take.
HISTORY_VALUES = {
    "history_bytes": "the bytes to keep updates in, such as 1000000000",
    "history_interval": "the rounds from one kept round to the next, such as 2",
}
# Partitions whose number of clients is known once the data are loaded.
_COUNTED_LATER = ("natural", "file")


class ConfigError(InputError):
    """A key or value of the configuration that cannot be."""


def default() -> Config:
    """Returns the whole schema, set as in the paper for CIFAR-10 and ResNet20."""
    config = config_dict.ConfigDict({s.name: {} for s in SECTIONS if s.name})
    for key in KEYS.values():
        value = key.default
        if key.allowed.is_list:  # takes a string, a number or a tuple
            value = config_dict.FieldReference(value, field_type=object)
        section, leaf = _place(config, key.name)
        section[leaf] = value
    return config


def describe_keys() -> str:
    """Returns every key with its default and comment, by section, for `--help`."""
    lines = []
    for section in SECTIONS:
        lines += ["", f"{section.name or 'run'}: {section.comment}"]
        for key in section.keys:
            comment = key.comment
            if key.allowed.choices:
                comment += f" [{', '.join(key.allowed.choices)}]"
            start = f"  {key.name} = {key.default!r}"
            lines += textwrap.wrap(
                f"{start:<37} {comment}", 88, subsequent_indent=" " * 38
            )
    return "\n".join(lines[1:])


def read(config: Config, name: str) -> Any:
    """Returns what the value of a key means: a list such as "0,9" as a tuple.

    Raises:
      ConfigError: if it is not allowed.
    """
    section, leaf = _place(config, name)
    value, allowed = section[leaf], KEYS[name].allowed
    try:
        return allowed.read(value)
    except ValueError as error:
        seen = str(error) or f"is {quoted(value)}"
        raise ConfigError(f"{name} {seen}; allowed: {allowed.text}.") from None


def phases(config: Config) -> tuple[str, ...]:
    """Returns the phases to run, in the order they run."""
    wanted = read(config, "phases")
    return tuple(phase for phase in PHASES if phase in wanted)


def methods(config: Config) -> tuple[str, ...]:
    """Returns the unlearning methods to run, in the order given."""
    if config.unlearn.method:
        return read(config, "unlearn.method")
    names, kind = read(config, "unlearn.methods"), request_kind(config)
    if kind != "classes" and config.unlearn.methods == KEYS["unlearn.methods"].default:
        return served(config, names)  # nobody chose them
    if pieces(config.unlearn.methods) != ("all",):
        return names
    # All that can be: those that need a record have one, those for classes a class.
    return tuple(
        name
        for name in names
        if kind in METHODS[name].serves
        and (not METHODS[name].needs or config.train[METHODS[name].needs])
    )


def served(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Returns those of some methods that serve clients and examples.

    Retraining and controls alone would leave nothing to judge: in place of what falls
    away comes `fed_eraser` where rounds are kept, else `sisa`.
    """
    left = tuple(name for name in names if METHODS[name].serves != ("classes",))
    if any(name != "retrain" and not METHODS[name].control for name in left):
        return left
    if config.train.history_interval:
        return (*left, "fed_eraser")
    return (*left, "sisa") if config.sisa.shards <= config.partition.clients else left


def classes(config: Config) -> tuple[int, ...]:
    """Returns the classes to forget, in the order they are cut; none for others."""
    return read(config, "unlearn.classes") if request_kind(config) == "classes" else ()


def request_kind(config: Config) -> str:
    """Returns what is to be forgotten: `classes`, `clients` or `examples`.

    The default of `unlearn.classes` gives way to the other two.

    Raises:
      ConfigError: nothing or several kinds are named.
    """
    named = {
        "classes": read(config, "unlearn.classes"),
        "clients": read(config, "unlearn.clients"),
        "examples": config.unlearn.examples,
    }
    kinds = [kind for kind, value in named.items() if value]
    if len(kinds) > 1 and named["classes"] == (KEYS["unlearn.classes"].default,):
        kinds.remove("classes")
    if not kinds:
        raise ConfigError(
            "unlearn.classes, unlearn.clients and unlearn.examples are all empty; "
            "allowed: one of them, what is to be forgotten."
        )
    if len(kinds) > 1:
        keys = " and ".join(f"unlearn.{kind}" for kind in kinds)
        raise ConfigError(
            f"{keys} are both given; allowed: one kind, so set the other to ''."
        )
    return kinds[0]


def validate(config: Config) -> None:
    """Raises `ConfigError` at the first thing that cannot be.

    For a dataset that is not in `KNOWN_SETS`, call `check_classes` once it is
    loaded.
    """
    kind: Any = type(config)
    if not issubclass(kind, config_dict.ConfigDict):
        raise ConfigError(
            f"the configuration is a {kind.__name__}; allowed: the ConfigDict of "
            "fuprune.config.default(), with values changed."
        )
    values = flatten(config)
    for name, value in values.items():
        _check_type(name, value)
    for name in KEYS:
        if name not in values:
            raise ConfigError(
                f"the key {name} is missing; start from fuprune.config.default()."
            )
        read(config, name)
    _check_together(config)
    if config.partition.kind not in _COUNTED_LATER:
        check_clients(config, config.partition.clients)
    # The classes of other sets are checked after loading.
    known = find_known(config.data.name)
    if known is not None:
        check_classes(config, len(known.class_names))


def _check_together(config: Config) -> None:
    """Refuses values that are fine by themselves and not with each other."""
    train, prune, privacy = config.train, config.prune, config.privacy
    _check_at_most(config, "train.min_participants", "train.cohort", train.cohort)
    if train.algorithm == "fed_avg" and train.batch_size == 0:
        allowed = "1 or more with fed_avg (0: all images of a client, is for fed_sgd)"
        raise _refused("train.batch_size", 0, allowed)
    if train.algorithm == "fed_sgd" and train.local_steps:
        allowed = "0 with fed_sgd, whose clients take no steps of their own"
        raise _refused("train.local_steps", train.local_steps, allowed)
    for name in ("train", "fine_tune"):
        part = config[name]
        warmup, most = part.warmup_rounds, max(part.rounds, 1)
        if part.schedule == "warmup_cosine" and warmup >= most:
            allowed = f"less than {name}.rounds, which is {part.rounds}"
            raise _refused(f"{name}.warmup_rounds", warmup, allowed)
    for name in methods(config):
        key = METHODS[name].needs
        if key and not train[key]:
            raise ConfigError(
                f"unlearn.methods names {name} while train.{key} is 0; allowed: "
                f"{HISTORY_VALUES[key]}."
            )
    kind = request_kind(config)
    if kind == "classes" and config.audit.backdoor:
        allowed = "0 for classes (it is planted in clients' or single images)"
        raise _refused("audit.backdoor", config.audit.backdoor, allowed)
    if kind != "classes":
        unfit = [n for n in methods(config) if kind not in METHODS[n].serves]
        others = [name for name, method in METHODS.items() if kind in method.serves]
        if unfit:
            raise ConfigError(
                f"unlearn.methods names {unfit[0]}, which serves classes, while "
                f"unlearn.{kind} is given; allowed: some of {', '.join(others)}."
            )
        if read(config, "privacy.curve"):
            raise ConfigError(
                f"privacy.curve is {quoted(privacy.curve)} while unlearn.{kind} is "
                "given; allowed: nothing, because only classes are cut."
            )
    private = privacy.secure_sum or privacy.epsilon or read(config, "privacy.curve")
    if prune.weighting == "clients" and private:
        raise ConfigError(
            "prune.weighting is 'clients' with privacy.secure_sum, privacy.epsilon or "
            "privacy.curve, which show the server sums over clients only; allowed: "
            "examples."
        )
    if config.partition.kind == "file" and not config.partition.file:
        raise ConfigError(
            "partition.file is '' with partition.kind=file; allowed: the path of a "
            "text file with one line of image numbers per client."
        )


def _check_at_most(config: Config, name: str, limit: str, number: int) -> None:
    value = read(config, name)
    if value > number:
        raise _refused(name, value, f"at most {limit}, which is {number}")


def check_clients(config: Config, num_clients: int) -> None:
    """Raises `ConfigError` if more clients are asked for than there are."""
    names = ("train.cohort", "unlearn.participants", "prune.capture_clients")
    if "sisa" in methods(config):
        names += ("sisa.shards",)
    for name in names:
        _check_at_most(config, name, "partition.clients", num_clients)
    for client in read(config, "unlearn.clients"):
        if not 0 <= client < num_clients:
            raise ConfigError(
                f"unlearn.clients names client {client}; allowed: 0 to "
                f"{num_clients - 1}."
            )


def check_classes(config: Config, num_classes: int) -> None:
    """Raises `ConfigError` unless the dataset has the classes and some others."""
    dataset = config.data.name
    if request_kind(config) == "classes":
        classes_lib.check_classes(
            classes(config),
            num_classes,
            name="unlearn.classes",
            dataset=dataset,
            error=ConfigError,
        )
    held = config.partition.classes_per_client
    if config.partition.kind == "pathological" and held > num_classes:
        allowed = f"at most {num_classes}, the classes of {dataset}"
        raise _refused("partition.classes_per_client", held, allowed)


def unknown_key(name: str) -> ConfigError:
    """Returns the error for a key that is not in the schema, with a suggestion."""
    known = sorted(KEYS)
    sections = sorted(section.name for section in SECTIONS if section.name)
    leaf = name.rsplit(".", 1)[-1]
    close = (
        difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        or [key for key in known if key.rsplit(".", 1)[-1] == leaf]
        or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    )
    inside = [key for key in known if key.startswith(name.split(".", 1)[0] + ".")]
    if name in sections:
        return ConfigError(f"{name} is a group of keys; allowed: {', '.join(inside)}.")
    start = f"unknown key {quoted(name)}; "
    if close:
        return ConfigError(f"{start}did you mean {' or '.join(close)}?")
    top = [key for key in known if "." not in key] + sections
    return ConfigError(f"{start}allowed: {', '.join(inside or top)}.")


def wrong_type(name: str, value: Any) -> ConfigError:
    """Returns the error for a value of another type than the key's."""
    words = {bool: "True or False", int: "a whole number", float: "a number"}
    wanted = words.get(type(KEYS[name].default), "a string")
    return _refused(name, value, wanted)


def _refused(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{name} is {quoted(value)}; allowed: {allowed}.")


def flatten(config: Mapping[str, Any] | Config, prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of a config or of its dictionary by dotted key."""
    leaves = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, (Mapping, config_dict.ConfigDict)):
            leaves.update(flatten(value, name + "."))
        else:
            leaves[name] = value
    return leaves


def to_json(config: Config) -> dict[str, Any]:
    """Returns the config as nested dictionaries that `json.dumps` takes."""
    # Through JSON and back, so that it compares equal to what a file holds.
    return json.loads(json.dumps(config.to_dict()))


def from_json(values: Mapping[str, Any]) -> Config:
    """Rebuilds a config from `to_json`; a key that it lacks takes its default.

    Raises:
      ConfigError: if a key is unknown or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"the stored configuration is {quoted(values)}; allowed: a dictionary."
        )
    config = default()
    for name, value in flatten(values).items():
        if name in GONE:
            continue
        # JSON has no tuples.
        value = tuple(value) if isinstance(value, list) else value
        _check_type(name, value)
        section, leaf = _place(config, name)
        section[leaf] = value
    return config


def difference(old: Mapping[str, Any], new: Mapping[str, Any] | Config) -> list[str]:
    """Returns the dotted keys in which a resumed run would differ from the stored one.

    Keys that cannot change a result are left out: which phases run, how often
    checkpoints are written, which points the privacy curve has, and all of `runtime`
    except the type computed in. A key that one side lacks counts as its default.
    """
    defaults = {name: key.default for name, key in KEYS.items()}
    ours, theirs = defaults | flatten(old), defaults | flatten(new)
    return [
        name
        for name in sorted(ours.keys() | theirs.keys())
        if name not in _MAY_DIFFER | GONE
        and _comparable(name, ours.get(name)) != _comparable(name, theirs.get(name))
    ]


def _comparable(name: str, value: Any) -> Any:
    """The same for every way to write the same list."""
    if name in KEYS and KEYS[name].allowed.is_list:
        with contextlib.suppress(ValueError):
            return pieces(value)
    return tuple(value) if isinstance(value, list) else value


# Keys of earlier versions, which stored configs may have.
GONE = {"runtime.mlflow", "runtime.wandb"}

# The points of a privacy curve stand beside the other results.
_MAY_DIFFER = {
    *("phases", "data.dir", "train.checkpoint_every", "train.checkpoint_keep"),
    *("privacy.curve", "privacy.curve_fine_tune"),
    *(name for name in KEYS if name.startswith("runtime.") and name != "runtime.dtype"),
}


def is_of_audit_alone(name: str) -> bool:
    """Whether nothing before the audit reads a key; a backdoor is in the images."""
    return name.startswith("audit.") and name != "audit.backdoor"


def _place(config: Config, name: str) -> tuple[Config, str]:
    """The section that holds a key, and the key's name in it."""
    section, _, leaf = name.rpartition(".")
    return (config[section] if section else config), leaf


def _check_type(name: str, value: Any) -> None:
    if name not in KEYS:
        raise unknown_key(name)
    wanted = type(KEYS[name].default)
    # A bool is an int to isinstance; True clients is a slip.
    fits = type(value) is wanted or (
        wanted is float and type(value) is int and abs(value) < 1e300
    )
    if not fits and not KEYS[name].allowed.is_list:
        raise wrong_type(name, value)
