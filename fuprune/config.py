"""The configuration of a run: typed sections, files and flags that set them, checks.

A value is checked when it is set, and `validate` refuses values that make no sense
together, before any data are read. Only `main`, `fuprune.run` and `fuprune.flower` see
a config: the functions of the other rooms take plain arguments.
"""

import dataclasses
import importlib.util
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from fuprune import options as options_lib
from fuprune import results
from fuprune.audit.options import AuditOptions
from fuprune.data.known_sets import find_known
from fuprune.errors import (
    ConfigError,
    FupruneError,
    MissingPackageError,
    UsageError,
    check_classes,
)
from fuprune.models.brought import named_factories
from fuprune.options import (
    matching,
    option,
    options,
    quoted,
    some_of,
    whole_numbers,
    within,
)
from fuprune.unlearning.methods import METHODS

_Class = TypeVar("_Class")

PHASES = ("pretrain", "unlearn", "audit", "report")
MODELS = (
    *(f"resnet{depth}" for depth in (8, 20, 32, 44, 56)),
    *(f"vgg{depth}" for depth in (11, 13, 16, 19)),
)
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
OneOrMore = Annotated[int, Field(ge=1, le=2**31 - 1)]
Clients = Annotated[int, Field(ge=1, le=10_000_000)]
ClientsOrNone = Annotated[int, Field(ge=0, le=10_000_000)]
Models = Annotated[int, Field(ge=1, le=1000)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, le=1000)]
Schedule = Literal["constant", "cosine", "warmup_cosine"]
Optimizer = Literal["sgd", "adam"]
Averaging = Literal["mean", "clipped_mean", "median", "trimmed_mean"]
Backend = Literal["auto", "loop", "map", "vmap", "shard_map"]
Dealing = Literal["bias", "dirichlet", "iid", "pathological", "natural", "file"]
_LINE = r"[^\x00-\x1f]"
Place = Annotated[str, matching(f"{_LINE}*", "a path without control characters")]
Dataset = Annotated[
    str,
    matching(
        r"[a-z][a-z0-9_]*(/[A-Za-z0-9_.-]+)?(:\d+\.\d+\.\d+)?"
        rf"|(npz|folder):{_LINE}+|hf:\S+",
        "digits, cifar10, cifar100, mnist, fashion_mnist or another TFDS name in lower "
        "case, such as emnist/letters; or npz:PATH, folder:PATH, hf:NAME",
    ),
]
_NETWORKS = (*MODELS, *named_factories())
Network = Annotated[
    str,
    matching(
        rf"{'|'.join(_NETWORKS)}|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
        f"{', '.join(_NETWORKS)}, or package.module:factory",
    ),
]
Target = Annotated[
    float, within(lambda value: 0 <= value <= 1 or value == -1, "0 to 1, or -1")
]
Numbers = int | tuple[int, ...] | str  # one, several, or "" for none
_CLASSES = whole_numbers("class numbers, each once, such as 9 or 0,9")
_CLIENTS = whole_numbers("client numbers, each once, such as 3 or 3,17, or nothing")


# A table reads better by row than by argument.
# fmt: off
@options
class Data:
    """The images."""

    name: Dataset = option("cifar10",
        "a TFDS name, digits, npz:FILE, folder:PATH or hf:NAME")
    dir: Place = option("",
        "directory of the datasets; '' is $TFDS_DATA_DIR or TFDS's default")
    limit: Count = option(0, "first n training images of each class; 0 uses all")
    test_limit: Count = option(0, "first n test images of each class; 0 uses all")
    validation: BelowOne = option(0.1,
        "share of each client's images held out for targets and early stops")
    choose_on: Literal["validation", "test"] = option("validation",
        "images that decide targets and early stops; the paper uses the test set")
    normalise: Literal["constants", "federated", "central"] = option("constants",
        "mean and deviation of colours: published, from sums of clients, of all images")


@options
class Partition:
    """How the training images are dealt to clients."""

    kind: Dealing = option("bias",
        "how to split; bias is the paper's q, natural follows a column of the data")
    clients: Clients = option(100, "K, the number of clients")
    bias: Share = option(0.1,
        "q: 1 / number of classes is IID, 1 is one class per client")
    alpha: float = option(0.5,
        "for dirichlet: smaller values are more uneven", gt=0, le=1000000.0)
    classes_per_client: OneOrMore = option(2,
        "for pathological: the number of classes per client")
    column: Place = option("client",
        "for natural: the column that names the client of each image")
    file: Place = option("", "for file: lines of image numbers, one line per client")


@options
class Model:
    """The network."""

    name: Network = option("resnet20",
        "a built-in network, or package.module:factory for your own")
    norm: Literal["batch", "group"] = option("batch", "normalisation layers")
    load: Place = option("", "a saved model to start from; '' pre-trains one")


@options
class Train:
    """Federated training: pre-training and retraining."""

    algorithm: Literal["fed_avg", "fed_sgd"] = option("fed_sgd",
        "fed_sgd averages one gradient per client in each round")
    rounds: Count = option(2000, "rounds of pre-training and of retraining")
    cohort: Clients = option(25, "clients per round")
    local_epochs: int = option(1, "for fed_avg: E, local epochs", ge=1, le=10000)
    local_steps: Count = option(0,
        "for fed_avg: at most this many local steps per round; 0 takes all epochs")
    batch_size: int = option(128,
        "images per local step; in fed_sgd, 0 uses all", ge=0, le=1000000)
    optimizer: Optimizer = option("sgd",
        "used by clients in fed_avg, and by the server in fed_sgd")
    learning_rate: Rate = option(0.1, "learning rate of that optimizer, at its peak")
    momentum: BelowOne = option(0.9, "momentum of sgd")
    nesterov: bool = option(True, "Nesterov momentum, for sgd")
    weight_decay: float = option(0.0005,
        "L2 penalty, added to the gradient (decoupled for adam)", ge=0, le=1000)
    schedule: Schedule = option("cosine", "learning rate over rounds; cosine ends at 0")
    warmup_rounds: Count = option(0, "for warmup_cosine: rounds of warm-up")
    server_optimizer: Optimizer = option("sgd", "applies the mean update of fed_avg")
    server_learning_rate: Rate = option(1.0,
        "learning rate of that optimizer; with sgd, 1 is the plain mean")
    bn: Literal["aggregate", "local", "recalibrate"] = option("aggregate",
        "what happens to the clients' BatchNorm statistics")
    augment: bool = option(True, "random crops and flips")
    label_smoothing: BelowOne = option(0.0, "smoothing of the labels in the loss")
    dropout_rate: BelowOne = option(0.0,
        "probability that a client drops out of a round")
    aggregation: Averaging = option("mean", "how the clients' updates are combined")
    clip_norm: Positive = option(10.0, "for clipped_mean: the largest L2 norm")
    trim: float = option(0.1,
        "for trimmed_mean: the share dropped at each end", ge=0, lt=0.5)
    max_update_norm: NotNegative = option(0.0,
        "updates with a larger L2 norm are rejected; 0 accepts all")
    min_participants: Clients = option(1,
        "a round with fewer valid updates is repeated")
    target_accuracy: Share = option(0.0, "stop at this accuracy; 0 runs every round")
    evaluate_every: OneOrMore = option(20, "rounds between evaluations")
    checkpoint_every: OneOrMore = option(100, "rounds between checkpoints")
    checkpoint_keep: Models = option(2,
        "checkpoints kept per phase; with 2 or more, there is one to fall back on")
    history_interval: Count = option(0,
        "keep every n-th round, for fed_eraser and, with n = 1, amnesiac; 0 keeps none")


@options
class Unlearn:
    """What is forgotten, and how."""

    methods: Annotated[str, some_of(*METHODS)] = option("class_pruning,retrain",
        "methods to run, in this order; all skips those that lack kept rounds")
    method: Annotated[str, some_of(*METHODS, or_nothing=True)] = option("",
        "a single method, in place of unlearn.methods")
    classes: Annotated[Numbers, _CLASSES] = option(9,
        "classes to forget, in this order: 9, '0,9' or (0, 9)")
    clients: Annotated[Numbers, _CLIENTS] = option("", "clients to forget: '3,17'")
    examples: Place = option("",
        "a file with the positions of the training images to forget")
    retrain_seeds: Models = option(1,
        "how many models to retrain; the audit uses their spread")
    retrain_first: Models = option(1,
        "seed of the first of them, so that several runs can share the work")
    participants: ClientsOrNone = option(0,
        "number of clients whose images a method reads; 0 means train.cohort")


@options
class FineTune:
    """Training on what remains, for the methods that need it."""

    rounds: Count = option(200, "maximum number of rounds")
    target_accuracy: Target = option(-1.0,
        "R-set accuracy to reach; -1 is the raw model's, 0 sets no target")
    stop_at_target: bool = option(True,
        "stop at the target, as in the paper; False runs every round")
    learning_rate: float = option(0.0, "0 means train.learning_rate", ge=0, le=1000)
    schedule: Schedule = option("constant", "learning rate over rounds")
    warmup_rounds: Count = option(0, "for warmup_cosine: rounds of warm-up")
    evaluate_every: OneOrMore = option(1, "rounds between evaluations")
    seeds: Models = option(1,
        "how often the methods of fine_tune.seeded are run, to show the spread")
    seeded: Annotated[str, some_of(*METHODS)] = option("class_pruning",
        "methods with several seeds")
    distill_weight: Share = option(0.0,
        "share of the trained model's answers in the loss; 0 learns from labels alone")
    distill_temperature: Positive = option(1.0, "temperature of these answers")


@options
class Audit(AuditOptions):
    """What the audit measures, and which models it judges."""

    seeds: Literal["first", "all"] = option("all",
        "which models of a method with several seeds are judged")
    retrained: int = option(0,
        "number of retrained models to compare with; 0 uses all", ge=0, le=1000)
    reference: Place = option("",
        "other runs, such as runs/a,results/b, whose retrained models are used too")
    models: Place = option("",
        "further saved models to audit: name=place,name=place, folders or files")
    backdoor: Share = option(0.0,
        "share of leaving clients' images that get a trigger before training")


@options
class Runtime:
    """The machine; beyond rounding, only dtype can change a result."""

    backend: Backend = option("auto", "how the clients of a round are run")
    dtype: Literal["auto", "float32", "bfloat16"] = option("float32",
        "number format of activations; auto is bfloat16 where it is multiplied faster")
    conv: Literal["auto", "xla", "onednn"] = option("auto",
        "library for convolutions; onednn is for CPUs")
    devices: int = option(0, "number of CPU devices; 0 is automatic", ge=0, le=1024)
    compilation: Literal["full", "quick"] = option("full",
        "how hard XLA optimises; quick compiles in half the time, for short runs")
    compilation_cache: Place = option("auto",
        "directory of compiled programs; auto is in ~/.cache, '' is none")
    heartbeat_seconds: Seconds = option(100,
        "seconds of silence after which a process counts as dead")
    join_seconds: Seconds = option(60,
        "seconds that processes wait for each other at the start")
    pool: Literal["split", "whole"] = option("split",
        "images that each of several processes holds: its own clients', or all")
    tensorboard: bool = option(False, "write TensorBoard events (needs the extra)")
    progress: Literal["auto", "plain", "off"] = option("auto",
        "progress display; auto is live on a terminal")


def _with_methods(cls: type[_Class]) -> type[_Class]:
    """Adds the sections of the methods, each made of a method's own options."""
    for method in METHODS.values():
        for name, kind in method.sections.items():
            if name not in cls.__annotations__:
                cls.__annotations__[name] = kind
                setattr(cls, name, Field(default_factory=kind))
    return cls


@options
@_with_methods
class Config:
    """All sections, and the keys of the run itself."""

    seed: Count = option(0, "all random choices of the run derive from it")
    phases: Annotated[str, some_of(*PHASES)] = option("all",
        "which phases to run, such as unlearn,report")
    data: Data = Field(default_factory=Data)
    partition: Partition = Field(default_factory=Partition)
    model: Model = Field(default_factory=Model)
    train: Train = Field(default_factory=Train)
    unlearn: Unlearn = Field(default_factory=Unlearn)
    fine_tune: FineTune = Field(default_factory=FineTune)
    audit: Audit = Field(default_factory=Audit)
    runtime: Runtime = Field(default_factory=Runtime)

    if TYPE_CHECKING:  # sections of methods

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self):
        """Lets errors name keys with their sections."""
        for name, section in sections(self).items():
            options_lib.name_in_errors(section, f"{name}.")
# fmt: on


def sections(config: Config) -> dict[str, Any]:
    """Returns the sections of a config by name."""
    values = {name: getattr(config, name) for name in options_lib.fields(Config)}
    return {n: x for n, x in values.items() if dataclasses.is_dataclass(x)}


def default() -> Config:
    """Returns the whole schema, set as in the paper for CIFAR-10 and ResNet20."""
    return Config()


# What each key may be, by dotted name: pydantic's description of the field.
KEYS: dict[str, Any] = {
    name: field
    for name, field in options_lib.fields(Config).items()
    if not dataclasses.is_dataclass(field.annotation)
} | {
    f"{name}.{leaf}": field
    for name, section in sections(default()).items()
    for leaf, field in options_lib.fields(type(section)).items()
}
# What cannot change a result that is there.
_MAY_DIFFER = {
    *("phases", "data.dir", "train.checkpoint_every", "train.checkpoint_keep"),
    *(name for name in KEYS if name.startswith("runtime.") and name != "runtime.dtype"),
}


def flatten(config: Mapping[str, Any] | Config, prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of a config, or of its dictionary, by dotted key."""
    if not isinstance(config, Mapping):
        config = dataclasses.asdict(config)
    leaves = {}
    for key, value in config.items():
        inner = isinstance(value, Mapping)
        leaves |= flatten(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return leaves


def describe(config: Config) -> dict[str, list[tuple[str, Any, str]]]:
    """Returns the name, value and use of each key by the title of its section."""
    described: dict[str, list[tuple[str, Any, str]]] = {}
    for name, value in flatten(config).items():
        section, field = name.rpartition(".")[0], KEYS[name]
        about = (getattr(config, section).__doc__ if section else None) or ""
        title = f"{section or 'run'}: {about[:1].lower()}{about[1:].rstrip('.')}"
        words = options_lib.choices(field)
        use = field.description + (f" [{', '.join(words)}]" if words else "")
        described.setdefault(title, []).append((name, value, use))
    return described


def describe_keys(config: Config) -> str:
    """Returns every key with its value and use, by section, for `--help`."""
    lines = ["Keys and their values here"]
    for title, rows in describe(config).items():
        lines += ["", title]
        for name, value, use in rows:
            text = f"{f'  {name} = {value!r}':<37} {use}"
            lines += textwrap.wrap(text, 88, subsequent_indent=" " * 38)
    return "\n".join(lines)


def unknown_key(name: str) -> ConfigError:
    """Returns the error for a key that is not in the schema, with a suggestion."""
    group, _, leaf = name.rpartition(".")
    inside = [key for key in KEYS if key.startswith(f"{group or name}.")]
    if inside and not group:
        return ConfigError(f"{name} is a group of keys; allowed: {', '.join(inside)}.")
    same = [key for key in KEYS if key.rpartition(".")[2] == leaf]
    hint = options_lib.closest(name, same or KEYS, 0.0 if same else 0.6)
    top = dict.fromkeys(key.partition(".")[0] for key in KEYS)
    hint = hint or f"allowed: {', '.join(inside or top)}."
    return ConfigError(f"unknown key {quoted(name)}; {hint}")


def place(config: Config, name: str) -> tuple[Any, str]:
    """Returns the section that holds a key, and the key's name in it."""
    if name not in KEYS:
        raise unknown_key(name)
    section, _, leaf = name.rpartition(".")
    return (getattr(config, section) if section else config), leaf


def update(config: Config, values: Mapping[str, Any]) -> None:
    """Sets keys by their dotted names."""
    for name, value in values.items():
        section, leaf = place(config, name)
        setattr(section, leaf, value)


def read(config: Config, name: str) -> Any:
    """Returns what the value of a key means: a list such as "0,9" as a tuple."""
    section, leaf = place(config, name)
    value = getattr(section, leaf)
    kinds = [m for m in KEYS[name].metadata if isinstance(m, options_lib.Kind)]
    return kinds[0].read(value) if kinds else value


def phases(config: Config) -> tuple[str, ...]:
    """Returns the phases to run, in the order they run."""
    wanted = read(config, "phases")
    return tuple(phase for phase in PHASES if phase in wanted)


def classes(config: Config) -> tuple[int, ...]:
    """Returns the classes to forget, in the order they are cut; none for others."""
    return read(config, "unlearn.classes") if request_kind(config) == "classes" else ()


def request_kind(config: Config) -> str:
    """Returns what is to be forgotten: `classes`, `clients` or `examples`.

    The default of `unlearn.classes` gives way to the other two.
    """
    unlearn = config.unlearn
    kinds = [k for k in ("classes", "clients", "examples") if getattr(unlearn, k) != ""]
    if len(kinds) > 1 and unlearn.classes == Unlearn().classes:
        kinds.remove("classes")
    if len(kinds) != 1:
        raise ConfigError(
            f"unlearn names {' and '.join(kinds) or 'nothing'} to forget; allowed: one "
            "of classes, clients and examples, with '' for the others."
        )
    return kinds[0]


def methods(config: Config) -> tuple[str, ...]:
    """Returns the methods to run, in the order given, that serve the request.

    Where others fall away, retraining and controls alone would leave nothing to judge:
    then comes `fed_eraser` if rounds are kept, else `sisa`.
    """
    unlearn, kind = config.unlearn, request_kind(config)
    named = read(config, "unlearn.method" if unlearn.method else "unlearn.methods")
    left = [name for name in named if kind in METHODS[name].serves]
    if not unlearn.method and unlearn.methods == "all":
        left = [name for name in left if _keeps_enough(config, name)]
    if not left:
        fit = [name for name, method in METHODS.items() if kind in method.serves]
        raise ConfigError(
            f"unlearn.methods names {', '.join(named)}, which serves other requests, "
            f"while unlearn.{kind} is given; allowed: some of {', '.join(fit)}."
        )
    judged = [n for n in left if n != "retrain" and not METHODS[n].control]
    if len(left) < len(named) and not judged:
        fits = config.sisa.shards <= config.partition.clients
        kept = config.train.history_interval
        left += ["fed_eraser"] if kept else ["sisa"] if fits else []
    return tuple(left)


def validate(config: Config) -> None:
    """Raises `ConfigError` at the first values that make no sense together.

    `check_counts` checks what depends on data that are not known by name.
    """
    if not isinstance(config, Config):
        raise ConfigError(
            f"the configuration is a {type(config).__name__}; allowed: that of "
            "fuprune.config.default(), with values changed."
        )
    train, privacy = config.train, config.privacy
    kind, averages = request_kind(config), train.algorithm == "fed_avg"
    private = privacy.secure_sum or privacy.epsilon
    cuts = any("prune" in METHODS[name].sections for name in methods(config))
    for wrong, name, rest in (
        (
            train.min_participants > train.cohort,
            "train.min_participants",
            f"at most train.cohort, which is {train.cohort}",
        ),
        (
            averages and not train.batch_size,
            "train.batch_size",
            "1 or more with fed_avg (0: all images of a client, is for fed_sgd)",
        ),
        (
            train.local_steps and not averages,
            "train.local_steps",
            "0 with fed_sgd, whose clients take no steps of their own",
        ),
        (
            kind == "classes" and config.audit.backdoor,
            "audit.backdoor",
            "0 for classes (it is planted in clients' or single images)",
        ),
        (
            config.prune.weighting != "examples" and private,
            "prune.weighting",
            "examples with privacy, which shows the server sums over clients only",
        ),
        (
            cuts and privacy.epsilon and config.prune.rate == "auto",
            "prune.rate",
            "a number with privacy.epsilon, which covers no answers to cuts",
        ),
    ):
        if wrong:
            raise _refusal(config, name, rest)
    if privacy.epsilon and importlib.util.find_spec("dp_accounting") is None:
        raise MissingPackageError("dp_accounting", "privacy", "privacy.epsilon")
    for name in methods(config):
        if not _keeps_enough(config, name):
            more = "" if METHODS[name].needs_every_round else " or more"
            raise ConfigError(
                f"unlearn.methods names {name} while train.history_interval is "
                f"{config.train.history_interval}; allowed: 1{more} "
                f"({KEYS['train.history_interval'].description})."
            )
    counted = config.partition.kind not in ("natural", "file")
    clients = config.partition.clients if counted else None
    known = find_known(config.data.name)
    check_counts(config, clients, len(known.class_names) if known else None)


def _keeps_enough(config: Config, name: str) -> bool:
    """Whether the training keeps the rounds that a method needs."""
    method, interval = METHODS[name], config.train.history_interval
    if not method.needs:
        return True
    return interval == 1 if method.needs_every_round else interval > 0


def _refusal(config: Config, name: str, rest: str) -> ConfigError:
    return ConfigError(f"{name} is {quoted(read(config, name))}; allowed: {rest}.")


def check_counts(
    config: Config, num_clients: int | None, num_classes: int | None
) -> None:
    """Raises `ConfigError` if more clients or classes are named than there are.

    A number is None as long as it is not known.
    """
    if num_clients is not None:
        names = ["train.cohort", "unlearn.participants", "prune.capture_clients"]
        for name in names + ["sisa.shards"] * ("sisa" in methods(config)):
            if read(config, name) > num_clients:
                rest = f"at most partition.clients, which is {num_clients}"
                raise _refusal(config, name, rest)
    if num_classes is not None and request_kind(config) == "classes":
        names = dict(name="unlearn.classes", dataset=config.data.name)
        check_classes(classes(config), num_classes, **names)


def to_json(config: Config) -> dict[str, Any]:
    """Returns the config as nested dictionaries that `json.dumps` takes."""
    # Through JSON and back, so that it compares equal to what a file holds.
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(values: Mapping[str, Any]) -> Config:
    """Rebuilds a config from `to_json`, of this version or another.

    A key that it lacks takes its default; one that this version lacks is ignored.
    """
    config, leaves = default(), flatten(values)
    known = KEYS.keys() | sections(config).keys()
    update(config, {name: leaves[name] for name in leaves if name in known})
    return config


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the keys in which a resumed run would differ from the stored one.

    Keys that cannot change a result are left out. One that a side lacks counts as its
    default, and one that this version lacks does not count.
    """
    ours, theirs = flatten(from_json(old)), flatten(from_json(new))
    return sorted(n for n in KEYS.keys() - _MAY_DIFFER if ours[n] != theirs[n])


def is_of_audit_alone(name: str) -> bool:
    """Whether nothing before the audit reads a key; a backdoor is in the images."""
    return name.startswith("audit.") and name != "audit.backdoor"


def shipped_configs() -> dict[str, Path]:
    """Returns the config files that come with the package, by bare name."""
    package = Path(__file__).parent
    inside = package / "_configs"  # in a wheel; a checkout has them at its top
    folder = inside if inside.is_dir() else package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}


def load_config(
    text: str, overrides: Mapping[str, str] | None = None
) -> tuple[str, Config]:
    """Runs the `get_config` of a config file, and sets some keys anew.

    A file may also have `finish(config, keys)`, which is called at the end with the
    keys that were set anew.

    Args:
      text: path or shipped name, and after a colon what `get_config` is given:
        configs/cifar10_resnet.py:56 or cifar10_resnet:56. The config.json of a run
        gives its config again.
      overrides: values, written as text, by dotted key.

    Returns:
      A name for the run, and the config.
    """
    name, colon, argument = text.partition(":")
    shipped = shipped_configs()
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise UsageError(
            f"there is no config file {name!r}; allowed: {', '.join(shipped)}, or the "
            "path of a Python file with get_config(), or no --config for the "
            "quickstart."
        )
    if path.suffix == ".json":
        config = from_json(results.read_provenance(path.parent).config)
        _override(config, overrides or {})
        return path.absolute().parent.name, config
    arguments = [argument] if colon else []
    try:
        spec: Any = importlib.util.spec_from_file_location("fuprune_run_config", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        config = module.get_config(*arguments)
    except FupruneError:
        raise
    except Exception as error:
        raise UsageError(
            f"the config file {name} failed: {type(error).__name__}: {error}"
        ) from error
    if isinstance(config, Config):  # `validate` refuses anything else
        _override(config, overrides or {})
        if hasattr(module, "finish"):
            module.finish(config, set(overrides or ()))
    return "_".join([path.stem, *arguments]), config


def _override(config: Config, overrides: Mapping[str, str]) -> None:
    for key, text in overrides.items():
        section, leaf = place(config, key)
        where = key.removesuffix(leaf)
        try:
            value = options_lib.read_text(type(section), leaf, text, where)
        except ConfigError as error:
            dataset = overrides.get("data.name", config.data.name)
            numbers = _class_numbers(dataset, text) if key == "unlearn.classes" else ""
            raise ConfigError(f"{error}{numbers}") from None
        setattr(section, leaf, value)


def _class_numbers(dataset: str, text: str) -> str:
    """Which number is which class, all or those that a text names."""
    known = find_known(dataset)
    names = list(enumerate(known.class_names if known else ()))
    shown = [f"{i} {name}" for i, name in names if len(names) <= 20 or name in text]
    return f" In {dataset}: {', '.join(shown)}." if shown else ""


def reduce_for_cpu(
    config: Config,
    *,
    rounds: int,
    learning_rate: float,
    warmup_rounds: int = 0,
    batch_size: int = 32,
) -> None:
    """Shortens training and fine-tuning in place; for files in configs/.

    Fine-tuning has a tenth of training's rounds, from a quarter of its learning rate
    along a cosine, and does not stop at its target.
    """
    train, fine_tune = config.train, config.fine_tune
    train.rounds, train.batch_size = rounds, batch_size
    train.learning_rate = learning_rate
    if warmup_rounds:
        train.schedule, train.warmup_rounds = "warmup_cosine", warmup_rounds
    fine_tune.rounds, fine_tune.learning_rate = rounds // 10, learning_rate / 4
    fine_tune.schedule, fine_tune.stop_at_target = "cosine", False
    fine_tune.evaluate_every = 5
