"""What comes back is checked: for being an answer, and then as in a simulation."""

import json
import logging

import chex
import jax
import numpy as np
import pytest
from flwr.app import Error, Message

from fuprune.data.federated import drop_classes, whole_cohort
from fuprune.data.preprocess import to_float
from fuprune.errors import InputError, TooFewClientsError
from fuprune.federated.objective import classification
from fuprune.federated.program import Client, ClientProgram, Task
from fuprune.flower import tasks, work
from fuprune.flower.ledger import Entry
from fuprune.flower.records import pack, unpack
from fuprune.flower.roster import GREETINGS, Roster
from fuprune.flower.settings import Timeouts
from fuprune.run import build
from fuprune.surgery import rebuild
from tests.flower.small import FakeGrid, remote, small_model

SPEC = rebuild.spec(small_model())


def one_round(setting, grid, **options):
    """One round over the grid; the state before and after, and its diagnostics."""
    config, local, model, variables = setting
    clients, data = remote(grid, config)
    grid.dead = {100 + k for k in options.pop("asleep", ())}
    algorithm = build.make_algorithm(
        build.Setup(config, local._replace(data=data), clients),
        model,
        build.Schedule(1, 0.1),
    )
    state = algorithm.init(variables)
    return state, *algorithm.round(state, whole_cohort(data), jax.random.key(2))


def altered(reply, message, change):
    header, tree = unpack(reply.content)
    return Message(pack(*change(header, tree)), reply_to=message)


def nan_update(header, tree):
    total, each = tree
    return header, (total, jax.tree.map(lambda x: np.full_like(x, np.nan), each))


def boast(header, tree):
    total, each = tree
    return header, (total, (*each[:2], np.float32(1e6), *each[3:]))


def other_form(header, tree):
    return header, {"weights": np.zeros(3)}


def other_round(header, tree):
    return {**header, "request": "0123456789abcdef-1"}, tree


def old_model(header, tree):
    return {**header, "model": "0" * 64}, tree


def no_model(header, tree):
    return {k: v for k, v in header.items() if k != "model"}, tree


# What client 1 does, and whether the round's own door turns it away.
MISBEHAVIOUR = {
    "nan_update": (nan_update, True),
    "boast": (boast, True),
    "other_form": (other_form, True),
    "other_round": (other_round, False),
    "old_model": (old_model, False),
    "no_model": (no_model, False),
}


@pytest.fixture(scope="module")
def without_client_1(setting, tmp_path_factory):
    """The state after a round of the two others."""
    grid = FakeGrid(tmp_path_factory.mktemp("alone"))
    return one_round(setting, grid, asleep=(1,))[1]


@pytest.mark.parametrize("kind", MISBEHAVIOUR)
def test_the_round_goes_on_without_a_client_that_answers_nonsense(
    setting, without_client_1, tmp_path, kind, caplog
):
    change, at_the_door = MISBEHAVIOUR[kind]

    def meddle(client, message, reply):
        wrong = client == 1 and message.metadata.message_type == "train"
        return altered(reply, message, change) if wrong else reply

    with caplog.at_level(logging.WARNING, "fuprune"):
        _, state, info = one_round(setting, FakeGrid(tmp_path, meddle=meddle))
    assert info.participants == 2
    assert np.asarray(info.rejected).tolist() == [False, at_the_door, False]
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.variables))
    chex.assert_trees_all_close(state.variables, without_client_1.variables, atol=1e-6)
    if not at_the_door:
        assert "node 101" in caplog.text


def test_errors_of_flower_and_silence_are_a_round_of_nobody(setting, tmp_path):
    def meddle(client, message, reply):
        if message.metadata.message_type != "train":
            return reply
        return None if client else Message(Error(code=1, reason="x"), reply_to=message)

    before, after, info = one_round(setting, FakeGrid(tmp_path, meddle=meddle))
    assert info.participants == 0 and after.round_number == 0
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_nodes_with_one_id_are_one_client(setting, tmp_path, caplog):
    grid = FakeGrid(tmp_path)
    grid.nodes = {100: 0, 101: 0, 102: 7}
    roster = Roster(grid, 3, Timeouts(5, 1, 0.01))
    with caplog.at_level(logging.WARNING, "fuprune"):
        assert roster.wait_for(1) == [0]
    assert "client 0 is there already" in caplog.text
    assert "client-id is 7" in caplog.text
    # A node that cannot say who it is is asked a few times, and then no more.
    asked = len(grid.seen)
    for _ in range(5):
        roster.refresh()
    assert len(grid.seen) == asked + GREETINGS - 1
    with pytest.raises(TooFewClientsError, match="1 clients are there"):
        roster.wait_for(2)


def test_a_client_that_comes_back_as_another_node_is_the_same_client(tmp_path):
    grid = FakeGrid(tmp_path)
    roster = Roster(grid, 3, Timeouts(5, 1, 0.01))
    assert roster.wait_for(3) == [0, 1, 2]
    grid.dead = {101}
    assert roster.refresh() == [0, 2]
    grid.nodes[205] = 1
    assert roster.refresh() == [0, 1, 2]


def test_a_client_confirms_orders_for_nobody_else(tmp_path):
    """Not in a greeting under another's id, nor in an answer that names another."""

    def claim(client, message, reply):
        def change(header, tree):
            header = {**header, "orders": ["a"]} if client == 1 else header
            return {**header, "client": 0, "closed": [["a"], "a"]}, tree

        return altered(reply, message, change) if client else reply

    grid = FakeGrid(tmp_path, clients=1, meddle=claim)
    roster = Roster(grid, 3, Timeouts(5, 1, 0.01))
    roster.wait_for(1)
    roster.orders = {"a": Entry("a", (1,))}
    grid.nodes[101] = 1
    assert roster.refresh() == [0] and not roster.confirmed.get(0)
    grid.meddle = None
    grid.nodes[102] = 2
    assert roster.refresh() == [0, 2] and roster.confirmed[2] == {"a"}
    grid.meddle = claim
    roster.exchange("query.forget", {2: ({"order": "a"}, None)})
    assert roster.closed[2] == {"a"} and not roster.closed.get(0)


@pytest.mark.parametrize(
    "seconds", [pytest.param(10**400, id="huge"), float("nan"), -1.0, "2", None]
)
def test_what_an_answer_cost_is_noted_only_if_it_is_a_time(tmp_path, seconds):
    def boast(client, message, reply):
        if client:
            return reply
        text = message_text(reply, cpu_seconds=seconds)
        reply.content["json"]["text"] = text
        return reply

    roster = Roster(FakeGrid(tmp_path, meddle=boast), 3, Timeouts(5, 1, 0.01))
    assert roster.refresh() == [0, 1, 2]
    assert sorted(cost["client"] for cost in roster.costs) == [1, 2]


def test_what_a_client_complains_of_is_one_line_of_the_log(tmp_path, caplog):
    """Else it could write lines that read as the server's own."""
    said = "no images\nfuprune: error: the run is over"

    def complain(client, message, reply):
        if client:
            return Message(Error(code=1, reason=said), reply_to=message)
        return altered(reply, message, lambda h, t: ({**h, "problem": said}, t))

    grid = FakeGrid(tmp_path, clients=2, meddle=complain)
    with caplog.at_level(logging.WARNING, "fuprune"):
        assert Roster(grid, 3, Timeouts(5, 1, 0.01)).refresh() == []
    messages = [record.getMessage() for record in caplog.records]
    assert sum("the run is over" in line for line in messages) == 2
    assert not any("\n" in line for line in messages)


def message_text(reply, **said):
    """The text of a reply whose header says something else, NaN included."""
    content = json.loads(reply.content["json"]["text"])
    return json.dumps({**content, "header": {**content["header"], **said}})


@pytest.mark.parametrize(
    "said", [{"shape": ["wide"]}, {"shape": [8, 8]}, {"examples": -1}]
)
def test_a_client_that_describes_its_images_wrongly_is_left_out(tmp_path, said):
    def boast(client, message, reply):
        return altered(reply, message, lambda h, t: ({**h, **said}, t))

    roster = Roster(FakeGrid(tmp_path, meddle=boast), 3, Timeouts(5, 1, 0.01))
    assert roster.refresh() == [] and roster.shape is None


def test_sums_of_colours_of_another_form_are_not_taken(tmp_path):
    def longer(client, message, reply):
        change = (lambda h, t: (h, np.zeros(9, np.int64))) if client else (lambda *x: x)
        return altered(reply, message, change)

    grid = FakeGrid(tmp_path, meddle=longer)
    roster = Roster(grid, 3, Timeouts(5, 1, 0.01), normalise=True)
    assert roster.refresh() == [0, 1, 2] and list(roster.channel_sums) == [0]


def test_programs_without_a_task_are_refused_in_one_line(setting, tmp_path):
    clients, _ = remote(FakeGrid(tmp_path), setting[0])
    nothing = ClientProgram(lambda c: 0, lambda s, c: (), lambda *a: (), lambda *a: ())
    for program in (nothing, nothing._replace(task=Task("eval", setting[2]))):
        with pytest.raises(InputError, match="needs uploads only"):
            clients(program)


def test_a_request_for_unknown_work_is_answered_with_a_line(setting, tmp_path):
    grid = FakeGrid(tmp_path)
    clients, data = remote(grid, setting[0])
    header = clients._header({}, [0, 1])
    wrong = ({**header, "task": "os.system", "arguments": {}}, {"a": np.zeros(1)})
    assert clients.roster.exchange("train", {0: wrong}) == {}
    reply, _ = unpack(grid.seen[-1][1].content)
    assert "\n" not in reply["problem"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, None),
        ({"local_steps": 3}, None),
        ({"local_steps": -1}, "local_steps is -1, but must be a whole number from 0"),
        ({"local_steps": [1]}, r"local_steps is \[1\], but must be a whole number"),
        ({"local_step": 3}, "it takes"),
        ({"max_length": 3}, "it takes"),
    ],
)
def test_a_request_may_bound_local_steps_and_name_nothing_else(setting, given, problem):
    config, _, model, _ = setting
    place = tasks.Setting(config, model, to_float, to_float, 30, 0.1, classification())
    arguments = {"local_epochs": 2, "batch_size": 8, **given}
    if problem is not None:
        with pytest.raises(InputError, match=problem):
            tasks.make_program("local_sgd", place, arguments)
        return
    program = tasks.make_program("local_sgd", place, arguments)
    client = Client(np.arange(30), np.int32(30), np.int32(0))
    assert program.num_steps(client) == (3 if given else 8)


@pytest.mark.parametrize(
    ("teacher", "problem"),
    [
        ("resnet8", "teacher cannot be read"),
        ({"spec": None}, "teacher cannot be read"),
        ({"spec": {"name": "resnet8"}, "masked_classes": []}, "model spec has"),
        ({"spec": SPEC, "masked_classes": "3"}, "teacher cannot be read"),
        (
            {"spec": {**SPEC, "num_classes": 5}, "masked_classes": []},
            "teacher has 5 classes",
        ),
        ({"spec": SPEC, "masked_classes": [True]}, "teacher cannot be read"),
    ],
)
def test_a_teacher_that_makes_no_sense_is_refused(setting, teacher, problem):
    with pytest.raises(InputError, match=problem):
        work.teaching(setting[0], small_model(), teacher)


def test_messages_are_arrays_and_json(setting, tmp_path):
    grid = FakeGrid(tmp_path)
    one_round(setting, grid)
    assert len(grid.seen) == 6  # three greetings, three answers
    for pair in grid.seen:
        for message in pair:
            assert set(message.content) == {"json", "arrays"}
            json.loads(message.content["json"]["text"])
            for array in message.content["arrays"].values():
                assert array.stype == "numpy.ndarray"
    _, (sent, _) = grid.seen[0], grid.seen[-1]
    header, _ = unpack(sent.content)
    assert header["spec"]["name"] == "resnet8"


def test_clients_read_the_classes_that_the_servers_data_name(setting, tmp_path):
    config, local, model, variables = setting
    grid = FakeGrid(tmp_path)
    clients, data = remote(grid, config)
    without = drop_classes(data, (3, 4))
    everywhere = clients.evaluate(model, variables, range(10))
    fewer = clients.evaluate(model, variables, np.unique(without.rows[0]))
    counts = np.bincount(local.train.labels, minlength=10)
    np.testing.assert_array_equal(everywhere.confusion.sum(axis=1), counts)
    assert fewer.confusion.sum() < everywhere.confusion.sum()


@pytest.mark.parametrize("count", [2**62, -1, 1])
def test_counts_of_more_images_than_a_client_has_are_turned_away(
    setting, tmp_path, count
):
    """Four of 2 ** 62 add up to 0 in 64 bits."""

    def boast(client, message, reply):
        def change(header, tree):
            confusion, loss = tree
            confusion[0, :4] += count
            return header, (confusion, loss)

        wrong = client == 1 and message.metadata.message_type == "evaluate"
        return altered(reply, message, change) if wrong else reply

    config, _, model, variables = setting
    clients, _ = remote(FakeGrid(tmp_path, meddle=boast), config)
    found = clients.evaluate(model, variables, range(10))
    held = clients.roster.examples
    assert found.confusion.sum() == held[0] + held[2]
