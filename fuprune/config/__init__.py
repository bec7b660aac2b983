"""The configuration of a run, made from the table in `fuprune.config.keys`.

Files in `configs/` and flags change the values of `default()`. `validate` refuses what
makes no sense before any data is read, in one line that names the value seen and what
is allowed. Only `main` and `fuprune.run` see a config: the functions of the rooms take
plain arguments. Nothing here waits for JAX.
"""

import difflib
import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

from fuprune import classes as classes_lib
from fuprune.config.keys import AUDIT_TESTS as AUDIT_TESTS
from fuprune.config.keys import KEYS, METHODS, PHASES, SECTIONS
from fuprune.config.keys import MODELS as MODELS
from fuprune.errors import FupruneError as FupruneError
from fuprune.errors import InputError

# An ml_collections ConfigDict: its leaves are checked by `validate`, not by a type.
Config = Any

# Known without reading any data; other sets are checked after loading.
DATASET_CLASSES = {
    **dict.fromkeys(("cifar10", "digits", "fashion_mnist", "kmnist", "mnist"), 10),
    **{"cifar100": 100, "svhn_cropped": 10},
}
# What a run names when it would take a CPU more than a day.
REDUCED_CONFIG = "cifar10_resnet_cpu"
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
        _put(config, key.name, value)
    return config


def quickstart() -> Config:
    """Returns the setting of a run without `--config`: minutes on a laptop's CPU."""
    config = default()
    config.data.name = "digits"
    # 22 per class, of which validation takes 2: few enough to be memorised, so that
    # membership tests can see something.
    config.data.limit = 22
    config.model.name = "resnet8"
    config.partition.clients = 10
    config.partition.bias = 0.3
    config.train.algorithm = "fed_avg"
    config.train.rounds = 20
    config.train.cohort = 10
    config.train.local_epochs = 2
    config.train.batch_size = 16
    config.train.learning_rate = 0.1
    config.train.augment = False  # a flipped digit is another digit
    config.train.evaluate_every = 1
    config.train.checkpoint_every = 10
    config.unlearn.methods = "class_pruning,retrain,mask_logit,fine_tune_only"
    config.unlearn.retrain_seeds = 5
    config.prune.rate = 0.3
    config.fine_tune.rounds = 12
    config.fine_tune.schedule = "cosine"
    config.fine_tune.target_accuracy = 0.9  # reached by all, so that rounds compare
    config.fine_tune.stop_at_target = False  # the same budget for every method
    config.audit.max_examples = 1000
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


def phases(config: Config) -> tuple[str, ...]:
    """Returns the phases to run, in the order they run."""
    wanted = _names(config.phases, "phases", PHASES)
    return tuple(phase for phase in PHASES if phase in wanted)


def methods(config: Config) -> tuple[str, ...]:
    """Returns the unlearning methods to run, in the order given."""
    if config.unlearn.method:
        return _names(config.unlearn.method, "unlearn.method", METHODS)
    names = _names(config.unlearn.methods, "unlearn.methods", METHODS)
    if _is_all(config.unlearn.methods) and not config.train.history_bytes:
        return tuple(name for name in names if name != "amnesiac")
    return names


def audit_tests(config: Config) -> tuple[str, ...]:
    """Returns the kinds of evidence the audit gathers."""
    return _names(config.audit.tests, "audit.tests", AUDIT_TESTS)


def classes(config: Config) -> tuple[int, ...]:
    """Returns the classes to forget, in the order they are cut."""
    value = config.unlearn.classes
    parts = _parts(value, "unlearn.classes")
    if not all(re.fullmatch(r"[+-]?[0-9]{1,9}", part) for part in parts):
        raise _refused("unlearn.classes", value)
    if len(set(map(int, parts))) < len(parts):
        raise _refused("unlearn.classes", value, "each class once")
    return tuple(map(int, parts))


def privacy_curve(config: Config) -> tuple[float, ...]:
    """Returns the epsilons of the accuracy-against-epsilon curve, in their order."""
    value = config.privacy.curve
    allowed = "numbers from 1e-06 to 1e+06, each once, such as 0.5,1,2,4,8, or nothing"
    epsilons: dict[str, float] = {}
    for part in value.split(",") if value.strip() else ():
        try:
            epsilon = float(part) if part.isascii() else 0.0
        except ValueError:
            epsilon = 0.0
        # Six digits name a point in the files of the run.
        if not 1e-6 <= epsilon <= 1e6 or f"{epsilon:g}" in epsilons:
            raise _refused("privacy.curve", value, allowed)
        epsilons[f"{epsilon:g}"] = float(f"{epsilon:g}")
    return tuple(epsilons.values())


def validate(config: Config, *, num_classes: int | None = None) -> None:
    """Raises `ConfigError` at the first thing that cannot be.

    Args:
      config: what a file and the flags made of `default()`.
      num_classes: of the dataset; looked up by its name if None. For a dataset that
        is not in `DATASET_CLASSES`, call `check_classes` once it is loaded.
    """
    _check_is_config(config)
    values = flatten(config)
    for name in values:
        if name not in KEYS:
            raise unknown_key(name)
    for name in KEYS:
        if name not in values:
            raise ConfigError(
                f"the key {name} is missing; start from fuprune.config.default()."
            )
        _check_type(name, values[name])
    for name, key in KEYS.items():
        if not key.allowed.holds(values[name]):
            raise _refused(name, values[name])
    _check_together(config)
    if config.partition.kind not in _COUNTED_LATER:
        check_clients(config, config.partition.clients)
    if num_classes is None:
        num_classes = DATASET_CLASSES.get(config.data.name)
    if num_classes is not None:
        check_classes(config, num_classes)


def _check_is_config(config: Any) -> None:
    if not isinstance(config, config_dict.ConfigDict):
        raise ConfigError(
            f"the configuration is a {type(config).__name__}; allowed: the ConfigDict "
            "of fuprune.config.default(), with values changed."
        )


def _check_together(config: Config) -> None:
    """Refuses values that are fine by themselves and not with each other."""
    train, prune, privacy = config.train, config.prune, config.privacy
    phases(config)
    audit_tests(config)
    classes(config)
    if train.min_participants > train.cohort:
        raise _above("train.min_participants", config, "train.cohort", train.cohort)
    if train.algorithm == "fed_avg" and train.batch_size == 0:
        raise ConfigError(
            "train.batch_size is 0; allowed: 1 or more with fed_avg (0 means all of a "
            "client's images, and is for fed_sgd)."
        )
    for name in ("train", "fine_tune"):
        part = config[name]
        if part.schedule == "warmup_cosine" and part.warmup_rounds >= max(
            part.rounds, 1
        ):
            raise ConfigError(
                f"{name}.warmup_rounds is {part.warmup_rounds}; allowed: less than "
                f"{name}.rounds, which is {part.rounds}."
            )
    if "amnesiac" in methods(config) and not train.history_bytes:
        raise ConfigError(
            "unlearn.methods names amnesiac while train.history_bytes is 0; allowed: "
            "the bytes to keep updates in, such as 1000000000."
        )
    private = privacy.secure_sum or privacy.epsilon or privacy_curve(config)
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


def check_clients(config: Config, num_clients: int) -> None:
    """Raises `ConfigError` if more clients are asked for than there are."""
    for name in ("train.cohort", "unlearn.participants", "prune.capture_clients"):
        if flatten(config)[name] > num_clients:
            raise _above(name, config, "partition.clients", num_clients)


def check_classes(config: Config, num_classes: int) -> None:
    """Raises `ConfigError` unless the dataset has the classes and some others."""
    dataset = config.data.name
    classes_lib.check_classes(
        classes(config),
        num_classes,
        name="unlearn.classes",
        dataset=dataset,
        error=ConfigError,
    )
    held = config.partition.classes_per_client
    if config.partition.kind == "pathological" and held > num_classes:
        raise ConfigError(
            f"partition.classes_per_client is {held}; allowed: at most {num_classes}, "
            f"the classes of {dataset}."
        )


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
    start = f"unknown key {_quoted(name)}; "
    if close:
        return ConfigError(f"{start}did you mean {' or '.join(close)}?")
    top = [key for key in known if "." not in key] + sections
    return ConfigError(f"{start}allowed: {', '.join(inside or top)}.")


def wrong_type(name: str, value: Any) -> ConfigError:
    """Returns the error for a value of another type than the key's."""
    words = {bool: "True or False", int: "a whole number", float: "a number"}
    wanted = words.get(type(KEYS[name].default), "a string")
    return _refused(name, value, wanted)


def _refused(name: str, value: Any, allowed: str = "") -> ConfigError:
    allowed = allowed or KEYS[name].allowed.text
    return ConfigError(f"{name} is {_quoted(value)}; allowed: {allowed}.")


def _above(name: str, config: Config, limit: str, number: int) -> ConfigError:
    allowed = f"at most {limit}, which is {number}"
    return _refused(name, flatten(config)[name], allowed)


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
    return json.loads(json.dumps(config.to_dict()))


def from_json(values: Mapping[str, Any]) -> Config:
    """Rebuilds a config from `to_json`, also one of an earlier version.

    A key that the stored config lacks takes the value that runs had before the key
    existed, which for most is its default.

    Raises:
      ConfigError: if a key is unknown or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"the stored configuration is {_quoted(values)}; allowed: a dictionary."
        )
    config = default()
    for name, value in {**_before(), **flatten(values)}.items():
        if name not in KEYS:
            raise unknown_key(name)
        value = tuple(value) if isinstance(value, list) else value
        _check_type(name, value)
        _put(config, name, value)
    return config


def difference(
    old: Mapping[str, Any] | Config,
    new: Mapping[str, Any] | Config,
) -> list[str]:
    """Returns the dotted keys in which a resumed run would differ from the stored one.

    Keys that cannot change a result are left out: which phases run, how often
    checkpoints are written, which points the privacy curve has, and all of `runtime`
    except the type computed in. A key that one side lacks counts as what runs had
    before it existed.
    """
    ours, theirs = {**_before(), **flatten(old)}, {**_before(), **flatten(new)}
    return [
        name
        for name in sorted(ours.keys() | theirs.keys())
        if name not in _MAY_DIFFER
        and _comparable(name, ours.get(name)) != _comparable(name, theirs.get(name))
    ]


def _before() -> dict[str, Any]:
    """The value of each key in a run that was stored before the key existed."""
    return {
        name: key.default if key.before is None else key.before
        for name, key in KEYS.items()
    }


# The points of a privacy curve stand beside the other results.
_MAY_DIFFER = {
    *("phases", "data.dir", "train.checkpoint_every", "train.checkpoint_keep"),
    *("privacy.curve", "privacy.curve_fine_tune"),
    *(name for name in KEYS if name.startswith("runtime.") and name != "runtime.dtype"),
}


def _comparable(name: str, value: Any) -> Any:
    """The same for every way to write the same list."""
    if name in KEYS and KEYS[name].allowed.is_list and not isinstance(value, bool):
        try:
            return _parts(value, name)
        except ConfigError:
            pass
    return tuple(value) if isinstance(value, list) else value


def _put(config: Config, name: str, value: Any) -> None:
    section, _, leaf = name.rpartition(".")
    (config[section] if section else config)[leaf] = value


def _parts(value: Any, name: str) -> tuple[str, ...]:
    """Splits "a,b", ("a", "b") or 9 into strings."""
    if isinstance(value, str):
        value_list: Any = value.split(",")
    else:
        value_list = value if isinstance(value, (tuple, list)) else [value]
    # A bool is an int to isinstance, and what a flag without a value gives.
    if not value_list or not all(type(piece) in (str, int) for piece in value_list):
        raise _refused(name, value)
    return tuple(str(piece).strip() for piece in value_list)


def _is_all(value: Any) -> bool:
    return value in ("all", ("all",), ["all"])


def _names(value: Any, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names in a list-like leaf, each one of those known and none twice."""
    if _is_all(value):
        return known
    names = _parts(value, name)
    for given in names:
        if given not in known:
            close = difflib.get_close_matches(given, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(
                f"{name} names {_quoted(given)}{hint}; allowed: all, or some of "
                f"{', '.join(known)}."
            )
    return tuple(dict.fromkeys(names))


def _quoted(value: Any) -> str:
    """The value on one line, shortened, with nothing a terminal would obey."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= 80 else text[:77] + "..."


def _check_type(name: str, value: Any) -> None:
    wanted = type(KEYS[name].default)
    # A bool is an int to isinstance; True clients is a slip.
    fits = type(value) is wanted or (
        wanted is float and type(value) is int and abs(value) < 1e300
    )
    if not fits and not KEYS[name].allowed.is_list:
        raise wrong_type(name, value)
