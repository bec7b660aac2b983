"""A forget order: logged on the client's disk, confirmed, in force from then on."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fuprune.errors import FupruneError, InputError
from fuprune.flower import client_app, ledger
from fuprune.flower.node import Node, log_orders, read_orders, usable
from fuprune.flower.records import PROTOCOL


def answer(kind, header, tree, node):
    return client_app.answer(kind, header, tree, lambda: node)


def make_node(folder, labels=(0, 1, 1, 2, 3)):
    labels = np.asarray(labels, np.int32)
    return Node(0, folder, np.zeros((len(labels), 8, 8, 1), np.uint8), labels)


def row(name, *classes, closed=False):
    return {"order": name, "classes": list(classes), "closed": closed}


def test_an_order_is_confirmed_once_it_is_on_disk(tmp_path):
    header = {"protocol": PROTOCOL, "request": "r1", "order": "a"}
    reply, _ = answer(
        "query.forget", {**header, "orders": [row("a", 1)]}, None, make_node(tmp_path)
    )
    assert reply["problem"] is None
    assert reply["confirmed"] == "a" and reply["orders"] == ["a"]
    lines = (tmp_path / "orders.jsonl").read_text().splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["classes"] == [1]
    # The same order again adds nothing, its closing does.
    log_orders(tmp_path, [row("a", 1)])
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 1
    log_orders(tmp_path, [row("a", 1, closed=True)])
    assert read_orders(tmp_path)["a"].closed


def test_forgotten_images_are_left_out_whatever_the_server_asks(tmp_path):
    node = make_node(tmp_path)
    everything = range(4)
    assert usable(node, {}, everything, None).tolist() == [0, 1, 2, 3, 4]
    orders = log_orders(tmp_path, [row("a", 1), row("b", 3, closed=True)])
    assert usable(node, orders, everything, None).tolist() == [0, 3]
    # The method that carries out an open order may read its classes; nobody else's.
    assert usable(node, orders, everything, "a").tolist() == [0, 1, 2, 3]
    assert usable(node, orders, everything, "b").tolist() == [0, 3]
    # Opening it again does not bring a closed order's images back.
    orders = log_orders(tmp_path, [row("b", 3)])
    assert usable(node, orders, everything, "b").tolist() == [0, 3]


def test_a_client_that_slept_hears_of_orders_with_any_request(tmp_path):
    header = {"protocol": PROTOCOL, "request": "r1", "orders": [row("a", 2)]}
    reply, _ = answer("query.hello", header, None, make_node(tmp_path))
    assert reply["orders"] == ["a"] and reply["examples"] == 5
    assert read_orders(tmp_path)["a"].classes == (2,)


def test_a_line_that_was_cut_short_loses_nothing_else(tmp_path):
    log_orders(tmp_path, [row("a", 1)])
    with open(tmp_path / "orders.jsonl", "a") as file:
        file.write('{"order": "b", "cla')
    assert sorted(read_orders(tmp_path)) == ["a"]
    # The next order starts a line of its own, or it would be lost with the cut one.
    assert sorted(log_orders(tmp_path, [row("c", 2)])) == ["a", "c"]


def test_a_client_without_images_tells_sums_of_no_colours(tmp_path):
    header = {"protocol": PROTOCOL, "request": "r1", "normalise": True}
    reply, sums = answer("query.hello", header, None, make_node(tmp_path, ()))
    assert reply["problem"] is None and reply["examples"] == 0
    assert sums.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        [{"order": "", "classes": [1]}],
        [{"order": "a", "classes": [-1]}],
        [{"order": "a", "classes": "1"}],
        [{"order": "a", "classes": [True]}],
        [{"order": "a", "clients": [-2]}],
        [{"order": "a", "examples": [0.5]}],
        [3],
        {"order": "a"},
    ],
)
def test_what_is_no_order_is_refused(tmp_path, wrong):
    with pytest.raises(FupruneError):
        log_orders(tmp_path, wrong)
    header = {"protocol": PROTOCOL, "request": "r1", "orders": wrong}
    reply, content = answer("query.hello", header, None, make_node(tmp_path))
    assert reply["problem"] and content is None
    assert read_orders(tmp_path) == {}


def test_a_client_does_not_wait_for_jax_before_it_says_who_it_is():
    source = "import sys, fuprune.flower.client_app; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_another_version_is_told_so(tmp_path):
    reply, _ = answer("query.hello", {"protocol": 99}, None, make_node(tmp_path))
    assert "protocol 99" in reply["problem"]


def enter(workdir, name, **named):
    entry = ledger.check_entry(ledger.Entry(name, **named), 10, 3, {0: 5, 1: 5})
    return ledger.open_order(workdir, entry)


def test_the_ledger_keeps_an_order_through_a_restart(tmp_path):
    enter(tmp_path, "2026-7", classes=(3, 1))
    again = enter(tmp_path, "2026-7", classes=(1, 3))
    assert again.classes == (1, 3) and not again.closed
    assert len(ledger.read(tmp_path)) == 1
    with pytest.raises(InputError, match="is for classes 1, 3, not for client 1; give"):
        enter(tmp_path, "2026-7", clients=(1,))
    assert ledger.close_order(tmp_path, "2026-7")["2026-7"].closed
    names = {ledger.folder_name(n) for n in ("a.b", "a:b", "a_b")}
    assert len(names) == 3 and not any("/" in n for n in names)


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ({"clients": (3,)}, "ids run from 0 to 2"),
        ({"examples": ((2, 0),)}, "client 2, who is not there"),
        ({"examples": ((1, 5),)}, "examples run from 0 to 4"),
    ],
)
def test_orders_of_what_does_not_exist_are_refused(tmp_path, named, match):
    with pytest.raises(InputError, match=match):
        enter(tmp_path, "a", **named)
    assert ledger.read(tmp_path) == {}


def test_single_images_belong_to_no_class_once_they_are_ordered(tmp_path):
    entry = ledger.Entry("a", examples=((0, 1), (0, 3), (1, 0)))
    told = entry.for_client(0)
    assert told.examples == (1, 3), "and nothing of client 1's"
    assert entry.for_client(None).examples == ()
    node = make_node(tmp_path)
    # Heard of by a greeting first, which does not know whom it greets.
    log_orders(tmp_path, [entry.for_client(None)._asdict()])
    orders = log_orders(tmp_path, [told._asdict(), row("b", 3)])
    everything = range(4)
    assert usable(node, orders, everything, None).tolist() == [0, 2]
    assert usable(node, orders, everything, "a").tolist() == [0, 2]
    assert usable(node, orders, [], "a", named=True).tolist() == [1, 3]
    # No other order may read them, and what another order names stays out.
    assert usable(node, orders, [], "b", named=True).tolist() == []
    orders = log_orders(tmp_path, [row("b", 2, closed=True)])
    assert usable(node, orders, [], "a", named=True).tolist() == [1]
    orders = log_orders(tmp_path, [told._replace(closed=True)._asdict()])
    assert usable(node, orders, everything, "a", named=True).tolist() == [0, 2]


def test_a_client_that_leaves_confirms_and_takes_part_in_nothing(tmp_path):
    node = make_node(tmp_path)
    order = ledger.Entry("a", clients=(0, 2)).for_client(0)._asdict()
    header = {"protocol": PROTOCOL, "request": "r1", "orders": [order]}
    reply, _ = answer("query.forget", {**header, "order": "a"}, None, node)
    assert reply["problem"] is None and reply["confirmed"] == "a"
    for kind in ("train", "evaluate", "query.class_statistics", "query.secure_keys"):
        reply, content = answer(kind, header, {"w": np.ones(2)}, node)
        assert "left the federation by order 'a'" in reply["problem"]
        assert content is None
    orders = read_orders(tmp_path)
    assert usable(node, orders, range(4), None).tolist() == []
    # As long as it is open, the order itself may read what is to be forgotten.
    assert usable(node, orders, range(4), "a").tolist() == [0, 1, 2, 3, 4]
    orders = log_orders(tmp_path, [{**order, "closed": True}])
    assert usable(node, orders, range(4), "a").tolist() == []
    # Others go on as before.
    assert usable(node._replace(client=1), orders, range(4), None).size == 5
