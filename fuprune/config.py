"""The configuration of a run: every key, its default and what it may be.

`default()` is the whole schema and the paper's setting for CIFAR-10 and ResNet20;
files in `configs/` override it. `validate` refuses what makes no sense, before any
data is read, in one line that names the value seen and what is allowed. Only
`experiment.py` and `main.py` see a config: library functions take plain arguments.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_collections import config_dict

# An ml_collections ConfigDict: its leaves are checked by `validate`, not by a type.
Config = Any

PHASES = ("pretrain", "unlearn", "audit", "report")
MODELS = (
    *(f"resnet{depth}" for depth in (8, 20, 32, 44, 56)),
    *(f"vgg{depth}" for depth in (11, 13, 16, 19)),
)
METHODS = (
    "class_pruning",
    "retrain",
    "fisher",
    "influence",
    "ascent",
    "amnesiac",
    "regrow",
    "relabel",
    "prune_relabel",
    "mask_logit",
    "zero_class_row",
    "fine_tune_only",
    "prune_random",
    "prune_lowest",
    "prune_then_drop_row",
)
AUDIT_TESTS = (
    "accuracy",
    "membership",
    "shadow",
    "likelihood_ratio",
    "unlearned_shadow",
    "difference",
    "interpolated",
    "probe",
    "relearn",
    "distance",
    "weights",
)
# Known without reading any data; other TFDS sets are checked after loading.
DATASET_CLASSES = {
    "cifar10": 10,
    "cifar100": 100,
    "digits": 10,
    "fashion_mnist": 10,
    "kmnist": 10,
    "mnist": 10,
    "svhn_cropped": 10,
}

# What a run names when it would take a CPU more than a day.
REDUCED_CONFIG = "configs/cifar10_resnet_cpu.py"


class FupruneError(Exception):
    """Something the user can mend; shown as one line and never as a traceback."""


class ConfigError(FupruneError, ValueError):
    """A key or value of the configuration that cannot be."""


def default() -> Config:
    """Returns the whole schema, set as in the paper for CIFAR-10 and ResNet20."""
    config = config_dict.ConfigDict()
    config.seed = 0  # every random choice of the run derives from it
    config.phases = _either("all")  # "all", or some of PHASES: "unlearn,report"

    config.data = data = config_dict.ConfigDict()
    data.name = "cifar10"  # digits (embedded), or the TFDS name of an image classifier
    data.dir = ""  # where it lies or goes; "" is $TFDS_DATA_DIR, else TFDS's default
    data.limit = 0  # first n training images of each class; 0 takes all
    data.test_limit = 0  # first n test images of each class; 0 takes all

    config.partition = partition = config_dict.ConfigDict()
    partition.kind = "bias"  # bias (the paper's q), dirichlet or iid
    partition.clients = 100  # K, how many clients share the training data
    partition.bias = 0.1  # q: 1 / number of classes is IID, 1 is one class a client
    partition.alpha = 0.5  # of dirichlet: the smaller, the more uneven

    config.model = model = config_dict.ConfigDict()
    model.name = "resnet20"  # one of MODELS
    model.norm = "batch"  # batch or group
    model.load = ""  # a saved model to unlearn from, instead of pre-training one

    config.train = train = config_dict.ConfigDict()
    train.algorithm = "fed_sgd"  # fed_sgd: one averaged gradient a round; or fed_avg
    train.rounds = 2000  # of pre-training, and of retraining
    train.cohort = 25  # clients a round
    train.local_epochs = 1  # E of fed_avg
    train.batch_size = 128  # images a local step; 0 in fed_sgd: all that a client has
    train.optimizer = "sgd"  # sgd or adam: of the clients in fed_avg, of the server's
    # single step in fed_sgd; the next four keys belong to it
    train.learning_rate = 0.1  # its peak
    train.momentum = 0.9  # of sgd
    train.nesterov = True  # of sgd
    train.weight_decay = 5e-4  # L2 added to the gradient (decoupled for adam)
    train.schedule = "cosine"  # of the learning rate over rounds: constant, cosine (to
    # 0) or warmup_cosine
    train.warmup_rounds = 0  # of warmup_cosine
    train.server_optimizer = "sgd"  # takes the mean update of fed_avg: sgd or adam
    train.server_learning_rate = 1.0  # 1 with sgd is the plain mean
    train.bn = "aggregate"  # BatchNorm statistics: aggregate, local or recalibrate
    train.augment = True  # random crop and flip
    train.label_smoothing = 0.0  # of the cross-entropy
    train.dropout_rate = 0.0  # chance that a sampled client never answers
    train.aggregation = "mean"  # mean, clipped_mean, median or trimmed_mean
    train.clip_norm = 10.0  # of clipped_mean: longest update, in L2
    train.trim = 0.1  # of trimmed_mean: share dropped at each end
    train.max_update_norm = 0.0  # an update longer than this is rejected; 0 lets it in
    train.min_participants = 1  # with fewer valid updates a round is repeated
    train.target_accuracy = 0.0  # stop at this test accuracy; 0 runs every round
    train.evaluate_every = 20  # rounds between evaluations
    train.checkpoint_every = 100  # rounds between checkpoints
    train.checkpoint_keep = 2  # checkpoints kept per phase; at least 2 to fall back on
    train.history_bytes = 0  # room for the updates amnesiac needs; 0 keeps none

    config.unlearn = unlearn = config_dict.ConfigDict()
    unlearn.methods = _either("class_pruning,retrain")  # "all", or some of METHODS;
    # "all" leaves amnesiac out where no history is kept
    unlearn.method = ""  # a single one; if given, it replaces methods
    unlearn.classes = _either(9)  # to forget, in this order: 9, "0,9" or (0, 9)
    unlearn.retrain_seeds = 1  # models that retrain trains; the audit's spread

    config.prune = prune = config_dict.ConfigDict()
    prune.rate = 0.05  # R, the share of channels cut for each class
    prune.scope = "global"  # R taken over all layers (global), by layer, or balanced
    prune.order = "highest"  # TF-IDF cut first: highest (paper), lowest or random
    prune.min_channels = 1  # left in every layer, whatever R says
    prune.idf = "paper"  # paper (Eq. 7) or released (the authors' code)
    prune.weighting = "examples"  # of clients' statistics: examples or clients
    prune.surgery = "compact"  # compact removes channels, mask zeroes them
    prune.recapture = True  # measure again after each class cut
    prune.capture_clients = 0  # clients that send statistics; 0 means train.cohort

    config.privacy = privacy = config_dict.ConfigDict()
    privacy.secure_sum = False  # class statistics leave clients under pairwise masks
    privacy.epsilon = 0.0  # of (epsilon, delta)-DP class statistics; 0 adds no noise
    privacy.delta = 1e-5  # see epsilon
    privacy.clip = 1.0  # L2 bound on one example's activations, under epsilon
    privacy.min_count = 0  # classes with fewer examples are suppressed
    privacy.curve = ""  # epsilons such as "0.5,1,2,4,8": cut with each, and compare
    privacy.curve_fine_tune = False  # fine-tune after each of these cuts, too

    config.fine_tune = fine_tune = config_dict.ConfigDict()
    fine_tune.rounds = 200  # at most, after any method that is followed by one
    fine_tune.target_accuracy = -1.0  # R-set accuracy to reach: 0 runs every round, -1
    # takes that of the raw model
    fine_tune.stop_at_target = True  # end there (the paper), or run every round anyway
    fine_tune.learning_rate = 0.0  # 0 means train.learning_rate
    fine_tune.schedule = "constant"  # constant, cosine or warmup_cosine
    fine_tune.evaluate_every = 1  # rounds between evaluations
    fine_tune.seeds = 1  # fine-tunes of the paper's method, for the spread

    config.fisher = fisher = config_dict.ConfigDict()
    fisher.variant = "golatkar"  # golatkar (noise F^-1/2) or paper (Eq. 1)
    fisher.alpha = 1e-6  # scale of the noise
    fisher.max_variance = 1e-3  # clamp on the noise of one weight
    fisher.reset_row = True  # golatkar: reset the forgotten classes' output row
    fisher.max_examples = 0  # retained images used, over all clients; 0 uses all
    fisher.damping = 1e-3  # paper: added to F before it is inverted
    fisher.chunk = 8  # images whose gradients are held at once

    config.influence = influence = config_dict.ConfigDict()
    influence.damping = 0.01  # added to the Hessian's diagonal
    influence.iterations = 20  # of conjugate gradients, at most
    influence.tolerance = 1e-3  # relative residual that ends them
    influence.max_examples = 0  # retained images used, over all clients; 0 uses all

    config.ascent = ascent = config_dict.ConfigDict()
    ascent.rounds = 10  # of gradient ascent on the forgotten classes, at most
    ascent.learning_rate = 0.1  # of the ascent
    ascent.loss_cap = 5.0  # the forgotten classes' loss at which it stops

    config.regrow = regrow = config_dict.ConfigDict()
    regrow.share = 1 / 3  # of the convolutions, from the output, that start afresh
    regrow.shrink = 1.0  # what the others keep of their weights, the rest is fresh

    config.relabel = relabel = config_dict.ConfigDict()
    relabel.answer = "nearest"  # label of a forgotten image: the trained model's best
    # among the other classes (nearest), or any of them (random)

    config.audit = audit = config_dict.ConfigDict()
    audit.tests = _either("all")  # "all", or some of AUDIT_TESTS
    audit.retrained = 0  # retrained models compared with; 0 uses all there are
    audit.reference = ""  # another run's workdir, whose retrained models count too
    audit.models = ""  # further saved models to audit: name=folder, comma between
    audit.confidence = 0.95  # of the interval that a candidate has to lie in
    audit.max_examples = 4000  # training, and test, images that are looked at
    audit.batch_size = 64  # images a step of shadow training and of relearning
    audit.shadows = 4  # models that train the membership attack; even, 0 for none
    audit.shadow_steps = 150  # of training each
    audit.shadow_learning_rate = 0.05  # of training each, at its start
    audit.relearn_level = 0.9  # share of the raw accuracy that counts as relearned
    audit.relearn_max_steps = 24  # of relearning, in each of its settings
    audit.relearn_every = 4  # steps between two looks at it
    audit.relearn_learning_rate = 0.01  # of relearning

    config.runtime = runtime = config_dict.ConfigDict()
    runtime.backend = "auto"  # how a cohort is run: auto, loop, map, vmap, wide (for
    # TPUs) or shard_map
    runtime.dtype = "float32"  # convolutions compute in it: float32 or bfloat16
    runtime.conv = "auto"  # convolutions: auto, xla or onednn (CPU; needs the extra)
    runtime.devices = 0  # CPU devices to make; 0 chooses
    runtime.compilation_cache = "auto"  # a directory; auto is in ~/.cache; "" is none
    runtime.heartbeat_seconds = 100  # silence after which a process counts as dead
    runtime.join_seconds = 60  # how long processes wait for each other at the start
    runtime.pool = "split"  # of several processes each holds the images of its own
    # clients (split), or every one all images (whole): no exchange, more memory
    runtime.tensorboard = False  # also write TensorBoard events (needs the extra)
    runtime.progress = "auto"  # auto (live on a terminal), plain or off
    return config


def quickstart() -> Config:
    """Returns the setting of a run without `--config`: minutes on a laptop's CPU."""
    config = default()
    config.data.name = "digits"
    config.partition.clients = 20
    config.partition.bias = 0.3
    config.train.algorithm = "fed_avg"
    config.train.rounds = 12
    config.train.cohort = 10
    config.train.local_epochs = 2
    config.train.batch_size = 16
    config.train.learning_rate = 0.1
    config.train.augment = False  # a flipped digit is another digit
    config.train.evaluate_every = 1
    config.train.checkpoint_every = 4
    config.unlearn.methods = "class_pruning,retrain,mask_logit,fine_tune_only"
    config.unlearn.retrain_seeds = 3
    config.prune.rate = 0.1
    config.fine_tune.rounds = 12
    config.fine_tune.schedule = "cosine"
    config.fine_tune.target_accuracy = 0.95  # reached by all, so that rounds compare
    config.fine_tune.stop_at_target = False  # the same budget for every method
    config.audit.max_examples = 1000
    return config


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
    parts = _parts(value, "unlearn.classes", "class numbers such as 9 or 0,9")
    numbers = []
    for part in parts:
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", part):
            raise ConfigError(
                f"unlearn.classes is {_shown(value)}; allowed: class numbers such as "
                "9 or 0,9."
            )
        numbers.append(int(part))
    if len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"unlearn.classes is {_shown(value)}; allowed: each class once."
        )
    return tuple(numbers)


def privacy_curve(config: Config) -> tuple[float, ...]:
    """Returns the epsilons of the accuracy-against-epsilon curve, in their order."""
    value = config.privacy.curve
    if not value.strip():
        return ()
    epsilons = []
    for part in value.split(","):
        try:
            epsilon = float(part) if part.isascii() else 0.0
        except ValueError:
            epsilon = 0.0
        # Six digits name a point in the files of the run.
        if not 1e-6 <= epsilon <= 1e6 or f"{epsilon:g}" in epsilons:
            raise ConfigError(
                f"privacy.curve is {_shown(value)}; allowed: numbers from 1e-06 to "
                "1e+06, each once, such as 0.5,1,2,4,8, or nothing."
            )
        epsilons.append(f"{epsilon:g}")
    return tuple(float(epsilon) for epsilon in epsilons)


def validate(config: Config, *, num_classes: int | None = None) -> None:
    """Raises `ConfigError` at the first thing that cannot be.

    Args:
      config: what a file and the flags made of `default()`.
      num_classes: of the dataset; looked up by its name if None. For a dataset that
        is not in `DATASET_CLASSES`, call `check_classes` once it is loaded.
    """
    _check_is_config(config)
    schema = flatten(default())
    values = flatten(config)
    for key in values:
        if key not in schema:
            raise unknown_key(key)
    for key, kept in schema.items():
        if key not in values:
            raise ConfigError(
                f"the key {key} is missing; start from fuprune.config.default()."
            )
        _check_type(key, values[key], kept)
    for key, rule in _RULES.items():
        if not rule.holds(values[key]):
            raise ConfigError(
                f"{key} is {_shown(values[key])}; allowed: {rule.allowed}."
            )
    _check_together(config)
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


def check_classes(config: Config, num_classes: int) -> None:
    """Raises `ConfigError` unless the dataset has the classes and some others."""
    wanted = classes(config)
    for number in wanted:
        if not 0 <= number < num_classes:
            raise ConfigError(
                f"unlearn.classes names class {number}; allowed: 0 to "
                f"{num_classes - 1}, the classes of {config.data.name}."
            )
    if len(wanted) >= num_classes:
        raise ConfigError(
            f"unlearn.classes names all {num_classes} classes of {config.data.name}; "
            f"allowed: at most {num_classes - 1}, for something must remain."
        )


def unknown_key(key: str) -> ConfigError:
    """Returns the error for a key that is not in the schema, with a suggestion."""
    known = list(flatten(default()))
    sections = sorted({name.rsplit(".", 1)[0] for name in known if "." in name})
    leaf = key.rsplit(".", 1)[-1]
    close = (
        difflib.get_close_matches(key, known, n=1, cutoff=0.75)
        or [name for name in known if name.rsplit(".", 1)[-1] == leaf]
        or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    )
    if key in sections:
        inside = [name for name in known if name.startswith(key + ".")]
        return ConfigError(f"{key} is a group of keys; allowed: {', '.join(inside)}.")
    if close:
        return ConfigError(
            f"unknown key {_shown(key)}; did you mean {' or '.join(close)}?"
        )
    section = key.split(".", 1)[0]
    inside = [name for name in known if name.startswith(section + ".")]
    top = [name for name in known if "." not in name] + sections
    return ConfigError(
        f"unknown key {_shown(key)}; allowed: {', '.join(inside or top)}."
    )


def wrong_type(key: str, value: Any) -> ConfigError:
    """Returns the error for a value of another type than the key's."""
    wanted = type(flatten(default())[key])
    return ConfigError(
        f"{key} is {_shown(value)}; allowed: {_TYPE_NAMES.get(wanted, 'a list')}."
    )


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
    """Rebuilds a config from `to_json`; keys of later versions take their default.

    Raises:
      ConfigError: if a key is unknown or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"the stored configuration is {_shown(values)}; allowed: a dictionary."
        )
    config = default()
    schema = flatten(config)
    for key, value in flatten(values).items():
        if key not in schema:
            raise unknown_key(key)
        if isinstance(value, list):
            value = tuple(value)
        _check_type(key, value, schema[key])
        holder, leaf = config, key
        while "." in leaf:
            section, leaf = leaf.split(".", 1)
            holder = holder[section]
        holder[leaf] = value
    return config


def difference(
    old: Mapping[str, Any] | Config,
    new: Mapping[str, Any] | Config,
) -> list[str]:
    """Returns the dotted keys in which a resumed run would differ from the stored one.

    Keys that cannot change a result are left out: which phases run, how often
    checkpoints are written, which points the privacy curve has, and all of `runtime`
    except the type computed in. A key
    that one side lacks counts as its default, so runs of earlier versions resume.
    """
    fallback = flatten(default())
    ours, theirs = {**fallback, **flatten(old)}, {**fallback, **flatten(new)}
    return [
        key
        for key in sorted(ours.keys() | theirs.keys())
        if not _may_differ(key)
        and _comparable(key, ours.get(key)) != _comparable(key, theirs.get(key))
    ]


def _may_differ(key: str) -> bool:
    if key.startswith("runtime."):
        return key != "runtime.dtype"
    return key in (
        "phases",
        "data.dir",
        "train.checkpoint_every",
        "train.checkpoint_keep",
        "privacy.curve",  # its points stand beside the other results
        "privacy.curve_fine_tune",
    )


def _comparable(key: str, value: Any) -> Any:
    """The same for every way to write the same list."""
    if key in _LISTS and not isinstance(value, bool):
        try:
            return _parts(value, key, "")
        except ConfigError:
            pass
    return tuple(value) if isinstance(value, list) else value


def _either(value: Any) -> config_dict.FieldReference:
    """A leaf that takes a string, a number or a tuple."""
    return config_dict.FieldReference(value, field_type=object)


_LISTS = ("phases", "unlearn.methods", "unlearn.classes", "audit.tests")


def _parts(value: Any, key: str, allowed: str) -> tuple[str, ...]:
    """Splits "a,b", ("a", "b") or 9 into strings."""
    if isinstance(value, (tuple, list)):
        pieces = list(value)
    elif isinstance(value, str):
        pieces = value.split(",")
    else:
        pieces = [value]
    # A bool is an int to isinstance, and what a flag without a value gives.
    if not pieces or not all(type(piece) in (str, int) for piece in pieces):
        raise ConfigError(f"{key} is {_shown(value)}; allowed: {allowed}.")
    return tuple(str(piece).strip() for piece in pieces)


def _is_all(value: Any) -> bool:
    return value in ("all", ("all",), ["all"])


def _names(value: Any, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names in a list-like leaf, each one of those known and none twice."""
    allowed = f"all, or some of {', '.join(known)}"
    if _is_all(value):
        return known
    names = _parts(value, key, allowed)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(f"{key} names {_shown(name)}{hint}; allowed: {allowed}.")
    return tuple(dict.fromkeys(names))


def _shown(value: Any) -> str:
    """The value on one line, shortened, with nothing a terminal would obey."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= 80 else text[:77] + "..."


_TYPE_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def _check_type(key: str, value: Any, kept: Any) -> None:
    if key in _LISTS:
        return  # read by _parts, which is as strict
    wanted = type(kept)
    # A bool is an int to isinstance; True clients is a slip.
    fits = type(value) is wanted or (
        wanted is float and type(value) is int and abs(value) < 1e300
    )
    if not fits:
        raise wrong_type(key, value)


class _Rule(NamedTuple):
    holds: Callable[[Any], bool]
    allowed: str


def _one_of(*names: str) -> _Rule:
    return _Rule(lambda value: value in names, ", ".join(names))


def _number(low: float, high: float = math.inf, *, but: float | None = None) -> _Rule:
    """A finite number from low to high, or the one special value."""
    span = f"{low} to {high}" if high < math.inf else f"{low} or more"
    extra = "" if but is None else f", or {but}"
    return _Rule(
        lambda value: value < math.inf and (low <= value <= high or value == but),
        span + extra,
    )


def _positive(high: float = math.inf) -> _Rule:
    bound = "" if high == math.inf else f" and at most {high:g}"
    return _Rule(
        lambda value: value < math.inf and 0 < value <= high,
        f"more than 0{bound}",
    )


def _below_one() -> _Rule:
    return _Rule(lambda value: 0 <= value < 1, "0 or more and less than 1")


def _text(pattern: str, allowed: str) -> _Rule:
    return _Rule(lambda value: re.fullmatch(pattern, value) is not None, allowed)


_COUNT = 2**31 - 1
_PATH = _text(r"[^\x00-\x1f]*", "a path without control characters")
_SCHEDULE = _one_of("constant", "cosine", "warmup_cosine")

# What each leaf may be by itself; booleans need no rule, lists are read by _names.
_RULES: dict[str, _Rule] = {
    "seed": _number(0, _COUNT),
    "data.name": _text(
        r"[a-z][a-z0-9_]*(/[A-Za-z0-9_.-]+)?(:\d+\.\d+\.\d+)?",
        "digits, cifar10, cifar100, mnist, fashion_mnist or another TFDS name in "
        "lower case, such as emnist/letters",
    ),
    "data.dir": _PATH,
    "data.limit": _number(0, _COUNT),
    "data.test_limit": _number(0, _COUNT),
    "partition.kind": _one_of("bias", "dirichlet", "iid"),
    "partition.clients": _number(1, 10_000_000),
    "partition.bias": _number(0, 1),
    "partition.alpha": _positive(1e6),
    "model.name": _one_of(*MODELS),
    "model.norm": _one_of("batch", "group"),
    "model.load": _PATH,
    "train.algorithm": _one_of("fed_avg", "fed_sgd"),
    "train.rounds": _number(0, _COUNT),
    "train.cohort": _number(1, 10_000_000),
    "train.local_epochs": _number(1, 10_000),
    "train.batch_size": _number(0, 1_000_000),
    "train.optimizer": _one_of("sgd", "adam"),
    "train.learning_rate": _positive(1e3),
    "train.momentum": _below_one(),
    "train.weight_decay": _number(0, 1000),
    "train.schedule": _SCHEDULE,
    "train.warmup_rounds": _number(0, _COUNT),
    "train.server_optimizer": _one_of("sgd", "adam"),
    "train.server_learning_rate": _positive(1e3),
    "train.bn": _one_of("aggregate", "local", "recalibrate"),
    "train.label_smoothing": _below_one(),
    "train.dropout_rate": _below_one(),
    "train.aggregation": _one_of("mean", "clipped_mean", "median", "trimmed_mean"),
    "train.clip_norm": _positive(),
    "train.trim": _Rule(lambda value: 0 <= value < 0.5, "0 or more and less than 0.5"),
    "train.max_update_norm": _number(0),
    "train.min_participants": _number(1, 10_000_000),
    "train.target_accuracy": _number(0, 1),
    "train.evaluate_every": _number(1, _COUNT),
    "train.checkpoint_every": _number(1, _COUNT),
    "train.checkpoint_keep": _number(1, 1000),
    "train.history_bytes": _number(0, 2**63 - 1),
    "unlearn.method": _text(r"[^\x00-\x1f]*", f"one of {', '.join(METHODS)}"),
    "unlearn.retrain_seeds": _number(1, 1000),
    "prune.rate": _below_one(),
    "prune.scope": _one_of("global", "layer", "balanced"),
    "prune.order": _one_of("highest", "lowest", "random"),
    "prune.min_channels": _number(1, 4096),
    "prune.idf": _one_of("paper", "released"),
    "prune.weighting": _one_of("examples", "clients"),
    "prune.surgery": _one_of("compact", "mask"),
    "prune.capture_clients": _number(0, 10_000_000),
    "privacy.epsilon": _number(0),
    "privacy.delta": _Rule(lambda value: 0 < value < 1, "more than 0, less than 1"),
    "privacy.clip": _positive(),
    "privacy.min_count": _number(0, _COUNT),
    "fine_tune.rounds": _number(0, _COUNT),
    "fine_tune.target_accuracy": _number(0, 1, but=-1),
    "fine_tune.learning_rate": _number(0, 1000),
    "fine_tune.schedule": _SCHEDULE,
    "fine_tune.evaluate_every": _number(1, _COUNT),
    "fine_tune.seeds": _number(1, 1000),
    "fisher.variant": _one_of("golatkar", "paper"),
    "fisher.alpha": _positive(),
    "fisher.max_variance": _positive(),
    "fisher.max_examples": _number(0, _COUNT),
    "fisher.damping": _positive(),
    "fisher.chunk": _number(1, 65_536),
    "influence.damping": _positive(),
    "influence.iterations": _number(1, 100_000),
    "influence.tolerance": _Rule(lambda value: 0 < value < 1, "more than 0, below 1"),
    "influence.max_examples": _number(0, _COUNT),
    "ascent.rounds": _number(0, _COUNT),
    "ascent.learning_rate": _positive(1e3),
    "ascent.loss_cap": _positive(),
    "regrow.share": _number(0, 1),
    "regrow.shrink": _number(0, 1),
    "relabel.answer": _one_of("nearest", "random"),
    "audit.retrained": _number(0, 1000),
    "audit.reference": _PATH,
    "audit.models": _PATH,
    "audit.confidence": _Rule(lambda value: 0.5 <= value < 1, "0.5 or more, below 1"),
    "audit.max_examples": _number(2, _COUNT),
    "audit.batch_size": _number(1, 65_536),
    "audit.shadows": _Rule(
        lambda value: 0 <= value <= 1000 and value % 2 == 0, "0 to 1000, even"
    ),
    "audit.shadow_steps": _number(1, 1_000_000),
    "audit.shadow_learning_rate": _positive(1e3),
    "audit.relearn_level": _positive(1),
    "audit.relearn_max_steps": _number(1, 1_000_000),
    "audit.relearn_every": _number(1, 1_000_000),
    "audit.relearn_learning_rate": _positive(1e3),
    "runtime.backend": _one_of("auto", "loop", "map", "vmap", "wide", "shard_map"),
    "runtime.dtype": _one_of("float32", "bfloat16"),
    "runtime.conv": _one_of("auto", "xla", "onednn"),
    "runtime.devices": _number(0, 1024),
    "runtime.compilation_cache": _PATH,
    "runtime.heartbeat_seconds": _number(1, 86_400),
    "runtime.join_seconds": _number(1, 86_400),
    "runtime.pool": _one_of("split", "whole"),
    "runtime.progress": _one_of("auto", "plain", "off"),
}


def _check_together(config: Config) -> None:
    """Refuses values that are fine by themselves and not with each other."""
    clients, train = config.partition.clients, config.train
    if train.cohort > clients:
        raise ConfigError(
            f"train.cohort is {train.cohort}; allowed: at most partition.clients, "
            f"which is {clients}."
        )
    if config.prune.capture_clients > clients:
        raise ConfigError(
            f"prune.capture_clients is {config.prune.capture_clients}; allowed: at "
            f"most partition.clients, which is {clients}."
        )
    if train.min_participants > train.cohort:
        raise ConfigError(
            f"train.min_participants is {train.min_participants}; allowed: at most "
            f"train.cohort, which is {train.cohort}."
        )
    if train.algorithm == "fed_avg" and train.batch_size == 0:
        raise ConfigError(
            "train.batch_size is 0; allowed: 1 or more with fed_avg (0 means all of a "
            "client's images, and is for fed_sgd)."
        )
    if train.schedule == "warmup_cosine" and train.warmup_rounds >= train.rounds:
        raise ConfigError(
            f"train.warmup_rounds is {train.warmup_rounds}; allowed: less than "
            f"train.rounds, which is {train.rounds}."
        )
    phases(config)
    audit_tests(config)
    classes(config)
    privacy_curve(config)
    if "amnesiac" in methods(config) and not train.history_bytes:
        raise ConfigError(
            "unlearn.methods names amnesiac while train.history_bytes is 0; allowed: "
            "the bytes to keep updates in, such as 1000000000."
        )
