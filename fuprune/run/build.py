"""From a config to the parts of a run: units, model, algorithm, budgets, options."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.federated.aggregate import RULES
from fuprune.federated.batch_norm import LocalBatchNorm
from fuprune.federated.objective import Objective, classification, distillation
from fuprune.federated.server import FedAlgorithm, fed_avg, fed_sgd, follow
from fuprune.federated.train import fit
from fuprune.models import zoo
from fuprune.models.brought import bring, named_factories
from fuprune.models.fresh import init_variables
from fuprune.run import checkpoint
from fuprune.run.data import Federation, replicate
from fuprune.run.optimizers import optimizer, plain_sgd
from fuprune.run.store import Store
from fuprune.unlearning.fed_eraser import Moves, Replay, calibration_epochs
from fuprune.unlearning.head import head_name
from fuprune.unlearning.job import TrainRounds
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import (
    choose_participants,
    missing_classes,
    remaining,
    warn_of,
)
from fuprune.unlearning.rounds import Server

Model = tuple[Any, Any]  # a Flax module and its variables


class Setup(NamedTuple):
    """What the parts of a run are made from."""

    config: Any
    federation: Federation
    backend: Any = "auto"  # how to iterate over clients, as `fed_avg` takes it
    mesh: Mesh | None = None  # of the devices that `shard_map` spreads clients over
    conv: str = "xla"  # whose convolutions, or "onednn"


def make_model(setup: Setup):
    """The network of the config for the dataset's images."""
    config, shape = setup.config, setup.federation.train.images.shape[1:]
    form: dict[str, Any] = dict(
        num_classes=setup.federation.num_classes, input_shape=shape
    )
    if factory(config):
        return bring(config.model.name, **form)
    form |= dict(norm=config.model.norm, conv=setup.conv, dtype=compute_dtype(config))
    return zoo.create(config.model.name, **form)


def factory(config) -> str | None:
    """The name of the factory that the config names in place of a model, if it does."""
    name = config.model.name
    return named_factories().get(name, name if ":" in name else None)


def convolutions(config) -> str:
    """Whose convolutions the network uses; one that the user brings has its own."""
    runtime = config.runtime
    if factory(config) is None:
        return runtime.conv
    for key, asked in (("conv", "onednn"), ("dtype", "bfloat16")):
        if getattr(runtime, key) == asked:
            raise ConfigError(
                f"runtime.{key} is {asked!r}, but the network of "
                f"{config.model.name} computes as its own code says; leave "
                f"runtime.{key} as it is by default."
            )
    return "xla"


def compute_dtype(config):
    """The type convolutions compute in."""
    return jnp.bfloat16 if config.runtime.dtype == "bfloat16" else jnp.float32


class Schedule(NamedTuple):
    """How many rounds to train, and the learning rate in each."""

    rounds: int  # at most
    learning_rate: float  # its peak
    kind: str = "constant"  # cosine goes to zero, warmup_cosine after a warm-up
    warmup: int = 0  # rounds

    def by_round(self) -> optax.Schedule:
        """The learning rate as a function of the round."""
        peak, rounds = self.learning_rate, max(self.rounds, 1)
        if self.kind == "constant":
            return optax.constant_schedule(peak)
        if self.kind == "cosine":
            return optax.cosine_decay_schedule(peak, rounds)
        # The first round learns, too, and the ramp ends before the last.
        warmup = min(self.warmup, rounds - 1)
        start = peak / (warmup + 1)
        return optax.warmup_cosine_decay_schedule(start, peak, warmup, rounds)


def training_schedule(train, rounds: int | None = None) -> Schedule:
    """The schedule of the config's section `train`, over so many rounds or its own."""
    rounds = train.rounds if rounds is None else rounds
    return Schedule(rounds, train.learning_rate, train.schedule, train.warmup_rounds)


def make_algorithm(
    setup: Setup,
    model,
    schedule: Schedule,
    *,
    objective: Objective | None = None,
    keep_updates: bool = False,
    work: float = 1.0,
) -> FedAlgorithm:
    """FedAvg or FedSGD with the config's optimisers, rule and BatchNorm policy.

    `objective` replaces the config's cross-entropy if it is given. `work` is the share
    of a client's local epochs and steps, or of its images in a FedSGD round, that it
    does.
    """
    train, federation, backend = setup.config.train, setup.federation, setup.backend
    local = LocalBatchNorm(federation.data.num_clients)
    common: dict[str, Any] = dict(
        backend=backend if isinstance(backend, str) else backend.training(objective),
        mesh=setup.mesh,
        bn=local if train.bn == "local" else train.bn,
        preprocess=federation.prepare_training,
        objective=objective or classification(train.label_smoothing),
        aggregate=RULES[train.aggregation](train),
        max_update_norm=train.max_update_norm or math.inf,
        keep_updates=keep_updates,
    )
    server_optimizer, size = _server_optimizer(train, schedule), train.batch_size
    if train.algorithm == "fed_sgd":
        if work < 1:
            size = max(1, math.ceil(work * (size or federation.data.max_length)))
        return fed_sgd(
            model, server_optimizer=server_optimizer, batch_size=size or None, **common
        )
    return fed_avg(
        model,
        # The rate is the schedule's, so that training and fine-tuning share a program.
        client_optimizer=optimizer(train, 1.0),
        batch_size=size,
        server_optimizer=server_optimizer,
        schedule=schedule.by_round(),
        **_local_work(train, work),
        **common,
    )


def fine_tune_objective(config, teacher, variables, classes) -> Objective | None:
    """What fine-tuning minimises if the trained model is its teacher; else None."""
    if not config.fine_tune.distill_weight:
        return None
    return distil_from(config, teacher, variables, classes)


def distil_from(config, teacher, variables, classes) -> Objective:
    """The objective of a student of `teacher`, which has no say about `classes`."""
    tuning = config.fine_tune
    return distillation(
        teacher,
        variables,
        temperature=tuning.distill_temperature,
        weight=tuning.distill_weight,
        masked_classes=classes,
        label_smoothing=config.train.label_smoothing,
    )


def _local_work(train, share: float) -> dict[str, int]:
    """A share of FedAvg's local epochs, and of the bound on its steps, rounded up."""
    steps = train.local_steps
    return dict(
        local_epochs=calibration_epochs(share, train.local_epochs),
        local_steps=calibration_epochs(share, steps) if steps else 0,
    )


def make_replay(setup: Setup, model) -> Replay:
    """How those who stay train when fed_eraser replays the training's kept rounds."""
    train, work = setup.config.train, setup.config.fed_eraser.rate
    schedule = training_schedule(train)
    moves, rate = Moves(train.server_learning_rate), schedule.by_round()
    if train.algorithm == "fed_sgd":
        # A client sends a gradient here, along which the server steps down.
        moves = Moves(
            lambda number: -np.asarray(rate(number)), train.momentum, train.weight_decay
        )
    return Replay(
        make_algorithm(setup, model, schedule, keep_updates=True, work=work),
        moves=moves,
    )


def make_slice_training(setup: Setup) -> TrainRounds:
    """How sisa trains a slice: the run's algorithm, with a schedule that fits it."""
    train = setup.config.train

    # Slices have one or two numbers of rounds, so that few programs serve them all.
    @functools.cache
    def algorithm_for(model, rounds) -> FedAlgorithm:
        return make_algorithm(setup, model, training_schedule(train, rounds))

    def train_slice(model, variables, data, key, rounds):
        algorithm = algorithm_for(model, rounds)
        return fit(
            algorithm,
            algorithm.init(replicate(variables, setup.mesh)),
            data,
            key=key,
            cohort_size=train.cohort,
            rounds=rounds,
            dropout_rate=train.dropout_rate,
        )

    return train_slice


def make_server(train) -> Server:
    """How the server of the pre-training steps, to do its part of it again."""
    schedule = training_schedule(train)
    optimizer = _server_optimizer(train, schedule)
    if train.algorithm == "fed_avg":
        optimizer = follow(optimizer)
    return Server(optimizer, RULES[train.aggregation](train))


def _server_optimizer(train, schedule: Schedule) -> optax.GradientTransformation:
    """What the server feeds with gradients, or with changes turned round."""
    rate = schedule.by_round()
    if train.algorithm == "fed_sgd":
        return optimizer(train, rate)
    if train.server_optimizer == "sgd":
        return plain_sgd(train.server_learning_rate)
    # Adam divides the size of the mean update out, and with it the clients' schedule
    # and the smaller rate of fine-tuning: there, the server's rate has to follow them.
    return optax.adam(
        lambda number: train.server_learning_rate * rate(number) / train.learning_rate
    )


def participants(config, method: str, federation: Federation) -> tuple[int, ...]:
    """The clients that a method reads, drawn from the seed alone.

    Methods that cut may have a number of participants of their own.
    """
    wanted = METHODS[method]
    number = config.unlearn.participants or config.train.cohort
    if "prune" in wanted.sections:
        number = config.prune.capture_clients or number
    # By number and not by method: those that read equally many read the same ones.
    key = jax.random.fold_in(jax.random.key(config.seed), number)
    # Who leaves takes part in nothing, so participants are drawn from the others.
    members = federation.data
    if federation.request.clients:
        members = remaining(members, federation.request)
    return choose_participants(key, members, number)


def method_options(setup: Setup, method: str) -> dict[str, Any]:
    """What a method is called with: its sections of the config, and the run's parts."""
    config, federation = setup.config, setup.federation
    given: dict[str, Any] = dict(
        num_classes=federation.num_classes,
        participants=participants(config, method, federation),
        preprocess=federation.prepare,
        backend=setup.backend,
        mesh=setup.mesh,
        train=make_slice_training(setup),
        train_rounds=config.train.rounds,
    )
    wanted = METHODS[method]
    for section in wanted.sections:
        # Clients elsewhere protect what they send before it leaves them.
        if section == "privacy" and federation.clients is not None:
            continue
        given |= dataclasses.asdict(getattr(config, section))
    return given


def load_model(setup: Setup, path) -> tuple[Any, Any]:
    """A saved model and its variables, to compute as the run does."""
    return checkpoint.load(
        path,
        conv=setup.conv,
        dtype=compute_dtype(setup.config),
        factory=factory(setup.config),
    )


def head_option(model, variables) -> dict[str, str]:
    """The option of methods that names the last layer, if the network has one."""
    images = jax.ShapeDtypeStruct((2, *model.input_shape), np.float32)
    name = head_name(model, variables, images)
    return {} if name is None else {"head": name}


def initial_variables(model, key: jax.Array):
    """Fresh variables of a model."""
    return init_variables(model, key, jnp.zeros((1, *model.input_shape)))


class Budget(NamedTuple):
    """How long and how fast to train, and when to look."""

    schedule: Schedule
    is_due: Callable[[int], bool]  # whether a round is evaluated; round 0 always is
    target: float | None  # accuracy that `stops` ends at
    metric: str  # that the target is for, such as "r_accuracy"
    stops: bool


class UnlearnUnit(NamedTuple):
    """One method with one seed."""

    name: str  # of the unit: the method, with the seed's number behind it
    method: str
    seed: int

    @property
    def phase(self) -> str:
        """What its rows, outcome and checkpoints are called."""
        return f"unlearn/{self.name}"


def unlearn_units(config) -> list[UnlearnUnit]:
    """The methods of a config in their order, with as many seeds as it asks for."""
    units, seeded = [], configuration.read(config, "fine_tune.seeded")
    for method in configuration.methods(config):
        first, number = 0, config.fine_tune.seeds if method in seeded else 1
        if method == "retrain":
            first = config.unlearn.retrain_first - 1
            number = config.unlearn.retrain_seeds
        for seed in range(first, first + number):  # names count them from 1
            suffix = f"_seed{seed + 1}" if seed else ""
            units.append(UnlearnUnit(f"{method}{suffix}", method, seed))
    return units


def make_budget(config, name: str, target: float | None = None) -> Budget:
    """How methods train: `fine_tune`, `training` from scratch, or `short`.

    All are evaluated on one grid of rounds, so that crossings compare: the finer of
    fine-tuning within its rounds, the one of training beyond. `short` retrains in
    fine-tuning's rounds, with a schedule that fits them.
    """
    train, tuning = config.train, config.fine_tune

    def is_due(number: int) -> bool:
        in_reach = number <= tuning.rounds
        every = tuning.evaluate_every if in_reach else train.evaluate_every
        return number % every == 0

    # A network from scratch needs a warm-up even if a trained one does not, and
    # training's own could take most of so few rounds.
    tenth = max(1, tuning.rounds // 10)
    warmup = min(train.warmup_rounds or tenth, tenth)
    schedules = {
        "fine_tune": Schedule(
            tuning.rounds,
            tuning.learning_rate or train.learning_rate,
            tuning.schedule,
            tuning.warmup_rounds,
        ),
        "training": training_schedule(train),
        "short": Schedule(tuning.rounds, train.learning_rate, "warmup_cosine", warmup),
    }
    stops = tuning.stop_at_target and name == "fine_tune"
    return Budget(schedules[name], is_due, target, metric="r_accuracy", stops=stops)


def rounds_left(config, units: Sequence[UnlearnUnit], store: Store) -> int:
    """The most rounds that the units which are not finished train."""
    wanted, rounds = configuration.phases(config), {}
    if "pretrain" in wanted and not config.model.load:
        rounds["pretrain"] = config.train.rounds
    for unit in units if "unlearn" in wanted else ():
        method = METHODS[unit.method]
        budget = make_budget(config, method.budget)
        rounds[unit.phase] = budget.schedule.rounds * method.fine_tunes
    return sum(number for unit, number in rounds.items() if not store.is_finished(unit))


def describe_absences(config, federation: Federation) -> list[str]:
    """What a request means beyond its words, and methods without a class to read."""
    data, request = federation.data, federation.request
    lines = warn_of(data, request)
    methods = configuration.methods(config)
    for method in [name for name in methods if METHODS[name].reads_forgotten]:
        chosen = participants(config, method, federation)
        if absent := missing_classes(data, chosen, request.classes):
            lines.append(
                f"{method} will have nothing to read: none of its participants holds "
                f"class {', '.join(map(str, absent))}; raise unlearn.participants or "
                "lower partition.bias."
            )
    return lines
