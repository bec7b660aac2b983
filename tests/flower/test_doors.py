"""What comes back is checked: for being an answer, and then as in a simulation."""

import logging
import shutil

import chex
import jax
import numpy as np
import pytest
from flwr.app import Error, Message

from fuprune.data.federated import drop_classes, whole_cohort
from fuprune.errors import InputError, TooFewClientsError
from fuprune.federated.client import TrainContext
from fuprune.federated.program import ClientProgram, Task
from fuprune.flower.certificates import make_certificates
from fuprune.flower.orders import Entry
from fuprune.flower.records import unpack
from fuprune.flower.roster import GREETINGS, Roster
from fuprune.flower.settings import Timeouts
from fuprune.run import build
from fuprune.surgery import rebuild
from tests.flower.small import SHAPE, FakeGrid, meddling, remote, small_model


def make_roster(grid, **options):
    return Roster(grid, 3, Timeouts(5, 1, 0.01), shape=SHAPE, **options)


def said(**header):
    """A change of a reply's header."""
    return lambda before, tree: ({**before, **header}, tree)


def one_round(setting, grid, asleep=()):
    """One round over the grid; the state before and after, and its diagnostics."""
    config, local, model, variables = setting
    clients, data = remote(grid, config)
    grid.dead = {100 + k for k in asleep}
    algorithm = build.make_algorithm(
        build.Setup(config, local._replace(data=data), clients),
        model,
        build.Schedule(1, 0.1),
    )
    state = algorithm.init(variables)
    return state, *algorithm.round(state, whole_cohort(data), jax.random.key(2))


def updated(place, change):
    """A change of one part of a reply's `ClientUpdate`."""

    def changed(header, tree):
        total, each = tree
        parts = [*each]
        parts[place] = jax.tree.map(change, parts[place])
        return header, (total, tuple(parts))

    return changed


# What client 1 does, and whether the round's own door turns it away.
MISBEHAVIOUR = {
    "nan": (updated(0, lambda x: np.full_like(x, np.nan)), True),
    "boast": (updated(2, lambda x: np.float32(1e6)), True),
    "huge": (updated(0, lambda x: np.full_like(x, 1e30)), True),
    "long": (updated(0, lambda x: -50 * x), True),
    "variance": (updated(1, lambda x: x - 2), True),
    "statistics": (updated(1, lambda x: 1e4 + x), True),
    "other form": (lambda header, tree: (header, {"weights": np.zeros(3)}), True),
    "other round": (said(request="0123456789abcdef-1"), False),
    "old model": (said(model="0" * 64), False),
    "no model": (said(model=None), False),
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
    grid = FakeGrid(tmp_path, meddle=meddling("train", change))
    with caplog.at_level(logging.WARNING, "fuprune"):
        _, state, info = one_round(setting, grid)
    assert info.participants == 2
    assert np.asarray(info.rejected).tolist() == [False, at_the_door, False]
    chex.assert_trees_all_close(state.variables, without_client_1.variables, atol=1e-6)
    assert ("node 101" in caplog.text) is not at_the_door


def test_errors_of_flower_and_silence_are_a_round_of_nobody(setting, tmp_path):
    def meddle(client, message, reply):
        if message.metadata.message_type != "train":
            return reply
        return None if client else Message(Error(code=1, reason="x"), reply_to=message)

    before, after, info = one_round(setting, FakeGrid(tmp_path, meddle=meddle))
    assert info.participants == 0 and after.round_number == 0
    chex.assert_trees_all_equal(before.variables, after.variables)


def test_two_nodes_with_one_id_are_one_client(tmp_path, caplog):
    grid = FakeGrid(tmp_path)
    grid.nodes = {100: 0, 101: 0, 102: 7, 103: 8}
    shutil.copy(tmp_path / "data-0.npz", tmp_path / "data-8.npz")
    roster = make_roster(grid)
    with caplog.at_level(logging.WARNING, "fuprune"):
        assert roster.wait_for(1) == [0]
    assert "client 0 is there already" in caplog.text
    assert "client id is 8" in caplog.text
    # A node that cannot say who it is is asked a few times, and then no more.
    asked = len(grid.seen)
    for _ in range(5):
        roster.refresh()
    assert len(grid.seen) == asked + GREETINGS - 1
    with pytest.raises(TooFewClientsError, match="1 clients are there"):
        roster.wait_for(2)
    # One that comes back as another node is the same client.
    grid.nodes = {205: 0}
    assert roster.refresh() == [0]


def test_a_client_confirms_orders_for_nobody_else(tmp_path):
    """Not in a greeting under another's id, nor in an answer that names another."""

    def claim(header, tree):
        header = {**header, "orders": ["a"]} if header["client"] == 1 else header
        return {**header, "client": 0, "closed": [["a"], "a"]}, tree

    grid = FakeGrid(tmp_path, clients=1)
    roster = make_roster(grid)
    roster.wait_for(1)
    roster.orders = {"a": Entry("a", (1,))}
    grid.nodes[101], grid.meddle = 1, meddling("query.hello", claim)
    assert roster.refresh() == [0] and not roster.confirmed.get(0)
    grid.nodes[102], grid.meddle = 2, meddling("query.forget", claim, client=2)
    # Orders come with the first request to a client that has said who it is.
    assert roster.refresh() == [0, 2] and not roster.confirmed[2]
    roster.exchange("query.forget", {2: ({"order": "a"}, None)})
    assert roster.closed[2] == roster.confirmed[2] == {"a"}
    assert not roster.closed.get(0)


def test_what_a_client_complains_of_is_one_line_of_the_log(tmp_path, caplog):
    """Else it could write lines that read as the server's own."""
    text = "no images\nfuprune: error: the run is over"
    complain = meddling("query.hello", said(problem=text))

    def meddle(client, message, reply):
        if client:
            return complain(client, message, reply)
        return Message(Error(code=1, reason=text), reply_to=message)

    with caplog.at_level(logging.WARNING, "fuprune"):
        roster = make_roster(FakeGrid(tmp_path, clients=2, meddle=meddle))
        assert roster.refresh() == []
    messages = [record.getMessage() for record in caplog.records]
    assert sum("the run is over" in line for line in messages) == 2
    assert not any("\n" in line for line in messages)


@pytest.mark.parametrize(
    "lie",
    [
        said(shape=["wide"]),
        said(shape=[8, 8]),
        said(shape=[40_000, 40_000, 1]),
        said(examples=-1),
        said(examples=10**8),
        lambda header, tree: (header, np.zeros(2**18)),  # as large as a model
    ],
)
def test_a_client_that_describes_its_images_wrongly_is_left_out_alone(tmp_path, lie):
    grid = FakeGrid(tmp_path, meddle=meddling("query.hello", lie))
    assert make_roster(grid).refresh() == [0, 2]


def test_a_client_proves_by_its_key_who_it_is(tmp_path):
    keys = tmp_path / "keys"
    make_certificates(keys, hosts=["localhost"], nodes=3)
    grid = FakeGrid(tmp_path)
    grid.keys = {100: "node-0", 101: "node-2"}  # client 1 has another's, 2 has none
    assert make_roster(grid, keys=keys).refresh() == [0]
    # Nor does the proof of another greeting help.
    proof = unpack(grid.seen[0][1].content)[0]["proof"]
    grid.meddle = meddling("query.hello", said(proof=proof), client=0)
    assert make_roster(grid, keys=keys).refresh() == []


def test_a_client_that_never_answers_is_waited_for_ever_less(tmp_path):
    grid = FakeGrid(tmp_path, meddle=meddling("query.forget", None))
    roster, asked = make_roster(grid), []
    roster.orders = {"a": Entry("a", (1,))}
    for _ in range(16):
        present = roster.wait_for(2)
        asked.append(1 in present)
        roster.exchange("query.forget", {k: ({"order": "a"}, None) for k in present})
    assert asked[:3] == [True] * 3 and sum(asked[3:]) == 2
    # Unless there are too few without it.
    assert roster.wait_for(3) == [0, 1, 2]


def test_nobody_has_more_weight_than_several_others(setting, tmp_path):
    hello = meddling("query.hello", said(examples=90_000))
    train = meddling("train", updated(2, lambda x: np.float32(90_000)))

    def meddle(client, message, reply):
        return train(client, message, hello(client, message, reply))

    *_, info = one_round(setting, FakeGrid(tmp_path, meddle=meddle))
    honest = np.asarray(info.weights)[[0, 2]]
    assert info.weights[1] == 10 * np.median([*honest, 90_000])


def test_sums_of_colours_of_another_form_are_not_taken(tmp_path):
    def longer(header, tree):
        return header, np.zeros(9, np.int64)

    grid = FakeGrid(tmp_path, meddle=meddling("query.hello", longer))
    roster = make_roster(grid, normalise=True)
    assert roster.refresh() == [0, 1, 2] and list(roster.channel_sums) == [0, 2]


def test_programs_without_a_task_are_refused_in_one_line(setting, tmp_path):
    clients, _ = remote(FakeGrid(tmp_path), setting[0])
    nothing = ClientProgram(lambda c: 0, lambda s, c: (), lambda *a: (), lambda *a: ())
    for program in (nothing, nothing._replace(task=Task("eval", setting[2]))):
        with pytest.raises(InputError, match="needs uploads only"):
            clients(program)


@pytest.mark.parametrize(
    "wrong",
    [
        {},  # this one does
        {"task": "os.system"},
        {"arguments": {"local_step": 3}},
        {"arguments": {"max_length": 3}},
        {"settings": {"teacher": "resnet8"}},
        {"spec": {"factory": "os:getcwd", "num_classes": 10}},
        {"classes": None},
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_a_line(
    setting, tmp_path, wrong
):
    grid = FakeGrid(tmp_path)
    clients, _ = remote(grid, setting[0])
    header = clients._header(rebuild.spec(small_model()), [0, 1])
    header["arguments"] = {"local_epochs": 2, "batch_size": 8}
    header |= {"task": "local_sgd"}
    for name, value in wrong.items():
        nested = name in ("arguments", "settings")
        header[name] = header[name] | value if nested else value
    context = TrainContext(setting[3], jax.random.key(0), np.float32(1), None)
    replies = clients.roster.exchange("train", {0: (header, context)})
    reply, _ = unpack(grid.seen[-1][1].content)
    assert bool(replies) is (reply["problem"] is None) is (not wrong)
    assert "\n" not in str(reply["problem"])


def test_clients_read_the_classes_that_the_servers_data_name(setting, tmp_path):
    config, local, model, variables = setting
    clients, data = remote(FakeGrid(tmp_path), config)
    without = drop_classes(data, (3, 4))
    everywhere = clients.evaluate(model, variables, range(10))
    fewer = clients.evaluate(model, variables, np.unique(without.rows[0]))
    counts = np.bincount(local.train.labels, minlength=10)
    np.testing.assert_array_equal(everywhere.confusion.sum(axis=1), counts)
    counts[[3, 4]] = 0
    np.testing.assert_array_equal(fewer.confusion.sum(axis=1), counts)


@pytest.mark.parametrize("count", [2**62, -1, 1])
def test_counts_of_more_images_than_a_client_has_are_turned_away(
    setting, tmp_path, count
):
    """Four of 2 ** 62 add up to 0 in 64 bits."""

    def boast(header, tree):
        tree[0][0, :4] += count
        return header, tree

    config, _, model, variables = setting
    grid = FakeGrid(tmp_path, meddle=meddling("evaluate", boast))
    clients, _ = remote(grid, config)
    found = clients.evaluate(model, variables, range(10))
    held = clients.roster.examples
    assert found.confusion.sum() == held[0] + held[2]
