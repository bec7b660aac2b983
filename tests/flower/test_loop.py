"""The server's loop over the real ClientApp: train, forget, resume, refuse."""

import functools
import json
import shutil

import chex
import jax
import numpy as np
import pytest

from fuprune.errors import InputError
from fuprune.flower import ledger, loop, training
from fuprune.flower.audit import verdict
from fuprune.flower.records import unpack
from fuprune.flower.roster import join_clients
from fuprune.flower.settings import read_config, read_settings
from fuprune.run import build, checkpoint, kept_files
from fuprune.run.store import WorkdirBusyError, lock_workdir
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import ForgetRequest
from tests.flower.small import CONFIG, FakeGrid, federation, run

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


def train_requests(grid):
    """What was asked of clients in training, and what they sent."""
    for message, reply in grid.seen:
        if message.metadata.message_type == "train":
            yield unpack(message.content)[0], unpack(reply.content)


def test_an_order_is_carried_out_and_stays_in_force(place, capsys):
    grid = FakeGrid(place, SMALL)
    run(grid, order(place / "server", "class_pruning"))
    printed = capsys.readouterr().out
    (report,) = (place / "server").glob("orders/*/report.md")
    assert f"report: {report}" in printed and "| parameters |" in printed
    content = json.loads(report.with_suffix(".json").read_text())
    assert content["confirmed_by"] == [0, 1, 2]
    assert content["after"]["parameters"] < content["before"]["parameters"]
    (row,) = json.loads((place / "server" / "orders.json").read_text())
    assert row["closed"] and sorted(row["closed_by"]) == ["0", "1", "2"]
    for client in range(3):
        log = (place / str(client) / "orders.jsonl").read_text().splitlines()
        assert [json.loads(line)["closed"] for line in log] == [False, True]
    held = np.bincount(federation(read_config(SMALL)).train.labels, minlength=10)
    trained_on = 0
    for header, (_, (_, update)) in train_requests(grid):
        assert 3 not in header["classes"] and header["orders"][0]["order"] == "o-1"
        trained_on += update[2]
    assert trained_on == held.sum() - held[3]
    # Killed when all was done but for the report.
    for file in report.parent.glob("report.*"):
        file.unlink()
    run(FakeGrid(place, SMALL), order(place / "server", "class_pruning"))
    again = json.loads(report.with_suffix(".json").read_text())
    for name in ("before", "after", "untrained_probe", "confirmed_by", "verdict"):
        assert again[name] == content[name]
    with pytest.raises(InputError, match="o-1' is closed"):
        run(FakeGrid(place, SMALL), order(place / "server", "class_pruning"))


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
    assert "query.class_statistics" not in kinds, "the cut was done"
    run(
        FakeGrid(straight, text),
        order(straight / "server", "class_pruning", config=text),
    )
    ends = [
        checkpoint.load(next((p / "server").glob("orders/*/model")))[1]
        for p in (place, straight)
    ]
    chex.assert_trees_all_equal(*ends)


def test_an_order_that_was_carried_out_is_not_carried_out_again(place, monkeypatch):
    """The server is killed when the model is handed out and the book not yet closed."""
    wanted = order(place / "server", "mask_logit")

    def die(*_):
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(ledger, "close_order", die)
        run(FakeGrid(place, SMALL), wanted)
    monkeypatch.setattr(loop, "_run_method", die)
    run(FakeGrid(place, SMALL), wanted)
    (row,) = json.loads((place / "server" / "orders.json").read_text())
    assert row["closed"] and list((place / "server").glob("orders/*/report.md"))


def test_an_interrupted_order_starts_from_what_another_one_left(place):
    """Its fine-tuning would otherwise end in a model that knows the other's class."""
    server = place / "server"
    first = order(server, "fine_tune_only")
    with pytest.raises(KilledError):
        run(FakeGrid(place, SMALL, meddle=killed_in_training), first)
    run(FakeGrid(place, SMALL), order(server, "mask_logit", "o-2", classes="5"))
    other = json.loads((server / "current.json").read_text())["model"]
    run(FakeGrid(place, SMALL), first)
    (begun,) = server.glob("orders/o-1-*/start.json")
    assert json.loads(begun.read_text())["model"] == other
    bias = checkpoint.load(begun.parent / "model")[1]["params"]["head"]["bias"]
    assert bias[5] < -500 and np.all(np.delete(bias, 5) > -500)


def test_an_order_that_goes_on_with_another_method_starts_again(place):
    """Else the first one's model would be reported as the second one's."""
    server = place / "server"
    with pytest.raises(KilledError):
        grid = FakeGrid(place, SMALL, meddle=killed_in_training)
        run(grid, order(server, "fine_tune_only"))
    run(FakeGrid(place, SMALL), order(server, "mask_logit"))
    (report,) = server.glob("orders/*/report.json")
    assert json.loads(report.read_text())["method"] == "mask_logit"
    bias = checkpoint.load(report.parent / "model")[1]["params"]["head"]["bias"]
    assert bias[3] < -500
    # Killed when all was done but for the report; the next run is for another method.
    for file in report.parent.glob("report.*"):
        file.unlink()
    run(FakeGrid(place, SMALL), order(server, "fine_tune_only"))
    assert json.loads(report.read_text())["method"] == "mask_logit"


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


# What an order of each kind names to the app, and to a simulation.
NAMED = {
    "classes": {"classes": "3"},
    "clients": {"classes": "", "clients": "1"},
    "examples": {"classes": "", "examples": "1:0,1:2,2:5"},
}


def simulated_request(kind, data):
    if kind == "examples":
        rows = np.asarray(data.rows)
        places = (rows[1, 0], rows[1, 2], rows[2, 5])
        return ForgetRequest(examples=tuple(int(i) for i in places))
    return {
        "classes": ForgetRequest(classes=(3,)),
        "clients": ForgetRequest(clients=(1,)),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind", "more"),
    [
        *(
            (method, "classes", "")
            for method in METHODS
            if method not in loop.UNAVAILABLE
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
def test_methods_end_where_the_simulator_ends(place, method, kind, more):
    """The same trained model, key and options; clients here, or behind messages."""
    text = f"{SMALL} {more}"
    wanted = order(place / "server", method, **NAMED[kind], config=text)
    grid = FakeGrid(place, text)
    session = loop.open_session(join_clients(grid, wanted), wanted)
    model, variables = loop.current_model(session)
    report = loop.forget(session)
    assert json.loads(report.with_suffix(".json").read_text())["verdict"]
    remote = checkpoint.load(next((place / "server").glob("orders/*/model")))
    config = wanted.config
    local = federation(config)
    request = simulated_request(kind, local.data)
    local = local._replace(request=request)
    here = session._replace(
        federation=session.federation._replace(data=local.data),
        settings=wanted._replace(workdir=place / "simulated"),
        clients=Here(),
    )
    setup = build.Setup(config, local, "loop")
    options = build.method_options(setup, method)
    if METHODS[method].needs:
        kept = place / "server" / "kept_rounds"
        options["kept_rounds"] = kept_files.RoundFiles(kept, variables)
        options["replay"] = build.make_replay(setup, model)
        options["server"] = build.make_server(config.train)
    budget = loop.make_budget(config, METHODS[method].budget)
    taught = None
    if METHODS[method].budget == "fine_tune":
        taught = build.fine_tune_objective(config, model, variables, (3,))
    fit = functools.partial(training.fit, here, "x", budget=budget, objective=taught)
    result = METHODS[method](
        model,
        variables,
        local.data,
        request,
        key=jax.random.fold_in(session.key, loop.seed_of("order o-1")),
        fine_tune=lambda m, w, d, k: fit(m, w, d, key=k),
        **options,
    )
    chex.assert_trees_all_close(remote[1], result.variables, atol=1e-5)
    if kind == "clients":
        # Who has left is asked for nothing more, and the others go on.
        before = len(grid.seen)
        run(grid, settings(place / "server", "evaluate"))
        asked = [m.metadata for m, _ in grid.seen[before:]]
        nodes = {m.dst_node_id for m in asked if m.message_type == "evaluate"}
        assert {grid.nodes[node] for node in nodes} == {0, 2}


class Here(str):
    """A simulator's backend with the one method of a transport that `_fit` calls."""

    def __new__(cls):
        return super().__new__(cls, "loop")

    def under(self, **terms):
        return self


@pytest.mark.parametrize("method", sorted(METHODS.keys() & loop.UNAVAILABLE.keys()))
def test_methods_that_need_more_than_uploads_say_so(place, method):
    with pytest.raises(InputError, match=f"{method} cannot run over a federation"):
        run(FakeGrid(place, SMALL), order(place / "server", method))
    assert not (place / "server" / "orders.json").exists()


@pytest.mark.parametrize(
    ("probe", "untrained", "said"),
    [
        (0.98, 0.93, "better than by those of an untrained network"),
        (0.93, 0.93, "class 3 by its features no better than"),
        (None, None, "(90.0% before)."),
    ],
)
def test_a_report_says_in_one_sentence_what_its_figures_say(probe, untrained, said):
    content = {"forgotten": "class 3", "classes": [3], "test_images": 355}
    row = {"answers_forgotten": 40, "remaining_accuracy": 0.9, "probe": 0.99}
    after = {"answers_forgotten": 0, "remaining_accuracy": 0.85, "probe": probe}
    content |= {"before": row, "after": after, "untrained_probe": untrained}
    text = verdict(content)
    assert text.startswith("The model answers none of 355 test images with class 3 (40")
    assert said in text and text.count(". ") == 0


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"command": "destroy"}, "must be one of train"),
        ({"command": "forget"}, "needs an id, and classes or"),
        ({"command": "forget", "order": "a"}, "needs an id, and classes or"),
        ({"command": "forget", "classes": "1", "order": "../../etc"}, "an id is"),
        (
            {"command": "forget", "classes": "1", "clients": "1", "order": "a"},
            "needs an id, and classes or",
        ),
        ({"clients": "first"}, "clients is 'first'"),
        ({"examples": "2:"}, "such as 2:14,2:15"),
        ({"command": "forget", "classes": "x", "order": "a"}, "numbers such as 3"),
        ({"config": "train.roundz=3"}, "train.roundz"),
        ({"config": "train.rounds=many"}, "train.rounds"),
        ({"config": "train.rounds"}, "write train.rounds=VALUE"),
        ({"min-clients": 0}, "min-clients is 0"),
        ({"reply-seconds": "soon"}, "reply-seconds is 'soon'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, match):
    with pytest.raises(InputError, match=match):
        read_settings(given)


@pytest.mark.parametrize(
    "key",
    [
        "privacy.epsilon=1",
        "data.normalise=central",
        "relabel.answer=random",
    ],
)
def test_options_that_need_the_data_in_one_place_are_refused(tmp_path, key):
    text = f"{SMALL} {key}"
    with pytest.raises(InputError, match=key.partition("=")[0]):
        run(FakeGrid(tmp_path, text), read_settings({"config": text}))


def test_a_report_counts_the_channels_of_every_class():
    first = {"cut": {"conv1": [0, 4], "conv2": [1]}}
    second = {"cut": {"conv1": [2], "conv3": []}}
    lost = loop.channels_cut([first, second])
    assert lost == {"conv1": 3, "conv2": 1, "conv3": 0}
