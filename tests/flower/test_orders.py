"""A forget order: logged on the client's disk, confirmed, in force from then on."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from fuprune.data.dataset import Dataset
from fuprune.errors import InputError
from fuprune.flower import client_app
from fuprune.flower.certificates import make_certificates
from fuprune.flower.node import Node, load_node, usable
from fuprune.flower.orders import (
    Entry,
    check_entry,
    close_order,
    confirm,
    federation_id,
    log_orders,
    open_order,
    read_book,
    read_log,
    withdraw,
)
from fuprune.flower.records import PROTOCOL

EVERYTHING = range(4)


def answer(kind, node, **header):
    header = {"protocol": PROTOCOL, "request": "r1", **header}
    return client_app.answer(kind, header, {"w": np.ones(2)}, lambda: node)


def make_node(folder, labels=(0, 1, 1, 2, 3), **more):
    labels = np.asarray(labels, np.int32)
    # No two images are alike.
    images = np.arange(len(labels) * 64, dtype=np.uint8).reshape(-1, 8, 8, 1)
    return Node(0, folder, lambda: Dataset(images, labels), **more)


def reads(node, order=None, classes=EVERYTHING, **named):
    return usable(node, read_log(node.folder), classes, order, **named).tolist()


def row(name, *classes, closed=False):
    return {"order": name, "classes": list(classes), "closed": closed}


def test_an_order_is_confirmed_once_it_is_on_disk(tmp_path):
    node = make_node(tmp_path)
    reply, _ = answer("query.forget", node, order="a", orders=[row("a", 1)])
    assert reply["problem"] is None
    assert reply["confirmed"] == "a" and reply["orders"] == ["a"]
    lines = (tmp_path / "orders.jsonl").read_text().splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["classes"] == [1]
    # The same order again adds nothing, its closing does.
    log_orders(node, [row("a", 1)])
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 1
    log_orders(node, [row("a", 1, closed=True)])
    assert read_log(tmp_path)["a"].closed


def test_forgotten_images_are_left_out_whatever_the_server_asks(tmp_path):
    node = make_node(tmp_path)
    assert reads(node) == [0, 1, 2, 3, 4]
    log_orders(node, [row("a", 1), row("b", 3, closed=True)])
    assert reads(node) == [0, 3]
    # The method that carries out an open order may read its classes; nobody else's.
    assert reads(node, "a") == [0, 1, 2, 3]
    assert reads(node, "b") == [0, 3]
    # Opening it again does not bring a closed order's images back.
    log_orders(node, [row("b", 3)])
    assert reads(node, "b") == [0, 3]


def test_a_line_that_was_cut_short_loses_nothing_else(tmp_path):
    node = make_node(tmp_path)
    # A client that slept hears of orders with any request.
    reply, _ = answer("query.hello", node, orders=[row("a", 2)])
    assert reply["orders"] == ["a"] and reply["examples"] == 5
    with open(tmp_path / "orders.jsonl", "a") as file:
        file.write('{"order": "b", "cla')
    # The next order starts a line of its own, or it would be lost with the cut one.
    assert sorted(log_orders(node, [row("c", 2)])) == ["a", "c"]


def test_a_client_without_images_tells_sums_of_no_colours(tmp_path):
    reply, sums = answer("query.hello", make_node(tmp_path, ()), normalise=True)
    assert reply["problem"] is None and reply["examples"] == 0
    assert sums.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        [{"order": "", "classes": [1]}],
        [{"order": "a\nb", "classes": [1]}],
        [{"order": "a", "classes": [-1]}],
        [{"order": "a", "classes": "1"}],
        [{"order": "a", "examples": [0.5]}],
        [{"order": "a", "examples": [5]}],  # it has five
        [3],
        {"order": "a"},
    ],
)
def test_what_is_no_order_is_refused(tmp_path, wrong):
    node = make_node(tmp_path)
    reply, content = answer("query.hello", node, orders=wrong)
    assert reply["problem"] and content is None
    assert read_log(tmp_path) == {}


def test_only_the_operators_orders_count(tmp_path):
    """For one client each, in one federation, and with exactly what is signed."""
    for name in ("ours", "theirs"):
        make_certificates(tmp_path / name, hosts=["localhost"], nodes=0)
    node = make_node(tmp_path / "node", operator=tmp_path / "ours" / "operator.pub")
    node.folder.mkdir()
    entry = Entry("a", examples=((0, 1), (1, 0)), federation="f")
    false = entry.signed(tmp_path / "theirs" / "operator", 2)
    entry = entry.signed(tmp_path / "ours" / "operator", 2)
    told = entry.for_client(0)
    for wrong in (
        false.for_client(0),
        told._replace(signature=""),
        told._replace(order="g/a"),
        told._replace(examples=(2,)),
        told._replace(clients=(0,)),
        entry.for_client(1),
    ):
        reply, _ = answer("query.forget", node, order="f/a", orders=[wrong._asdict()])
        assert "is not signed by" in reply["problem"] and not read_log(node.folder)
    assert log_orders(node, [told._asdict()])["f/a"].examples == (1,)
    assert log_orders(node, [told._replace(closed=True)._asdict()])["f/a"].closed


def test_a_client_does_not_wait_for_jax_before_it_says_who_it_is():
    source = "import sys, fuprune.flower.client_app; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_another_version_is_told_so(tmp_path):
    reply, _ = answer("query.hello", make_node(tmp_path), protocol=99)
    assert "protocol 99" in reply["problem"]


def enter(workdir, name, **named):
    entry = check_entry(Entry(name, **named), 10, 3, {0: 5, 1: 5})
    return open_order(workdir, entry)


def test_the_ledger_keeps_an_order_through_a_restart(tmp_path):
    enter(tmp_path, "2026-7", classes=(3, 1))
    again = enter(tmp_path, "2026-7", classes=(1, 3))
    assert again.classes == (1, 3) and not again.closed
    assert len(read_book(tmp_path)) == 1
    with pytest.raises(InputError, match="is for something else; give"):
        enter(tmp_path, "2026-7", clients=(1,))
    close_order(tmp_path, "2026-7")
    assert read_book(tmp_path)["2026-7"].closed
    with pytest.raises(InputError, match="no client has confirmed is withdrawn"):
        withdraw(tmp_path, "2026-7")
    names = {Entry(n).folder for n in ("a.b", "a:b", "a_b", "größe")}
    assert len(names) == 4 and not any("/" in n for n in names)


def test_an_order_is_withdrawn_as_long_as_nobody_has_it(tmp_path):
    class Heard:
        confirmed, closed = {0: {"b"}}, {}

    for name in "ab":
        enter(tmp_path, name, classes=(3,))
    confirm(tmp_path, Heard)
    withdraw(tmp_path, "a")
    assert sorted(read_book(tmp_path)) == ["b"]
    with pytest.raises(InputError, match="in the logs of clients 0"):
        withdraw(tmp_path, "b")
    with pytest.raises(InputError, match="was withdrawn, or"):
        enter(tmp_path, "a", classes=(3,))


def test_two_federations_have_orders_of_their_own(tmp_path):
    ids = [federation_id(tmp_path / name) for name in ("one", "two", "one")]
    assert ids[0] == ids[2] != ids[1]
    entries = [Entry("2026-001", (3,), federation=i) for i in ids[:2]]
    first, second = (entry.for_client(0)._asdict() for entry in entries)
    node = make_node(tmp_path)
    log_orders(node, [{**first, "closed": True}, second])
    assert reads(node, entries[1].name) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ({"clients": (3,)}, "ids run from 0 to 2"),
        ({"examples": ((2, 0),)}, "client 2, who is not there"),
        ({"examples": ((1, 5),)}, "example 5 of client 1; allowed: 0 to 4"),
    ],
)
def test_orders_of_what_does_not_exist_are_refused(tmp_path, named, match):
    with pytest.raises(InputError, match=match):
        enter(tmp_path, "a", **named)
    assert read_book(tmp_path) == {}


def test_single_images_belong_to_no_class_once_they_are_ordered(tmp_path):
    entry = Entry("a", examples=((0, 1), (0, 3), (1, 0)))
    told = entry.for_client(0)
    assert told.examples == (1, 3), "and nothing of client 1's"
    node = make_node(tmp_path)
    log_orders(node, [told._asdict(), row("b", 3)])
    assert reads(node) == [0, 2]
    assert reads(node, "a") == [0, 2]
    assert reads(node, "a", [], named=True) == [1, 3]
    # No other order may read them, and what another order names stays out.
    assert reads(node, "b", [], named=True) == []
    log_orders(node, [row("b", 2, closed=True)])
    assert reads(node, "a", [], named=True) == [1]
    log_orders(node, [told._replace(closed=True)._asdict()])
    assert reads(node, "a", named=True) == [0, 2]


def test_an_image_stays_forgotten_wherever_it_moves(tmp_path):
    node = make_node(tmp_path)
    told = Entry("a", examples=((0, 1), (0, 3)), closed=True).for_client(0)
    log_orders(node, [told._asdict()])
    order = [4, 3, 2, 0]  # image 1 is deleted, and the others change places
    shuffled = Dataset(*(part[order] for part in node.data))
    moved = dataclasses.replace(node, load=lambda: shuffled)
    assert reads(moved) == [0, 2, 3]


def test_a_clients_own_file_is_used_whole_whatever_classes_it_lacks(tmp_path):
    images = np.arange(12 * 64, dtype=np.uint64).astype(np.uint8).reshape(12, 8, 8)
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=np.full(12, 7))
    config = {"client-id": 0, "folder": str(tmp_path / "n")}
    own = {"data": "npz:mine.npz", "data-dir": str(tmp_path)}
    node = load_node({**config, **own})
    np.testing.assert_array_equal(node.data.images[..., 0], images)
    assert node.data.labels.tolist() == [7] * 12
    np.savez(tmp_path / "mine.npz", pictures=images)
    with pytest.raises(InputError, match="train_images and train_labels"):
        load_node({**config, **own}).load()
    with pytest.raises(InputError, match="data None"):
        load_node(config)


def test_a_client_that_leaves_confirms_and_takes_part_in_nothing(tmp_path):
    node = make_node(tmp_path)
    order = Entry("a", clients=(0, 2)).for_client(0)._asdict()
    reply, _ = answer("query.forget", node, order="a", orders=[order])
    assert reply["problem"] is None and reply["confirmed"] == "a"
    for kind in ("train", "evaluate", "query.class_statistics", "query.secure_keys"):
        reply, content = answer(kind, node, orders=[order])
        assert "left the federation by order 'a'" in reply["problem"]
        assert content is None
    assert reads(node) == []
    # As long as it is open, the order itself may read what is to be forgotten.
    assert reads(node, "a") == [0, 1, 2, 3, 4]
    log_orders(node, [{**order, "closed": True}])
    assert reads(node, "a") == []
    # Others go on as before.
    assert len(reads(dataclasses.replace(node, client=1))) == 5
