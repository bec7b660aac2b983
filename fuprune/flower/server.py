"""The server's commands: runs of `fuprune.run` whose clients are Flower's nodes.

Training is a run in `training/` of the workdir, and each forget order is a run of its
own in `orders/ID/` that starts from the newest model; so logs, checkpoints, models and
reports are those of a simulation, and so is what a killed server goes on with.
"""

import functools
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fuprune import config as configuration
from fuprune import results
from fuprune.data import normalisation, sources
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset, drop_classes, drop_clients
from fuprune.data.preprocess import make_preprocessing
from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.flower import orders
from fuprune.flower.roster import Roster
from fuprune.flower.settings import Settings
from fuprune.flower.transport import RemoteClients, stand_ins
from fuprune.run import checkpoint, experiment
from fuprune.run.data import Federation
from fuprune.run.store import lock_workdir
from fuprune.unlearning.method import check_served
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import ForgetRequest

_LOGGER = logging.getLogger(__name__)
_TRAINING = "training"  # in the workdir: the run that trains
_COLOURS = "colours.json"  # in the workdir: what clients' images are scaled with
# Methods that need more than clients' uploads, and what that is.
UNAVAILABLE = {name: m.simulated for name, m in METHODS.items() if m.simulated}


def run(grid, settings: Settings) -> None:
    """One run of the app, with clients behind Flower's grid."""
    workdir, config = settings.workdir, settings.config
    workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A second server would write the same book of orders and models.
    with lock_workdir(workdir):
        roster = Roster(
            grid,
            config.partition.clients,
            settings.timeouts,
            _test_set(config).images.shape[1:],
            least=settings.min_clients,
            max_images=settings.max_images,
            keys=settings.keys,
            # Told once, before anything was ordered to be forgotten.
            normalise=config.data.normalise == "federated"
            and not (workdir / _COLOURS).exists(),
            orders=orders.read_book(workdir),
        )
        present = roster.wait_for(settings.min_clients)
        _LOGGER.info("clients %s are there", ", ".join(map(str, present)))
        try:
            COMMANDS[settings.command](roster, settings)
        finally:
            orders.confirm(workdir, roster)


def train(roster: Roster, settings: Settings) -> None:
    """Trains the network of the config on what clients may be asked for."""
    place = f"{_TRAINING}/models/raw"
    if _newest(settings.workdir) not in (None, place):
        raise InputError(
            f"the model in {settings.workdir} has forgotten by order, and training "
            "would bring back the one before it; choose another workdir."
        )
    config = with_keys(settings.config, {"phases": "pretrain"})
    _run(roster, settings, config, settings.workdir / _TRAINING)
    _hand_out(settings.workdir, place)


def forget(roster: Roster, settings: Settings) -> None:
    """Carries out a forget order on the newest model."""
    workdir, order = settings.workdir, settings.order
    config = with_keys(settings.config, asked(settings))
    methods = configuration.methods(config)
    for name in methods:
        if name in UNAVAILABLE:
            raise InputError(
                f"{name} cannot run over a federation: {UNAVAILABLE[name]}; choose "
                "class_pruning, for example."
            )
        examples = tuple(position for _, position in order.examples)
        wanted = ForgetRequest(order.classes, order.clients, examples)
        check_served(METHODS[name], wanted)
    order = orders.check_entry(
        order._replace(federation=orders.federation_id(workdir)),
        sources.num_classes(config.data.name, config.data.dir or None),
        config.partition.clients,
        roster.examples,
    )
    settings = settings._replace(order=order)
    folder = workdir / "orders" / order.folder
    place = f"{folder.relative_to(workdir)}/models/{methods[0]}"
    current = _trained(workdir)
    if orders.open_order(workdir, order).closed:
        name = order.order
        raise InputError(f"order {name!r} is closed; give another request another id.")
    roster.orders = orders.read_book(workdir)
    # Otherwise the server was killed when all was done but for the book.
    if current != place:
        config = with_keys(config, {"model.load": str(workdir / current)})
        _begin(workdir, folder, config)
        orders.send(workdir, order.order, roster)
        record = _run(roster, settings, config, folder)
        failed = [row.error for row in record.methods if row.error]
        if failed:
            shutil.rmtree(folder)
            raise InputError(f"the order stays open: {failed[0]}")
        _hand_out(workdir, place)
    orders.close_order(workdir, order.order)
    roster.orders = orders.read_book(workdir)
    orders.send(workdir, order.order, roster)
    print(f"report: {folder / 'report' / 'report.html'}")


def withdraw(roster: Roster, settings: Settings) -> None:
    """Takes back an order that no client has confirmed."""
    orders.confirm(settings.workdir, roster)
    orders.withdraw(settings.workdir, settings.order.order)
    _LOGGER.info("order %s is withdrawn", settings.order.order)


def evaluate(roster: Roster, settings: Settings) -> None:
    """What the newest model does on the server's test set and on clients' images."""
    model, variables = checkpoint.load(settings.workdir / _trained(settings.workdir))
    federation = open_federation(roster, settings, None, settings.config)
    here = federation.evaluator(model, federation.test)(variables)
    classes = range(federation.num_classes)
    there = federation.clients.evaluate(model, variables, classes)
    _LOGGER.info("accuracy on the test set: %.4f", here.accuracy)
    images = f"{int(there.confusion.sum())} images of clients"
    _LOGGER.info("accuracy on the %s: %.4f", images, there.accuracy)


COMMANDS = {run.__name__: run for run in (train, forget, withdraw, evaluate)}


def _run(roster: Roster, settings: Settings, config, folder: Path):
    """The run of a config in a folder, with the roster's clients."""
    answers = folder / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    # The server has no clients' images to place on a machine.
    opened = functools.partial(open_federation, roster, settings, answers)
    record = experiment.run(config, folder, load=opened)
    if record is None:
        raise InputError("the server was asked to stop; the same command continues.")
    return record


def asked(settings: Settings) -> dict[str, Any]:
    """Keys of the config that an order sets."""
    order = settings.order
    # Against a retrained model, as far as test images show it.
    audited = order.classes and "retrain" in settings.method.split(",")
    return {
        "phases": "unlearn,audit,report" if audited else "unlearn,report",
        "audit.tests": "accuracy,distance,relearn,probe",
        "unlearn.method": "",
        "unlearn.methods": settings.method,
        "unlearn.classes": ",".join(map(str, order.classes)),
        "unlearn.clients": ",".join(map(str, order.clients)),
        # Their positions stay in the book of orders.
        "unlearn.examples": "by order" if order.examples else "",
    }


def with_keys(config, values: dict[str, Any]):
    """A copy of the config with keys set."""
    changed = configuration.from_json(configuration.to_json(config))
    configuration.update(changed, values)
    return changed


def _begin(workdir: Path, folder: Path, config) -> None:
    """Prepares the run of an order, and drops what it made from another start.

    That still knows what another order forgot since, or is another method's.
    """
    if (folder / "config.json").exists():
        begun = results.read_provenance(folder).config
        if configuration.difference(begun, configuration.to_json(config)):
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Rounds are those of the training, whichever order reads them.
    kept = folder / checkpoint.KEPT_ROUNDS
    if not kept.is_symlink():
        kept.symlink_to(workdir / _TRAINING / checkpoint.KEPT_ROUNDS)


def _test_set(config) -> Dataset:
    data = config.data
    return sources.load(data.name, split="test", data_dir=data.dir or None)


def open_federation(
    roster: Roster, settings: Settings, answers: Path | None, config, machine=None
) -> Federation:
    """What the server itself holds: its test set, and stand-ins for clients' data."""
    del machine
    order, where = settings.order, (config.data.name, config.data.dir or None)
    shape, num_classes = roster.shape, sources.num_classes(*where)
    mean, std = _colours(config, settings.workdir, roster)
    prepared = make_preprocessing(mean, std, shape, augment=config.train.augment)
    blank = Dataset(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    # A stand-in, one past the last class, is what an order of examples asks for.
    examples = (num_classes,) if order.examples else ()
    request = ForgetRequest(order.classes, order.clients, examples)
    if not order.order:
        # Accuracies of a training are split as the config says.
        request = ForgetRequest(configuration.classes(config) or (0,))
    clients = RemoteClients(
        roster,
        configuration.to_json(config),
        num_classes,
        mean,
        std,
        secure=config.privacy.secure_sum,
        order=order.name if order.order else None,
        answers=answers,
    )
    return Federation(
        data=_askable(settings, num_classes, shape),
        train=blank,
        validation=blank,
        test=_test_set(config),
        num_classes=num_classes,
        class_names=sources.class_names(*where),
        prepare=prepared.evaluation,
        prepare_training=prepared.training,
        request=request,
        forgotten=blank,
        clients=clients,
    )


def _askable(settings: Settings, num_classes: int, shape) -> FederatedDataset:
    """What clients may be asked for: nothing of any order but the one carried out."""
    named = [client for client, _ in settings.order.examples]
    data = stand_ins(settings.config.partition.clients, num_classes, shape, named)
    book = orders.read_book(settings.workdir)
    book.pop(settings.order.order, None)
    data = drop_classes(data, sorted({u for o in book.values() for u in o.classes}))
    return drop_clients(data, sorted({k for o in book.values() for k in o.clients}))


def _colours(config, workdir: Path, roster: Roster):
    """Mean and deviation of the colours, the same for as long as the workdir lives."""
    file, channels = workdir / _COLOURS, roster.shape[-1]
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


def _newest(workdir: Path) -> str | None:
    """Where in the workdir the newest model is."""
    file = workdir / "current.json"
    return json.loads(file.read_text("utf-8"))["model"] if file.exists() else None


def _trained(workdir: Path) -> str:
    place = _newest(workdir)
    if place is None:
        raise InputError(
            f'there is no trained model in {workdir}; run with command="train" first.'
        )
    return place


def _hand_out(workdir: Path, place: str) -> None:
    """Makes a model the one that is handed out from now on."""
    write_whole(workdir / "current.json", json.dumps({"model": place}) + "\n")
