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
from fuprune.flower.records import pack, unpack
from fuprune.flower.roster import GREETINGS, Roster
from fuprune.flower.settings import Timeouts
from fuprune.run import build
from fuprune.surgery import rebuild
from tests.flower.small import SHAPE, FakeGrid, remote, small_model

SPEC = rebuild.spec(small_model())


def make_roster(grid, **options):
    return Roster(grid, 3, Timeouts(5, 1, 0.01), shape=SHAPE, **options)


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


def change_update(field, change):
    def changed(header, tree):
        total, (update, stats, *rest) = tree
        parts = {"update": update, "stats": stats}
        parts[field] = jax.tree.map(change, parts[field])
        return header, (total, (*parts.values(), *rest))

    return changed


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
    "huge": (change_update("update", lambda x: np.full_like(x, 1e30)), True),
    "long": (change_update("update", lambda x: -50 * x), True),
    "variance": (change_update("stats", lambda x: x - 2), True),
    "statistics": (change_update("stats", lambda x: 1e4 + x), True),
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


def test_a_client_that_comes_back_as_another_node_is_the_same_client(tmp_path):
    grid = FakeGrid(tmp_path)
    roster = make_roster(grid)
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
    roster = make_roster(grid)
    roster.wait_for(1)
    roster.orders = {"a": Entry("a", (1,))}
    grid.nodes[101] = 1
    assert roster.refresh() == [0] and not roster.confirmed.get(0)
    grid.meddle = None
    grid.nodes[102] = 2
    # Orders come with the first request to a client that has said who it is.
    assert roster.refresh() == [0, 2] and not roster.confirmed[2]
    grid.meddle = claim
    roster.exchange("query.forget", {2: ({"order": "a"}, None)})
    assert roster.closed[2] == roster.confirmed[2] == {"a"}
    assert not roster.closed.get(0)


def test_what_a_client_complains_of_is_one_line_of_the_log(tmp_path, caplog):
    """Else it could write lines that read as the server's own."""
    text = "no images\nfuprune: error: the run is over"

    def complain(client, message, reply):
        if client:
            return Message(Error(code=1, reason=text), reply_to=message)
        return altered(reply, message, lambda h, t: ({**h, "problem": text}, t))

    grid = FakeGrid(tmp_path, clients=2, meddle=complain)
    with caplog.at_level(logging.WARNING, "fuprune"):
        assert make_roster(grid).refresh() == []
    messages = [record.getMessage() for record in caplog.records]
    assert sum("the run is over" in line for line in messages) == 2
    assert not any("\n" in line for line in messages)


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": ["wide"]},
        {"shape": [8, 8]},
        {"shape": [9, 9, 1]},
        {"shape": [40_000, 40_000, 1]},
        {"examples": -1},
        {"examples": 2**31 - 1},
        {"examples": 10**8},
    ],
)
def test_a_client_that_describes_its_images_wrongly_is_left_out_alone(tmp_path, lie):
    def boast(client, message, reply):
        boasts = (lambda h, t: ({**h, **lie}, t)) if client == 0 else (lambda *x: x)
        return altered(reply, message, boasts)

    assert make_roster(FakeGrid(tmp_path, meddle=boast)).refresh() == [1, 2]


def test_a_greeting_as_large_as_a_model_is_refused(tmp_path, caplog):
    def swell(client, message, reply):
        more = np.zeros(2**18 if client else 1)
        return altered(reply, message, lambda h, t: (h, more))

    with caplog.at_level(logging.WARNING, "fuprune"):
        assert make_roster(FakeGrid(tmp_path, meddle=swell)).refresh() == [0]
    assert "bytes, 1048576 at most" in caplog.text


def test_a_client_proves_by_its_key_who_it_is(tmp_path):
    keys = tmp_path / "keys"
    make_certificates(keys, hosts=["localhost"], nodes=3)
    grid = FakeGrid(tmp_path)
    grid.keys = {100: "node-0", 101: "node-2"}  # client 1 has another's, 2 has none
    assert make_roster(grid, keys=keys).refresh() == [0]

    # Nor does the proof of another greeting help.
    def replay(client, message, reply):
        replay.proof = replay.proof or unpack(reply.content)[0].get("proof")
        return altered(reply, message, lambda h, t: ({**h, "proof": replay.proof}, t))

    grid.keys, grid.meddle, replay.proof = {100: "node-0"}, replay, None
    assert make_roster(grid, keys=keys).refresh() == [0]
    assert make_roster(grid, keys=keys).refresh() == []


def test_a_client_that_never_answers_is_waited_for_ever_less(tmp_path):
    def mute(client, message, reply):
        silent = client == 1 and message.metadata.message_type == "query.forget"
        return None if silent else reply

    roster, asked = make_roster(FakeGrid(tmp_path, meddle=mute)), []
    roster.orders = {"a": Entry("a", (1,))}
    for _ in range(16):
        present = roster.wait_for(2)
        asked.append(1 in present)
        roster.exchange("query.forget", {k: ({"order": "a"}, None) for k in present})
    assert asked[:3] == [True] * 3 and sum(asked[3:]) == 2
    # Unless there are too few without it.
    assert roster.wait_for(3) == [0, 1, 2]


def test_nobody_has_more_weight_than_several_others(setting, tmp_path):
    def boast(client, message, reply):
        if client == 1 and message.metadata.message_type == "query.hello":
            return altered(reply, message, lambda h, t: ({**h, "examples": 90_000}, t))
        if client == 1:
            return altered(
                reply, message, lambda h, t: (h, (t[0], (*t[1][:2], *claim_of(t[1]))))
            )
        return reply

    def claim_of(update):
        return np.float32(90_000), *update[3:]

    *_, info = one_round(setting, FakeGrid(tmp_path, meddle=boast))
    honest = np.asarray(info.weights)[[0, 2]]
    assert info.weights[1] == 10 * np.median([*honest, 90_000])


def test_sums_of_colours_of_another_form_are_not_taken(tmp_path):
    def longer(client, message, reply):
        change = (lambda h, t: (h, np.zeros(9, np.int64))) if client else (lambda *x: x)
        return altered(reply, message, change)

    grid = FakeGrid(tmp_path, meddle=longer)
    roster = make_roster(grid, normalise=True)
    assert roster.refresh() == [0, 1, 2] and list(roster.channel_sums) == [0]


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
    grid, makes_sense = FakeGrid(tmp_path), not wrong
    clients, _ = remote(grid, setting[0])
    header = clients._header(SPEC, [0, 1])
    settings = header["settings"] | wrong.pop("settings", {})
    work = {"local_epochs": 2, "batch_size": 8} | wrong.pop("arguments", {})
    header |= {"task": "local_sgd", "arguments": work, "settings": settings, **wrong}
    context = TrainContext(setting[3], jax.random.key(0), np.float32(1), None)
    replies = clients.roster.exchange("train", {0: (header, context)})
    reply, _ = unpack(grid.seen[-1][1].content)
    assert bool(replies) is (reply["problem"] is None) is makes_sense
    assert "\n" not in str(reply["problem"])


def test_messages_are_arrays_and_json(setting, tmp_path):
    grid = FakeGrid(tmp_path)
    one_round(setting, grid)
    assert len(grid.seen) == 6  # three greetings, three answers
    for pair in grid.seen:
        for message in pair:
            (record,) = message.content.values()
            assert set(record) == {"header", "tree"}
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
