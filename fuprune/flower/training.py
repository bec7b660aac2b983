"""A run of the app on the server, and training that a killed server goes on with.

A `Session` is what the run has at hand: clients, test set, workdir. Training is the
simulation's own loop with remote clients as its backend. Every round is on disk before
the next, with what the unit was about: its network, which images clients may read, and
its key.
"""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune import config as configuration
from fuprune import results
from fuprune.data import normalisation, sources
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset
from fuprune.data.preprocess import make_preprocessing
from fuprune.federated.evaluate import Evaluation
from fuprune.federated.objective import Objective
from fuprune.federated.train import FitResult, Record
from fuprune.files import write_whole
from fuprune.flower import ledger
from fuprune.flower.node import keep_compiled_programs
from fuprune.flower.roster import COLOURS_FILE, Roster
from fuprune.flower.settings import Settings
from fuprune.flower.transport import RemoteClients, stand_ins
from fuprune.run import build, checkpoint, kept_files
from fuprune.run.data import Federation
from fuprune.run.loop import train
from fuprune.surgery import rebuild

_LOGGER = logging.getLogger(__name__)
_KEPT = ("rows", "lengths", "labels", "members")  # of the data that clients may read


class Session(NamedTuple):
    """One run of the app on the server."""

    settings: Settings
    federation: Federation  # `data` stands for what clients hold
    clients: RemoteClients

    @property
    def config(self) -> Any:
        """Fuprune's config."""
        return self.settings.config

    @property
    def workdir(self) -> Path:
        """Where the server keeps its files."""
        return self.settings.workdir

    @property
    def order(self) -> ledger.Entry:
        """The order that is carried out; it names nothing if there is none."""
        return self.settings.order

    @property
    def unit(self) -> str:
        """The order's folder in the workdir."""
        return f"orders/{ledger.folder_name(self.order.order)}"

    @property
    def key(self) -> jax.Array:
        """Everything random that the server decides derives from it."""
        return jax.random.key(self.config.seed)

    @property
    def setup(self) -> build.Setup:
        """What networks, algorithms and options are made from; clients iterate."""
        return build.Setup(self.config, self.federation, backend=self.clients)

    def at_rate(self, learning_rate: float) -> "Session":
        """The session whose clients train at another rate, at its peak."""
        clients = self.clients.under(learning_rate=float(learning_rate))
        return self._replace(clients=clients)

    def evaluate(self, model, variables) -> Evaluation:
        """What a model does on the server's test set."""
        return self.federation.evaluator(model, self.federation.test)(variables)


def open_session(roster: Roster, settings: Settings) -> Session:
    """Prepares what the server itself holds, for the clients that are there."""
    config, workdir = settings.config, settings.workdir
    keep_compiled_programs(workdir)
    shape = roster.shape
    assert shape is not None  # clients say it when they join
    name, where = config.data.name, config.data.dir or None
    num_classes = sources.num_classes(name, where)
    mean, std = _statistics(config, workdir, roster, shape[-1])
    test = sources.load(name, split="test", data_dir=where)
    prepared = make_preprocessing(mean, std, shape, augment=config.train.augment)
    # The server has no training images.
    blank = Dataset(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    federation = Federation(
        data=stand_ins(config.partition.clients, num_classes, shape),
        train=blank,
        validation=blank,
        test=test,
        num_classes=num_classes,
        class_names=sources.class_names(name, where),
        prepare=prepared.evaluation,
        prepare_training=prepared.training,
    )
    clients = RemoteClients(
        roster,
        configuration.to_json(config),
        num_classes,
        mean,
        std,
        secure=config.privacy.secure_sum,
    )
    return Session(settings, federation, clients)


def _statistics(config, workdir: Path, roster: Roster, channels: int):
    """Mean and deviation of the colours, the same for as long as the workdir lives."""
    file = workdir / COLOURS_FILE
    # Who joins later must not move the colours that the model was trained on.
    if file.exists():
        kept = json.loads(file.read_text("utf-8"))
        return tuple(kept["mean"]), tuple(kept["std"])
    if config.data.normalise == "constants":
        mean, std = normalisation.constant_statistics(config.data.name, channels)
    else:
        # The zeros only give the stack a row if no client told its sums.
        sums = [np.zeros(2 * channels + 1, np.int64), *roster.channel_sums.values()]
        mean, std = normalisation.statistics_of_sums(np.stack(sums))
    write_whole(file, json.dumps({"mean": list(mean), "std": list(std)}) + "\n")
    return mean, std


def fit(
    session: Session,
    unit: str,
    model,
    variables,
    data,
    budget,
    *,
    key,
    objective: Objective | None = None,
    interval: int = 0,
) -> FitResult:
    """Trains from where the unit was left; every round is on disk before the next.

    Every `interval` rounds, what server and clients sent is kept, for methods that
    replay rounds.
    """
    config, folder = session.config, session.workdir / unit
    schedule = budget.schedule
    session = session.at_rate(schedule.learning_rate)
    federation = session.federation._replace(data=data)
    algorithm = build.make_algorithm(
        session.setup._replace(federation=federation),
        model,
        schedule,
        objective=objective,
        keep_updates=interval > 0,
    )
    state = algorithm.init(variables)
    saved = checkpoint.restore(folder / "checkpoints", lambda spec: state)
    start, history = 0, []
    if saved is not None:
        start, state, _ = saved
        _LOGGER.info("%s goes on after round %d", unit, start)
    else:
        checkpoint.save(folder / "checkpoints", 0, state, spec={})
    # After the first checkpoint: `interrupted` counts on one.
    _describe(folder, model, data, key)
    evaluate = session.federation.evaluator(model, session.federation.test)
    steps = train(
        algorithm,
        state,
        data,
        kept=session.workdir / kept_files.KEPT_ROUNDS,
        interval=interval,
        key=key,
        cohort_size=config.train.cohort,
        rounds=schedule.rounds,
        start=start,
        evaluate=lambda w: {"accuracy": evaluate(w).accuracy},
        evaluate_every=budget.is_due,
        min_participants=session.settings.min_clients,
    )
    for step in steps:
        state, number = step.state, step.record.round_number
        checkpoint.save(folder / "checkpoints", number, state, spec={})
        history.append(step.record)
        _log_round(folder, step.record, schedule.rounds)
    return FitResult(state, history, None)


def _log_round(folder: Path, record: Record, rounds: int) -> None:
    """Adds a round to `rounds.jsonl` of its unit, and tells it in one line."""
    row = {
        "round": record.round_number,
        **{k: round(float(v), 6) for k, v in record.metrics.items()},
        "rejected": list(record.rejected),
    }
    with open(folder / "rounds.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    scored = record.metrics.get("accuracy")
    _LOGGER.info(
        "%s: round %d of %d, %d clients%s",
        folder.name.replace("_", "-"),
        record.round_number,
        rounds,
        record.metrics["participants"],
        "" if scored is None else f", {scored:.1%} of the test set is right",
    )


def _describe(folder: Path, model, data: FederatedDataset, key) -> None:
    kept = {name: getattr(data, name) for name in _KEPT}
    spec = {"model": rebuild.spec(model), **kept, "key": jax.random.key_data(key)}
    write_whole(folder / "unit.json", json.dumps(results.to_plain(spec)) + "\n")


def interrupted(session: Session, unit: str):
    """`(model, variables to start from, data, key)` of a unit that was begun."""
    file = session.workdir / unit / "unit.json"
    if not file.exists():
        return None
    spec = json.loads(file.read_text("utf-8"))
    model = rebuild.from_spec(spec["model"])
    kept = {
        name: None if spec[name] is None else jax.numpy.asarray(spec[name], np.int32)
        for name in _KEPT
    }
    data = session.federation.data._replace(**kept)
    key = jax.random.wrap_key_data(jax.numpy.asarray(spec["key"], jax.numpy.uint32))
    # Only the form counts: the values come from the checkpoint.
    return model, build.initial_variables(model, jax.random.key(0)), data, key
