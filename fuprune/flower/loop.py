"""The server's work in a federation: train, forget on order, evaluate.

Rounds, doors, aggregation, scores, plans and surgery are those of a simulation, with
`RemoteClients` as the backend. Every round is saved before the next, and every order is
on disk before it is sent, so a server that was killed goes on where it was: start the
same run again.
"""

import collections
import json
import logging
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from fuprune.data.federated import FederatedDataset, drop_classes, drop_clients
from fuprune.errors import InputError
from fuprune.federated.train import FitResult
from fuprune.files import write_whole
from fuprune.flower import ledger, training
from fuprune.flower.audit import (
    START_FILE,
    count_parameters,
    keep_before,
    write_report,
)
from fuprune.flower.roster import Roster
from fuprune.flower.settings import Settings
from fuprune.flower.training import Session, open_session
from fuprune.flower.transport import stand_ins
from fuprune.run import build, checkpoint, kept_files
from fuprune.run.build import make_budget
from fuprune.run.store import lock_workdir, seed_of
from fuprune.surgery import rebuild
from fuprune.unlearning.method import check_served
from fuprune.unlearning.methods import METHODS, select
from fuprune.unlearning.request import ForgetRequest

_LOGGER = logging.getLogger(__name__)

# Methods that need more than clients' uploads, and what that is.
UNAVAILABLE = {
    "influence": "it takes one message to every client for each step of a linear "
    "solver, hundreds in all",
    "sisa": "it trains an ensemble of its own, a network for each group of clients",
}


def train(session: Session) -> None:
    """Trains the network of the config on what clients may be asked for.

    Raises:
      InputError: an order was carried out on what was trained here before.
    """
    if _current(session) not in (None, "train/model"):
        raise InputError(
            f"the model in {session.workdir} has forgotten by order, and training "
            "would bring back the one before it; choose another workdir."
        )
    config = session.config
    model: Any = build.make_model(session.setup)
    variables = build.initial_variables(
        model, jax.random.fold_in(session.key, seed_of("initial"))
    )
    budget = make_budget(config, "training")
    fit = training.fit(
        session,
        "train",
        model,
        variables,
        _remaining(session),
        budget,
        key=jax.random.fold_in(session.key, seed_of("pretrain")),
        interval=config.train.history_interval,
    )
    _publish(session, "train", model, fit.state.variables)
    accuracy = session.evaluate(model, fit.state.variables).accuracy
    _LOGGER.info(
        "%d rounds are trained: %.1f%% of the test set is right",
        budget.schedule.rounds,
        100 * accuracy,
    )


def forget(session: Session) -> Path:
    """Carries out a forget order; the path of its report.

    Raises:
      InputError: the order, its classes or its method cannot be.
    """
    settings, name = session.settings, session.order.order
    method = METHODS[select((settings.method,))[0]]
    if settings.method in UNAVAILABLE:
        raise InputError(
            f"{settings.method} cannot run over a federation: "
            f"{UNAVAILABLE[settings.method]}; choose class_pruning, for example."
        )
    roster = session.clients.roster
    order = ledger.check_entry(
        session.order,
        session.federation.num_classes,
        session.config.partition.clients,
        roster.examples,
    )
    session = session._replace(
        settings=settings._replace(order=order),
        clients=session.clients.under(order=name),
    )
    check_served(method, _request(session))
    closed = ledger.open_order(session.workdir, order).closed
    roster.orders = ledger.read(session.workdir)
    folder = session.workdir / session.unit
    started = time.time()
    if closed and (folder / "report.md").exists():
        raise InputError(f"order {name!r} is closed; give another request another id.")
    if closed or _current(session) == f"{session.unit}/model":
        # The server was killed when all was done but for the book or the report.
        made, facts = checkpoint.load(folder / "model"), {"resumed": True}
    else:
        _begin(session, folder)
        with ledger.sending(session.workdir, name, roster):
            model, variables = current_model(session)
            keep_before(session, model, variables)
        made, facts = _run_method(session, method, model, variables)
        _publish(session, session.unit, *made)
    roster.orders = ledger.close_order(session.workdir, name)
    facts = {**facts, "seconds": round(time.time() - started, 1)}
    return write_report(session, made, facts)


def _begin(session: Session, folder: Path) -> None:
    """Notes how an order starts, and drops what it made from another start.

    If another order was carried out since this one was interrupted, what there is of
    this one still knows what that one forgot; and another method makes something else.
    """
    file = folder / START_FILE
    start = {"model": _current(session), "method": session.settings.method}
    if file.exists() and json.loads(file.read_text("utf-8")) != start:
        shutil.rmtree(folder)
    write_whole(file, json.dumps(start) + "\n")


def evaluate(session: Session) -> None:
    """What the current model does on the server's test set and on clients' images."""
    model, variables = current_model(session)
    here = session.evaluate(model, variables)
    classes = range(session.federation.num_classes)
    there = session.clients.evaluate(model, variables, classes)
    _LOGGER.info("accuracy on the test set: %.4f", here.accuracy)
    images = f"{int(there.confusion.sum())} images of clients"
    _LOGGER.info("accuracy on the %s: %.4f", images, there.accuracy)


def _request(session: Session) -> ForgetRequest:
    """What the order asks for, in terms of the server's stand-ins."""
    order = session.order
    if order.examples:
        return ForgetRequest(examples=(session.federation.num_classes,))
    return ForgetRequest(order.classes, order.clients)


def _run_method(session: Session, method, model, variables):
    """`((model, variables), facts)` after the method, resumed if it was interrupted."""
    config, unit = session.config, f"{session.unit}/fine_tune"
    request, data = _request(session), _remaining(session)
    federation = session.federation._replace(data=data, request=request)
    session = session._replace(federation=federation)
    budget = make_budget(config, method.budget)
    taught = None
    if method.budget == "fine_tune":
        classes = request.classes
        taught = build.fine_tune_objective(config, model, variables, classes)
    if taught is not None:
        # Clients learn from the trained model, whose arrays are in the objective.
        teacher = {"spec": rebuild.spec(model), "masked_classes": list(request.classes)}
        session = session._replace(clients=session.clients.under(teacher=teacher))

    def tune(model, variables, data, key) -> FitResult:
        parameters = f"{count_parameters(variables):,}"
        _LOGGER.info("a model of %s parameters goes out", parameters)
        return training.fit(
            session, unit, model, variables, data, budget, key=key, objective=taught
        )

    resumed = training.interrupted(session, unit)
    if resumed is not None:
        # The cut, or whatever came before, is done: only its fine-tuning is left.
        fit = tune(*resumed)
        return (resumed[0], fit.state.variables), {"resumed": True}
    options = build.method_options(session.setup, session.settings.method)
    if method.needs:
        options |= _records(session, model, variables)
    if "privacy" in method.sections:
        for handled_by_clients in method.names("privacy"):
            del options[handled_by_clients]

    result = method(
        model,
        variables,
        data,
        request,
        key=jax.random.fold_in(session.key, seed_of(f"order {session.order.order}")),
        fine_tune=tune,
        **options,
    )
    facts = {
        "rounds": 0 if result.fit is None else len(result.fit.history),
        "statistics_bytes": int(result.upload_bytes),
        "cut": channels_cut(result.notes.get("cuts", [])),
    }
    return (result.model, result.variables), facts


def channels_cut(cuts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many channels each layer lost, over the cuts of all classes."""
    lost = collections.Counter()
    for cut in cuts:
        lost.update({layer: len(channels) for layer, channels in cut["cut"].items()})
    return dict(lost)


def _records(session: Session, model, variables) -> dict[str, Any]:
    """Kept rounds, how the server stepped in them, and how clients train again."""
    session = session.at_rate(session.config.train.learning_rate)
    return {
        "kept_rounds": kept_files.RoundFiles(
            session.workdir / kept_files.KEPT_ROUNDS, variables
        ),
        "replay": build.make_replay(session.setup, model),
        "server": build.make_server(session.config.train),
    }


def _remaining(session: Session) -> FederatedDataset:
    """What clients may be asked for: nothing of any order but the session's own."""
    data, others = session.federation.data, ledger.read(session.workdir)
    others.pop(session.order.order, None)
    if named := [client for client, _ in session.order.examples]:
        shape = data.images.shape[1:]
        data = stand_ins(data.num_clients, data.labels.shape[0], shape, named)
    orders = others.values()
    data = drop_classes(data, sorted({u for order in orders for u in order.classes}))
    return drop_clients(data, sorted({k for order in orders for k in order.clients}))


def current_model(session: Session) -> tuple[Any, Any]:
    """The newest model of the workdir.

    Raises:
      InputError: nothing has been trained there.
    """
    place = _current(session)
    if place is None:
        raise InputError(
            f"there is no trained model in {session.workdir}; run with "
            'command="train" first.'
        )
    return checkpoint.load(session.workdir / place)


def _current(session: Session) -> str | None:
    """Where in the workdir the newest model is, as `_publish` named it."""
    file = session.workdir / "current.json"
    return json.loads(file.read_text("utf-8"))["model"] if file.exists() else None


def _publish(session: Session, unit: str, model, variables) -> None:
    """Makes a model the one that is handed out from now on."""
    checkpoint.save_model(session.workdir / unit / "model", model, variables)
    current = json.dumps({"model": f"{unit}/model"}) + "\n"
    write_whole(session.workdir / "current.json", current)


RUNS = {"train": train, "forget": forget, "evaluate": evaluate}


def run(roster: Roster, settings: Settings) -> None:
    """One run of the app with the clients that have joined.

    Raises:
      FupruneError: it cannot go on; one sentence says why.
    """
    workdir = settings.workdir
    # A second server would write the same book of orders, models and checkpoints.
    with lock_workdir(workdir):
        roster.orders = ledger.read(workdir)
        session = open_session(roster, settings)
        try:
            done = RUNS[settings.command](session)
        finally:
            ledger.confirm(workdir, roster)
            with open(workdir / "messages.jsonl", "a", encoding="utf-8") as file:
                for cost in roster.costs:
                    file.write(json.dumps(cost) + "\n")
    if done is not None:
        print(Path(done).read_text("utf-8"))
        print(f"report: {done}")
