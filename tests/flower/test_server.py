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


class Place:
    """A folder with a server's workdir and what clients remember."""

    def __init__(self, folder):
        self.folder, self.workdir = folder, folder / "server"

    def settings(self, command, **more):
        given = {"command": command, "workdir": str(self.workdir), "config": SMALL}
        return read_settings({**given, "join-seconds": 5, **more})

    def order(self, method, **more):
        given = {"classes": "3", "order": "o-1", "method": method, **more}
        return self.settings("forget", **given)

    def run(self, settings, meddle=None):
        """The grid that a run went over."""
        grid = FakeGrid(self.folder, SMALL, meddle=meddle)
        run(grid, settings)
        return grid

    def forget(self, method, meddle=None, **more):
        return self.run(self.order(method, **more), meddle)

    def made(self, method):
        """The model that an order left."""
        (path,) = self.workdir.glob(f"orders/*/models/{method}")
        return checkpoint.load(path)[1]

    def read(self, name):
        return json.loads((self.workdir / name).read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("trained"))
    place.run(place.settings("train"))
    return place


@pytest.fixture
def place(trained, tmp_path):
    return Place(shutil.copytree(trained.folder, tmp_path / "run"))


def test_an_order_is_carried_out_and_stays_in_force(place, capsys):
    grid = place.forget("class_pruning")
    (report,) = place.workdir.glob("orders/*/report/report.html")
    assert f"report: {report}" in capsys.readouterr().out
    record = results.read_run(report.parent.parent).record
    (row,), (raw, *_) = record.methods, record.stages
    assert row.u_accuracy is not None and raw.method == "raw"
    assert any(cut.removed for cut in record.cuts["class_pruning"])
    (row,) = place.read("orders.json")
    assert row["closed"] and sorted(row["closed_by"]) == ["0", "1", "2"]
    assert sorted(row["confirmed"]) == ["0", "1", "2"]
    for client in range(3):
        log = (place.folder / str(client) / "orders.jsonl").read_text().splitlines()
        assert [json.loads(line)["closed"] for line in log] == [False, True]
    held = np.bincount(federation(read_config(SMALL)).train.labels, minlength=10)
    trained_on = 0
    for message, reply in grid.seen:
        if message.metadata.message_type == "train":
            header, (_, (_, update)) = unpack(message.content)[0], unpack(reply.content)
            assert 3 not in header["classes"]
            assert header["orders"][0]["order"].endswith("/o-1")  # the federation's id
            trained_on += update[2]
    assert trained_on == held.sum() - held[3]
    with pytest.raises(InputError, match="o-1' is closed"):
        place.forget("class_pruning")


@pytest.mark.filterwarnings("ignore:constrained_layout")  # so few images
def test_an_order_is_audited_against_a_network_that_clients_retrained(place):
    text = f"{SMALL} unlearn.retrain_seeds=1 audit.relearn_steps=1"
    place.forget("fine_tune_only,retrain", config=text)
    (folder,) = place.workdir.glob("orders/*")
    audit = json.loads((folder / "audit.json").read_text())
    assert audit["retrained"] == 1 and audit["candidates"] == ["fine_tune_only"]
    found = {row["name"] for row in audit["rows"]}
    assert {"u_accuracy", "r_accuracy", "answer_distance"} <= found
    first = f"orders/{folder.name}/models/fine_tune_only"
    assert place.read("current.json") == {"model": first}


TEACHER = "fine_tune.distill_weight=0.9"


class KilledError(Exception):
    pass


def killed(client, message, reply):
    """For `meddle`: the server dies of the first answer to a request to train."""
    if unpack(message.content)[0].get("task") == "local_sgd":
        raise KilledError
    return reply


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", TEACHER])
def test_a_killed_server_goes_on_where_it_was(place, more):
    text = f"{SMALL} {more}"
    straight = Place(shutil.copytree(place.folder, place.folder.with_name("straight")))
    with pytest.raises(KilledError):
        place.forget("class_pruning", killed, config=text)
    grid = place.forget("class_pruning", config=text)
    kinds = [m.metadata.message_type for m, _ in grid.seen]
    assert "query.class_statistics" not in kinds, "they were asked once"
    straight.forget("class_pruning", config=text)
    ends = [each.made("class_pruning") for each in (place, straight)]
    chex.assert_trees_all_equal(*ends)


def test_an_order_that_was_carried_out_is_not_carried_out_again(place, monkeypatch):
    """The server is killed when the model is handed out and the book not yet closed."""

    def die(*_):
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(orders, "close_order", die)
        place.forget("mask_logit")
    monkeypatch.setattr(server, "_run", die)
    place.forget("mask_logit")
    assert place.read("orders.json")[0]["closed"]


def test_an_interrupted_order_starts_from_what_another_one_left(place):
    """Its fine-tuning would otherwise end in a model that knows the other's class."""
    with pytest.raises(KilledError):
        place.forget("fine_tune_only", killed)
    place.forget("mask_logit", order="o-2", classes="5")
    place.forget("fine_tune_only")
    bias = place.made("fine_tune_only")["params"]["head"]["bias"]
    assert bias[5] < -500 and np.all(np.delete(bias, 5) > -500)


def test_an_order_that_goes_on_with_another_method_starts_again(place):
    with pytest.raises(KilledError):
        place.forget("fine_tune_only", killed)
    place.forget("mask_logit")
    assert place.made("mask_logit")["params"]["head"]["bias"][3] < -500
    assert not list(place.workdir.glob("orders/*/models/fine_tune_only"))


def test_training_does_not_bring_back_what_an_order_forgot(place):
    place.run(place.settings("train"))  # it is done
    place.forget("mask_logit")
    current = place.read("current.json")
    with pytest.raises(InputError, match="choose another workdir"):
        place.run(place.settings("train"))
    assert place.read("current.json") == current


def test_two_servers_do_not_share_a_workdir(place):
    with lock_workdir(place.workdir), pytest.raises(WorkdirBusyError):
        place.run(place.settings("evaluate"))


# What an order of each kind names to the app.
NAMED = {
    "classes": {"classes": "3"},
    "clients": {"classes": "", "clients": "1"},
    "examples": {"classes": "", "examples": "1:0,1:2,2:5"},
}


def simulate(place, wanted):
    """The run of the same order by a simulation, from the same trained model."""
    folder, trained = place.folder / "simulated", place.workdir / "training"
    folder.mkdir()
    kept = folder / checkpoint.KEPT_ROUNDS
    kept.symlink_to(trained / checkpoint.KEPT_ROUNDS)
    keys = {**server.asked(wanted), "model.load": str(trained / "models" / "raw")}
    if wanted.order.examples:
        # Clients count their own images, the simulation all of them.
        rows = np.asarray(federation(wanted.config).data.rows)
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
    wanted = place.order(method, **NAMED[kind], config=f"{SMALL} {more}")
    place.run(wanted)
    chex.assert_trees_all_close(place.made(method), simulate(place, wanted), atol=1e-5)
    if kind == "clients":
        # Who has left is asked for nothing more, and the others go on.
        grid = place.run(place.settings("evaluate"))
        asked = [message.metadata for message, _ in grid.seen]
        nodes = {m.dst_node_id for m in asked if m.message_type == "evaluate"}
        assert {grid.nodes[node] for node in nodes} == {0, 2}


def test_methods_that_need_more_than_uploads_say_so(place):
    for method in server.UNAVAILABLE:
        kind = METHODS[method].serves[0]
        with pytest.raises(InputError, match=f"{method} cannot run over a federation"):
            place.forget(method, **NAMED[kind])
    assert not (place.workdir / "orders.json").exists()


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
