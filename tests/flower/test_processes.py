"""The real thing: a SuperLink, SuperNodes, keys and certificates, on free ports."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from fuprune.flower.certificates import make_certificates
from fuprune.flower.launch import Federation, deal
from tests.environment import QUICK_COMPILATION

pytestmark = pytest.mark.slow
CONFIG = (
    "data.limit=12 data.validation=0 partition.kind=iid partition.clients={n} "
    "train.cohort={n} train.batch_size=16 train.rounds={rounds} "
    "train.local_epochs=1 fine_tune.rounds=1 prune.rate=0.2"
)


def patience(nodes, rounds=1, **more):
    """Settings of a run that waits for the slow, and not long for the dead."""
    config = CONFIG.format(n=nodes, rounds=rounds)
    waits = {"join_seconds": 300, "reply_seconds": 300}
    return {"config": config, "min_clients": 2, **waits, **more}


@pytest.fixture(autouse=True)
def short_lived_programs(monkeypatch):
    """Each process has one thread, and a program that runs once is not optimised."""
    for name, value in {"OMP_NUM_THREADS": "1", **QUICK_COMPILATION}.items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def started(folder, nodes):
    with Federation(folder) as federation:
        federation.start(nodes)
        for client in range(deal(CONFIG.format(n=nodes, rounds=1), folder)):
            federation.start_node(client)
        yield federation


@contextlib.contextmanager
def aside(federation, **config):
    """A run that goes on while the body does something to the federation."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(federation.run, **config)
        yield run
        run.result()


def await_text(path, text):
    """Waits until a log has a text."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if path.exists() and text in path.read_text("utf-8", errors="replace"):
            return
        time.sleep(0.3)
    raise AssertionError(f"no {text!r} in {path}")


def rounds_of(folder):
    """The rows of the rounds that a run trained."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["round"]]


def logged(federation, client):
    """The rows of a client's log of orders."""
    log = federation.folder / f"client-{client}" / "orders.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()]


def kill_tree(process):
    """As a machine that loses power: the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def test_keys_and_orders_in_a_federation_with_certificates(tmp_path):
    """Trains, forgets on order, and refuses a node whose key nobody registered."""
    make_certificates(tmp_path / "other", hosts=["localhost"], nodes=1)
    common, told = patience(2), []
    with started(tmp_path / "f", 2) as federation:
        assert federation.door != federation.port
        federation.run(told.append, command="train", **common)
        shutil.copy(tmp_path / "f" / "data-1.npz", tmp_path / "f" / "data-2.npz")
        federation.start_node(2, key=tmp_path / "other" / "node-0")
        federation.run(
            told.append, command="forget", classes="3", order="a-1", **common
        )
        assert federation.nodes[2].wait(120) != 0
    assert told.count("clients 0, 1 are there") == 2
    assert "order a-1 is closed, and in the logs of clients 0, 1" in told
    assert list(federation.workdir.glob("orders/*/report/report.html"))
    for client in range(2):
        rows = logged(federation, client)
        assert [row["closed"] for row in rows] == [False, True]
    for process in (*federation.nodes.values(), federation.link):
        assert process.poll() is not None


def test_the_round_goes_on_without_a_node_that_is_killed_in_training(tmp_path):
    with started(tmp_path / "f", 3) as federation:
        with aside(federation, command="train", **patience(3)):
            await_text(tmp_path / "f" / "logs" / "node-2.log", "Receiving: train")
            kill_tree(federation.nodes[2])
    (row,) = rounds_of(federation.workdir / "training")
    assert row["participants"] == 2


def test_an_order_is_carried_out_without_a_node_that_is_killed(tmp_path):
    common = patience(3)
    with started(tmp_path / "f", 3) as federation:
        federation.run(command="train", **common)
        order = {"classes": "3", "order": "a-1"}
        with aside(federation, command="forget", **common, **order):
            seen = tmp_path / "f" / "logs" / "node-2.log"
            await_text(seen, "Receiving: query.class_statistics ")
            kill_tree(federation.nodes[2])
        (row,) = rounds_of(next(federation.workdir.glob("orders/*")))
        assert row["participants"] == 2
        # It comes back, and hears that the order is closed with the first request.
        federation.start_node(2)
        federation.run(command="evaluate", **common | {"min_clients": 3})
    (row,) = json.loads((federation.workdir / "orders.json").read_text())
    assert sorted(row["closed_by"]) == ["0", "1", "2"]


def test_a_client_leaves_and_single_examples_go_in_a_real_federation(tmp_path):
    common, told = patience(3, method="fine_tune_only"), []
    with started(tmp_path / "f", 3) as federation:
        federation.run(command="train", **common)
        federation.run(command="forget", order="b-1", examples="0:3,1:5,1:0", **common)
        federation.run(command="forget", order="c-1", clients="2", **common)
        federation.run(told.append, command="evaluate", **common)
    rows = json.loads((federation.workdir / "orders.json").read_text())
    assert [row["order"] for row in rows] == ["b-1", "c-1"]
    for row in rows:
        assert sorted(row["confirmed"]) == sorted(row["closed_by"]) == ["0", "1", "2"]
    # Positions are told to their holder alone.
    logs = [
        {row["order"].split("/")[1]: row for row in logged(federation, k)}
        for k in range(3)
    ]
    assert [sorted(log["b-1"]["examples"]) for log in logs] == [[3], [0, 5], []]
    assert all(log["c-1"]["clients"] == [2] for log in logs)
    # Who has left is asked for nothing but to log orders.
    taken = (tmp_path / "f" / "logs" / "node-2.log").read_text()
    assert taken.count("Receiving: train ") == 2 and "Receiving: evaluate" not in taken
    for folder, participants in (("b-1", 3), ("c-1", 2)):
        (row,) = rounds_of(next(federation.workdir.glob(f"orders/{folder}-*")))
        assert row["participants"] == participants
    # 40 images each, and three of the two who stay are no longer read.
    assert any("accuracy on the 77 images of clients" in line for line in told)


def test_a_killed_server_and_a_restarted_link_lose_nothing(tmp_path):
    common = patience(2, rounds=3)
    with started(tmp_path / "f", 2) as federation:
        federation.start_run(command="train", **common)
        training = federation.workdir / "training"
        await_text(training / "metrics.jsonl", '"round": 1')
        kill_tree(federation.link)  # the ServerApp is its child
        federation.start_link()
        federation.run(command="train", **common)
    assert [row["round"] for row in rounds_of(training)] == [1, 2, 3]


def processes_of(folder):
    """Ids of the processes whose command line names the folder."""
    found = subprocess.run(
        ["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


def test_an_interrupted_rehearsal_leaves_no_process(tmp_path):
    folder, log = tmp_path / "f", tmp_path / "log"
    command = [sys.executable, "-m", "fuprune.flower.launch", "rehearse"]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*command, "--nodes", "1", "--folder", str(folder)],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        await_text(log, "clients 0 are there")
        assert len(processes_of(folder)) > 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    assert "everything it started is ended" in log.read_text()
    assert processes_of(folder) == []
