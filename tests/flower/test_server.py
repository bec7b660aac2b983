"""The server's commands over the real ClientApp: train, forget, resume, refuse."""

import json
import shutil

import chex
import numpy as np
import pytest

from fuprune import results
from fuprune.errors import InputError
from fuprune.flower import orders, server
from fuprune.flower.records import unpack
from fuprune.flower.server import run
from fuprune.flower.settings import read_config, read_settings
from fuprune.run import checkpoint, experiment
from fuprune.run.store import WorkdirBusyError, lock_workdir
from fuprune.unlearning.methods import METHODS
from tests.flower.small import CONFIG, FakeGrid, federation

SMALL = (
    f"{CONFIG} train.rounds=1 fine_tune.rounds=1 prune.rate=0.2 "
    "train.history_interval=1"
)


def settings(workdir, command, **more):
    given = {"command": command, "workdir": str(workdir), "config": SMALL}
    return read_settings({**given, "join-seconds": 5, **more})


def order(workdir, method, name="o-1", **more):
    given = {"classes": "3", "order": name, "method": method, **more}
    return settings(workdir, "forget", **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a trained model, and what its clients remember."""
    folder = tmp_path_factory.mktemp("trained")
    run(FakeGrid(folder, SMALL), settings(folder / "server", "train"))
    return folder


@pytest.fixture
def place(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def made(place, method):
    """The model that an order left."""
    (path,) = (place / "server").glob(f"orders/*/models/{method}")
    return checkpoint.load(path)[1]


def train_requests(grid):
    """What was asked of clients in training, and what they sent."""
    for message, reply in grid.seen:
        if message.metadata.message_type == "train":
            yield unpack(message.content)[0], unpack(reply.content)


def test_an_order_is_carried_out_and_stays_in_force(place, capsys):
    grid = FakeGrid(place, SMALL)
    run(grid, order(place / "server", "class_pruning"))
    (report,) = (place / "server").glob("orders/*/report/report.html")
    assert f"report: {report}" in capsys.readouterr().out
    record = results.read_run(report.parent.parent).record
    (row,), (raw, *_) = record.methods, record.stages
    assert row.u_accuracy is not None and raw.method == "raw"
    assert any(cut.removed for cut in record.cuts["class_pruning"])
    (row,) = json.loads((place / "server" / "orders.json").read_text())
    assert row["closed"] and sorted(row["closed_by"]) == ["0", "1", "2"]
    assert sorted(row["confirmed"]) == ["0", "1", "2"]
    for client in range(3):
        log = (place / str(client) / "orders.jsonl").read_text().splitlines()
        assert [json.loads(line)["closed"] for line in log] == [False, True]
    held = np.bincount(federation(read_config(SMALL)).train.labels, minlength=10)
    trained_on = 0
    for header, (_, (_, update)) in train_requests(grid):
        assert 3 not in header["classes"]
        assert header["orders"][0]["order"].endswith("/o-1")  # after the federation's
        trained_on += update[2]
    assert trained_on == held.sum() - held[3]
    with pytest.raises(InputError, match="o-1' is closed"):
        run(FakeGrid(place, SMALL), order(place / "server", "class_pruning"))


@pytest.mark.filterwarnings("ignore:constrained_layout")  # so few images
def test_an_order_is_audited_against_a_network_that_clients_retrained(place):
    text = f"{SMALL} unlearn.retrain_seeds=1 audit.relearn_steps=1"
    wanted = order(place / "server", "fine_tune_only,retrain", config=text)
    run(FakeGrid(place, text), wanted)
    (folder,) = (place / "server").glob("orders/*")
    audit = json.loads((folder / "audit.json").read_text())
    assert audit["retrained"] == 1 and audit["candidates"] == ["fine_tune_only"]
    found = {row["name"] for row in audit["rows"]}
    assert {"u_accuracy", "r_accuracy", "answer_distance"} <= found
    assert json.loads((place / "server" / "current.json").read_text()) == {
        "model": f"orders/{folder.name}/models/fine_tune_only"
    }


TEACHER = "fine_tune.distill_weight=0.9"


class KilledError(Exception):
    pass


def killed_in_training(client, message, reply):
    """For `meddle`: the server dies of the first answer to a request to train."""
    if unpack(message.content)[0].get("task") == "local_sgd":
        raise KilledError
    return reply


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", TEACHER])
def test_a_killed_server_goes_on_where_it_was(place, more):
    text = f"{SMALL} {more}"
    straight = place.with_name("straight")
    shutil.copytree(place, straight)
    wanted = order(place / "server", "class_pruning", config=text)
    with pytest.raises(KilledError):
        run(FakeGrid(place, text, meddle=killed_in_training), wanted)
    grid = FakeGrid(place, text)
    run(grid, wanted)
    kinds = [m.metadata.message_type for m, _ in grid.seen]
    assert "query.class_statistics" not in kinds, "they were asked once"
    run(
        FakeGrid(straight, text),
        order(straight / "server", "class_pruning", config=text),
    )
    ends = [made(p, "class_pruning") for p in (place, straight)]
    chex.assert_trees_all_equal(*ends)


def test_an_order_that_was_carried_out_is_not_carried_out_again(place, monkeypatch):
    """The server is killed when the model is handed out and the book not yet closed."""
    wanted = order(place / "server", "mask_logit")

    def die(*_):
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(orders, "close_order", die)
        run(FakeGrid(place, SMALL), wanted)
    monkeypatch.setattr(server, "_run", die)
    run(FakeGrid(place, SMALL), wanted)
    (row,) = json.loads((place / "server" / "orders.json").read_text())
    assert row["closed"]


def test_an_interrupted_order_starts_from_what_another_one_left(place):
    """Its fine-tuning would otherwise end in a model that knows the other's class."""
    wanted = order(place / "server", "fine_tune_only")
    with pytest.raises(KilledError):
        run(FakeGrid(place, SMALL, meddle=killed_in_training), wanted)
    run(
        FakeGrid(place, SMALL),
        order(place / "server", "mask_logit", "o-2", classes="5"),
    )
    run(FakeGrid(place, SMALL), wanted)
    bias = made(place, "fine_tune_only")["params"]["head"]["bias"]
    assert bias[5] < -500 and np.all(np.delete(bias, 5) > -500)


def test_an_order_that_goes_on_with_another_method_starts_again(place):
    with pytest.raises(KilledError):
        grid = FakeGrid(place, SMALL, meddle=killed_in_training)
        run(grid, order(place / "server", "fine_tune_only"))
    run(FakeGrid(place, SMALL), order(place / "server", "mask_logit"))
    assert made(place, "mask_logit")["params"]["head"]["bias"][3] < -500
    assert not list((place / "server").glob("orders/*/models/fine_tune_only"))


def test_training_does_not_bring_back_what_an_order_forgot(place):
    run(FakeGrid(place, SMALL), settings(place / "server", "train"))  # it is done
    run(FakeGrid(place, SMALL), order(place / "server", "mask_logit"))
    current = (place / "server" / "current.json").read_text()
    with pytest.raises(InputError, match="choose another workdir"):
        run(FakeGrid(place, SMALL), settings(place / "server", "train"))
    assert (place / "server" / "current.json").read_text() == current


def test_two_servers_do_not_share_a_workdir(place):
    with lock_workdir(place / "server"), pytest.raises(WorkdirBusyError):
        run(FakeGrid(place, SMALL), settings(place / "server", "evaluate"))


# What an order of each kind names to the app.
NAMED = {
    "classes": {"classes": "3"},
    "clients": {"classes": "", "clients": "1"},
    "examples": {"classes": "", "examples": "1:0,1:2,2:5"},
}


def simulate(place, wanted):
    """The run of the same order by a simulation, from the same trained model."""
    folder = place / "simulated"
    folder.mkdir()
    trained = place / "server" / "training"
    kept = folder / checkpoint.KEPT_ROUNDS
    kept.symlink_to(trained / checkpoint.KEPT_ROUNDS)
    keys = {**server.asked(wanted), "model.load": str(trained / "models" / "raw")}
    if wanted.order.examples:
        # Clients count their own images, the simulation all of them.
        data = federation(wanted.config).data
        rows = np.asarray(data.rows)
        numbers = [rows[client, place] for client, place in wanted.order.examples]
        file = folder / "examples.txt"
        file.write_text(" ".join(map(str, numbers)))
        keys["unlearn.examples"] = str(file)
    experiment.run(server.with_keys(wanted.config, keys), folder)
    return checkpoint.load(folder / "models" / wanted.method)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind", "more"),
    [
        *(
            (method, "classes", "")
            for method in METHODS
            if method not in server.UNAVAILABLE and "classes" in METHODS[method].serves
        ),
        *(
            (method, "clients", "")
            for method in ("retrain_short", "ascent", "fed_eraser")
        ),
        *(
            (method, "examples", "")
            for method in ("fine_tune_only", "ascent", "fisher")
        ),
        *((method, "classes", TEACHER) for method in ("relabel", "class_pruning")),
        ("retrain_short", "classes", TEACHER),  # which has no teacher all the same
    ],
)
def test_methods_end_where_a_simulation_ends(place, method, kind, more):
    """The same run; clients here, or behind messages."""
    text = f"{SMALL} {more}"
    wanted = order(place / "server", method, **NAMED[kind], config=text)
    grid = FakeGrid(place, text)
    run(grid, wanted)
    chex.assert_trees_all_close(made(place, method), simulate(place, wanted), atol=1e-5)
    if kind == "clients":
        # Who has left is asked for nothing more, and the others go on.
        before = len(grid.seen)
        run(grid, settings(place / "server", "evaluate"))
        asked = [m.metadata for m, _ in grid.seen[before:]]
        nodes = {m.dst_node_id for m in asked if m.message_type == "evaluate"}
        assert {grid.nodes[node] for node in nodes} == {0, 2}


@pytest.mark.parametrize("method", sorted(server.UNAVAILABLE))
def test_methods_that_need_more_than_uploads_say_so(place, method):
    with pytest.raises(InputError, match=f"{method} cannot run over a federation"):
        kind = server.METHODS[method].serves[0]
        run(FakeGrid(place, SMALL), order(place / "server", method, **NAMED[kind]))
    assert not (place / "server" / "orders.json").exists()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"command": "destroy"}, "must be one of train"),
        ({"command": "forget"}, "needs an id, and to forget classes or"),
        ({"command": "forget", "order": "a"}, "needs an id, and to forget classes or"),
        ({"command": "forget", "classes": "1", "order": "../../etc"}, "an id is"),
        (
            {"command": "forget", "classes": "1", "clients": "1", "order": "a"},
            "needs an id, and to forget classes or",
        ),
        ({"clients": "first"}, "clients is 'first'"),
        ({"examples": "2:"}, "such as 2:14,2:15"),
        ({"config": "train.roundz=3"}, "train.roundz"),
        ({"config": "train.rounds"}, "write train.rounds=VALUE"),
        ({"config": "privacy.epsilon=1"}, "privacy.epsilon"),
        ({"config": "data.normalise=central"}, "data.normalise"),
        ({"config": "relabel.answer=random"}, "relabel.answer"),
        ({"min-clients": 0}, "min-clients is 0"),
        ({"reply-seconds": "soon"}, "reply-seconds is 'soon'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, match):
    with pytest.raises(InputError, match=match):
        read_settings(given)
