"""What one run of the app on the server starts from: clients, test set, workdir."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune import config as configuration
from fuprune.data import normalisation, sources
from fuprune.data.dataset import Dataset
from fuprune.data.preprocess import make_preprocessing
from fuprune.federated.evaluate import Evaluation
from fuprune.files import write_whole
from fuprune.flower.node import keep_compiled_programs
from fuprune.flower.roster import COLOURS_FILE, Roster
from fuprune.flower.settings import Settings
from fuprune.flower.transport import RemoteClients, Terms, stand_ins
from fuprune.run.assembly import Setup
from fuprune.run.federation import Federation
from fuprune.run.machine import Runtime


class Session(NamedTuple):
    """One run of the app on the server."""

    settings: Settings
    workdir: Path
    federation: Federation  # `data` stands for what clients hold
    clients: RemoteClients

    @property
    def config(self) -> Any:
        """Fuprune's config."""
        return self.settings.config

    @property
    def key(self) -> jax.Array:
        """Everything random that the server decides derives from it."""
        return jax.random.key(self.config.seed)

    @property
    def setup(self) -> Setup:
        """What networks, algorithms and options are made from; clients iterate."""
        runtime = Runtime(None, self.clients, "xla", 0, 1)  # type: ignore
        return Setup(self.config, self.federation, runtime)

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
    # Clients say the shape when they join; before that there is none.
    shape: tuple[int, ...] = roster.shape or (0, 0, 0)
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
    terms = Terms(
        configuration.to_json(config), mean, std, secure=config.privacy.secure_sum
    )
    clients = RemoteClients(roster, terms, num_classes)
    return Session(settings, workdir, federation, clients)


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
