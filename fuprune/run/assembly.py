"""From a config to the parts of a run: data, model, algorithm, options of methods.

Config keys become keyword arguments here, those apart that only say which phases and
units there are, how long they train and where; the functions that take the arguments
know nothing of configs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.audit import (
    AuditOptions,
    ProbeOptions,
    RelearnOptions,
    ShadowOptions,
)
from fuprune.config import ConfigError, audit_tests, methods
from fuprune.config import classes as classes_to_forget
from fuprune.config.keys import numbers
from fuprune.data import normalisation, partition, sources
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset
from fuprune.data.preprocess import make_preprocess
from fuprune.federated.aggregate import Aggregation
from fuprune.federated.objective import Objective, classification
from fuprune.federated.server import FedAlgorithm, LocalBatchNorm, fed_avg, fed_sgd
from fuprune.models import zoo
from fuprune.models.brought import bring
from fuprune.run.machine import Runtime, check_memory, place_federation
from fuprune.unlearning.history import ServerStep
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.participants import choose_participants, missing_classes
from fuprune.unlearning.privacy import describe_privacy, make_protect, noise_scales


class Federation(NamedTuple):
    """The data of a run."""

    data: FederatedDataset  # training images, dealt to clients
    train: Dataset  # the same images in host memory
    validation: Dataset  # clients' images held out for choices; may be empty
    test: Dataset  # for tables
    num_classes: int
    class_names: tuple[str, ...]
    prepare: Callable  # (key, uint8 images) -> what the model sees in evaluation
    prepare_training: Callable  # the same with augmentation, if it is on


def first_of_each_class(labels: np.ndarray, limit: int) -> np.ndarray | slice:
    """Where the first `limit` images of every class are; 0 takes all."""
    if not limit:
        # Not a list of all numbers, which would copy the images.
        return slice(None)
    rank = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.sum(labels == label))
    return np.flatnonzero(rank < limit)


def make_federation(config, runtime: Runtime) -> Federation:
    """Load the dataset, deal it to clients, put it on the devices."""
    name, where = config.data.name, config.data.dir or None
    train = sources.load(name, split="train", data_dir=where)
    test = sources.load(name, split="test", data_dir=where)
    chosen = first_of_each_class(train.labels, config.data.limit)
    train = Dataset(train.images[chosen], train.labels[chosen])
    tested = first_of_each_class(test.labels, config.data.test_limit)
    test = Dataset(test.images[tested], test.labels[tested])
    num_classes = sources.num_classes(name, where)
    deal = PARTITIONS[config.partition.kind]
    parts = deal(config, train.labels, num_classes, chosen)
    parts, held_out = partition.hold_out(
        parts, train.labels, config.data.validation, config.seed
    )
    validation = Dataset(train.images[held_out], train.labels[held_out])
    train, parts = partition.restrict(train, parts)
    whole = config.runtime.pool == "whole"
    check_memory(train, parts, runtime, whole=whole)
    data = place_federation(train, parts, runtime, whole=whole)
    normalise = STATISTICS[config.data.normalise]
    mean, std = normalise(config, train, parts)
    # CIFAR's four pixels in 32, in proportion to the images.
    padding = max(1, min(train.images.shape[1:3]) // 8)
    return Federation(
        data=data,
        train=train,
        validation=validation,
        test=test,
        num_classes=num_classes,
        class_names=sources.class_names(name, where),
        prepare=make_preprocess(mean, std),
        prepare_training=make_preprocess(
            mean, std, augment=config.train.augment, padding=padding
        ),
    )


def _bias(config, labels, num_classes, chosen) -> list[np.ndarray]:
    del chosen
    return partition.bias_partition(
        labels,
        num_clients=config.partition.clients,
        num_classes=num_classes,
        bias=config.partition.bias,
        seed=config.seed,
    )


def _dirichlet(config, labels, num_classes, chosen) -> list[np.ndarray]:
    del chosen
    return partition.dirichlet_partition(
        labels,
        num_clients=config.partition.clients,
        num_classes=num_classes,
        alpha=config.partition.alpha,
        seed=config.seed,
    )


def _iid(config, labels, num_classes, chosen) -> list[np.ndarray]:
    del num_classes, chosen
    return partition.iid_partition(
        labels, num_clients=config.partition.clients, seed=config.seed
    )


def _pathological(config, labels, num_classes, chosen) -> list[np.ndarray]:
    del chosen
    return partition.pathological_partition(
        labels,
        num_clients=config.partition.clients,
        num_classes=num_classes,
        classes_per_client=config.partition.classes_per_client,
        seed=config.seed,
    )


def _natural(config, labels, num_classes, chosen) -> list[np.ndarray]:
    del labels, num_classes
    data = config.data
    ids = sources.column(data.name, config.partition.column, data.dir or None)
    return partition.natural_partition(ids[chosen])


def _from_file(config, labels, num_classes, chosen) -> list[np.ndarray]:
    del num_classes
    if not isinstance(chosen, slice):
        raise ConfigError(
            f"data.limit is {config.data.limit} with partition.kind=file, whose "
            "numbers count all training images; allowed: 0."
        )
    return partition.read_partition(config.partition.file, len(labels))


# partition.kind -> (config, labels [N], num_classes, which training images) -> parts
PARTITIONS = {
    "bias": _bias,
    "dirichlet": _dirichlet,
    "iid": _iid,
    "pathological": _pathological,
    "natural": _natural,
    "file": _from_file,
}


def _constant_statistics(config, train: Dataset, parts) -> normalisation.Statistics:
    del parts
    return normalisation.constant_statistics(config.data.name, train.images.shape[-1])


def _federated_statistics(config, train: Dataset, parts) -> normalisation.Statistics:
    """From sums over clients, without the classes that the run will forget."""
    uploads = normalisation.channel_sums(
        train.images,
        parts,
        labels=train.labels,
        without_classes=classes_to_forget(config),
    )
    return normalisation.statistics_of_sums(uploads)


def _central_statistics(config, train: Dataset, parts) -> normalisation.Statistics:
    """From all training images in one place, as no federation could."""
    del config, parts
    return normalisation.channel_statistics(train.images)


# data.normalise -> (config, train, parts) -> Statistics
STATISTICS = {
    "constants": _constant_statistics,
    "federated": _federated_statistics,
    "central": _central_statistics,
}


def make_model(config, federation: Federation, runtime: Runtime):
    """The network of the config for the dataset's images.

    Raises:
      InputError: a network that the user brings cannot be made, or does not fit.
    """
    if factory(config):
        return bring(
            config.model.name,
            num_classes=federation.num_classes,
            input_shape=federation.train.images.shape[1:],
        )
    return zoo.create(
        config.model.name,
        num_classes=federation.num_classes,
        input_shape=federation.train.images.shape[1:],
        norm=config.model.norm,
        conv=runtime.conv,
        dtype=compute_dtype(config),
    )


def factory(config) -> str | None:
    """The name of the factory that the config names in place of a model, if it does."""
    return config.model.name if ":" in config.model.name else None


def convolutions(config) -> str:
    """Whose convolutions the network uses; one that the user brings has its own.

    Raises:
      ConfigError: the config asks such a network for others.
    """
    runtime = config.runtime
    if factory(config) is None:
        return runtime.conv
    for key, asked in (("conv", "onednn"), ("dtype", "bfloat16")):
        if runtime[key] == asked:
            raise ConfigError(
                f"runtime.{key} is {asked!r}, but the network of "
                f"{config.model.name} computes as its own code says; leave "
                f"runtime.{key} as it is by default."
            )
    return "xla"


def compute_dtype(config):
    """The type convolutions compute in."""
    return jnp.bfloat16 if config.runtime.dtype == "bfloat16" else jnp.float32


def learning_rate_schedule(kind: str, *, peak: float, rounds: int, warmup: int = 0):
    """Learning rate by round: constant, cosine to zero, or the same after a warm-up."""
    rounds = max(rounds, 1)
    if kind == "constant":
        return optax.constant_schedule(peak)
    if kind == "cosine":
        return optax.cosine_decay_schedule(peak, rounds)
    # The first round learns, too: it starts one step up the ramp, not at zero. The
    # ramp ends before the last round, so that the cosine has somewhere to go.
    warmup = min(warmup, rounds - 1)
    return optax.warmup_cosine_decay_schedule(peak / (warmup + 1), peak, warmup, rounds)


def make_algorithm(
    config,
    model,
    federation: Federation,
    runtime: Runtime,
    *,
    learning_rate: float,
    schedule: str,
    rounds: int,
    warmup: int = 0,
    objective: Objective | None = None,
    keep_updates: bool = False,
) -> FedAlgorithm:
    """FedAvg or FedSGD with the config's optimisers, rule and BatchNorm policy.

    `objective` replaces the config's cross-entropy if it is given.
    """
    train, clients = config.train, federation.data.num_clients
    common: dict[str, Any] = dict(
        backend=runtime.backend,
        mesh=runtime.mesh,
        bn=LocalBatchNorm(clients) if train.bn == "local" else train.bn,
        preprocess=federation.prepare_training,
        objective=objective or classification(train.label_smoothing),
        aggregation=Aggregation(
            rule=train.aggregation,
            clip_norm=train.clip_norm,
            trim=train.trim,
            max_update_norm=train.max_update_norm or float("inf"),
            keep_updates=keep_updates,
        ),
    )
    rate = learning_rate_schedule(
        schedule, peak=learning_rate, rounds=rounds, warmup=warmup
    )
    if train.algorithm == "fed_sgd":
        return fed_sgd(
            model,
            server_optimizer=_optimizer(train, rate),
            batch_size=train.batch_size or None,
            **common,
        )
    server = {"sgd": optax.sgd, "adam": optax.adam}[train.server_optimizer]
    return fed_avg(
        model,
        client_optimizer=_optimizer(train, learning_rate),
        local_epochs=train.local_epochs,
        batch_size=train.batch_size,
        server_optimizer=server(train.server_learning_rate),
        schedule=lambda number: rate(number) / learning_rate,
        **common,
    )


def _optimizer(train, learning_rate) -> optax.GradientTransformation:
    if train.optimizer == "adam":
        return optax.adamw(learning_rate, weight_decay=train.weight_decay)
    return optax.chain(
        optax.add_decayed_weights(train.weight_decay),
        optax.sgd(
            learning_rate, momentum=train.momentum or None, nesterov=train.nesterov
        ),
    )


def server_step(config) -> ServerStep:
    """How the server of the pre-training steps, for the recorded updates."""
    train = config.train
    is_sgd = train.algorithm == "fed_sgd"
    name = "optimizer" if is_sgd else "server_optimizer"
    obstacle = ""
    if train.aggregation not in ("mean", "clipped_mean"):
        obstacle = f"train.aggregation={train.aggregation}"
    elif train[name] != "sgd":
        obstacle = f"train.{name}={train[name]}"
    clipped = train.aggregation == "clipped_mean"
    clip_norm = train.clip_norm if clipped else float("inf")
    if not is_sgd:
        return ServerStep(
            train.server_learning_rate, clip_norm=clip_norm, obstacle=obstacle
        )
    rate = learning_rate_schedule(
        train.schedule,
        peak=train.learning_rate,
        rounds=train.rounds,
        warmup=train.warmup_rounds,
    )
    return ServerStep(
        lambda number: -float(np.asarray(rate(number))),
        train.momentum,
        train.nesterov,
        train.weight_decay,
        clip_norm,
        obstacle,
    )


def participants(config, method: str, federation: Federation) -> tuple[int, ...] | None:
    """The clients that a method reads, drawn from the seed alone; None if it has none.

    Methods that cut may have a number of participants of their own.
    """
    wanted = METHODS[method]
    if "participants" not in wanted.options:
        return None
    number = config.unlearn.participants or config.train.cohort
    if "prune" in wanted.sections:
        number = config.prune.capture_clients or number
    key = jax.random.fold_in(jax.random.key(config.seed), number)
    return choose_participants(key, federation.data, number)


def describe_absences(config, federation: Federation, classes) -> list[str]:
    """One line per method that will stop because no participant holds a class."""
    lines = []
    for method in methods(config):
        if not METHODS[method].reads_forgotten:
            continue
        chosen = participants(config, method, federation)
        absent = missing_classes(federation.data, chosen, classes)
        if absent:
            lines.append(
                f"{method} will have nothing to read: none of its participants holds "
                f"class {', '.join(map(str, absent))}; raise unlearn.participants."
            )
    return lines


def method_options(
    config, method: str, federation: Federation, runtime: Runtime, classes
) -> dict[str, Any]:
    """Keyword options of an unlearning method: its sections of the config, and more."""
    wanted = METHODS[method]
    options: dict[str, Any] = dict(
        num_classes=federation.num_classes,
        preprocess=federation.prepare,
        backend=runtime.backend,
        mesh=runtime.mesh,
    )
    for section in wanted.sections:
        if section == "privacy":
            options |= _privacy_options(config, classes)
        else:
            options |= config[section].to_dict()
    options["participants"] = participants(config, method, federation)
    options.pop("capture_clients", None)
    return {name: x for name, x in options.items() if name in wanted.options}


def _privacy_options(config, classes) -> dict[str, Any]:
    """Clipping, and what stands between uploads and server, if any of it is on."""
    privacy = config.privacy
    if not (privacy.secure_sum or privacy.epsilon or privacy.min_count):
        return {}
    releases = len(classes) if config.prune.recapture else 1
    scales, statement = None, None
    if privacy.epsilon:
        terms = dict(clip=privacy.clip, releases=releases)
        scales = noise_scales(privacy.epsilon, privacy.delta, **terms)
        statement = describe_privacy(scales, privacy.delta, **terms)
    return {
        "clip": privacy.clip if privacy.epsilon else None,
        "protect": make_protect(
            secure=privacy.secure_sum, scales=scales, min_count=privacy.min_count
        ),
        "privacy": statement,
    }


def privacy_curve_options(
    config, federation: Federation, runtime: Runtime, classes
) -> dict[str, Any]:
    """Keyword options of `private_cut`, epsilon aside, from the config."""
    privacy = config.privacy
    options = method_options(
        config, "prune_random", federation, runtime, classes=classes
    )
    options |= dict(
        order=config.prune.order,
        delta=privacy.delta,
        clip=privacy.clip,
        secure=privacy.secure_sum,
        min_count=privacy.min_count,
    )
    if len(classes) == 1:
        # The same function as the compacted net, and one program for every epsilon.
        options["surgery"] = "mask"
    return options


def audit_options(config) -> AuditOptions:
    """The audit's options, from the config."""
    audit = config.audit
    return AuditOptions(
        kinds=audit_tests(config),
        confidence=audit.confidence,
        max_examples=audit.max_examples,
        train_batch_size=audit.batch_size,
        shadow=ShadowOptions(
            models=audit.shadows,
            steps=audit.shadow_steps,
            learning_rate=audit.shadow_learning_rate,
        ),
        relearn=RelearnOptions(
            learning_rates=numbers(audit.relearn_learning_rates)
            or tuple(audit.relearn_learning_rate * factor for factor in (0.3, 1, 3)),
            images_per_class=tuple(map(int, numbers(audit.relearn_images))),
            steps=audit.relearn_max_steps,
            every=audit.relearn_every,
            level=audit.relearn_level,
        ),
        probe=ProbeOptions(depths=audit.probe_depths),
    )


def initial_variables(model, key: jax.Array):
    """Fresh variables of a model."""
    return jax.jit(model.init)(key, jnp.zeros((1, *model.input_shape)))
