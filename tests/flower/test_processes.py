"""The real thing: a SuperLink, SuperNodes, keys and certificates, on free ports."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import chex
import pytest

from fuprune.flower.certificates import make_certificates
from fuprune.flower.loopback import APP, FederationError, Loopback, main
from fuprune.flower.settings import read_settings
from fuprune.run import checkpoint
from tests.environment import QUICK_COMPILATION
from tests.flower import small

CONFIG = (
    "data.limit=12 data.validation=0 partition.kind=iid partition.clients={n} "
    "train.cohort={n} train.batch_size=16 train.rounds={rounds} "
    "train.local_epochs=1 fine_tune.rounds=1 prune.rate=0.2"
)


def config(nodes, rounds=1):
    return CONFIG.format(n=nodes, rounds=rounds)


def patience(nodes, **more):
    """Settings of a run that waits for the slow, and not long for the dead."""
    return {
        "config": config(nodes, **more),
        "min_clients": 2,
        "join_seconds": 300,
        "reply_seconds": 300,
    }


@pytest.fixture(autouse=True)
def short_lived_programs(monkeypatch):
    """Each process has one thread, and a program that runs once is not optimised."""
    for name, value in {"OMP_NUM_THREADS": "1", **QUICK_COMPILATION}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_keys_and_orders_in_a_federation_with_certificates(tmp_path):
    """Trains, forgets on order, and refuses a node whose key nobody registered."""
    federation = Loopback(tmp_path / "f", 2)
    make_certificates(tmp_path / "other", hosts=["localhost"], nodes=1)
    told = []
    with federation:
        common = {"config": config(2), "min_clients": 2, "join_seconds": 120}
        common |= {"timeout": 500, "on_line": told.append}
        federation.run(command="train", **common)
        stranger = federation.start_node(2, key=tmp_path / "other" / "node-0")
        federation.run(command="forget", classes="3", order="a-1", **common)
        assert stranger.wait(120) != 0
    assert told.count("clients 0, 1 are there") == 2
    assert told[-1] == "order a-1 is closed, and in the logs of clients 0, 1"
    assert list(federation.workdir.glob("orders/*/report/report.html"))
    for client in range(2):
        log = federation.client_folder(client) / "orders.jsonl"
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        assert [row["closed"] for row in rows] == [False, True]
    for process in (*federation.nodes.values(), federation.link):
        assert process.poll() is not None


class BrokenStream(Loopback):
    """A federation whose log breaks off, in place of Flower's commands."""

    def __init__(self, folder, states, log):
        super().__init__(folder, 1, insecure=True)
        self.states, self.shown = iter(states), log

    def start_run(self, **config):
        log = self.folder / "logs" / "run-0.log"
        log.write_text("Successfully started run 17\nfuprune: clients 0 are there\n")
        return subprocess.Popen(["true"]), log

    def flwr(self, *arguments):
        if arguments[0] == "log":
            return self.shown
        state = next(self.states)
        if state == "locked":
            raise FederationError("flwr list: database is locked")
        return f"| 17 | {state} |"


@pytest.mark.parametrize(
    ("states", "log", "said"),
    [
        (("running", "locked", "finished:completed"), "fuprune: finished", None),
        (("finished:failed",), "fuprune: error: no client came", "^no client came$"),
        (("finished:stopped",), "", "the run did not finish"),
    ],
)
def test_a_run_whose_log_breaks_off_is_waited_for(
    tmp_path, monkeypatch, states, log, said
):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    federation, told = BrokenStream(tmp_path, states, log), []
    if said is None:
        assert "finished" in federation.run(on_line=told.append)
    else:
        with pytest.raises(FederationError, match=said):
            federation.run(on_line=told.append)
    assert told == ["clients 0 are there"]


def await_text(path, text, times=1, seconds=600):
    """Waits until a log has a text so many times."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if path.exists():
            found = path.read_text("utf-8", errors="replace").count(text)
            if found >= times:
                return
        time.sleep(0.3)
    raise AssertionError(f"no {text!r} in {path}")


def rounds_of(folder):
    """The rows of the rounds that a run trained."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["round"]]


def kill_tree(process):
    """As a machine that loses power: the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.slow
def test_the_round_goes_on_without_a_node_that_is_killed_in_training(tmp_path):
    federation = Loopback(tmp_path / "f", 3, insecure=True)
    with federation:
        process, log = federation.start_run(command="train", **patience(3))
        await_text(tmp_path / "f" / "logs" / "node-2.log", "Receiving: train")
        kill_tree(federation.nodes[2])
        assert process.wait(1200) == 0
        assert "fuprune: error" not in log.read_text()
    (row,) = rounds_of(federation.workdir / "training")
    assert row["participants"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["query.class_statistics", "train"])
def test_an_order_is_carried_out_without_a_node_that_is_killed(tmp_path, moment):
    """In the statistics, and as the smaller model is sent out."""
    federation = Loopback(tmp_path / "f", 3, insecure=True)
    common = patience(3)
    with federation:
        federation.run(timeout=1200, command="train", **common)
        order = {"classes": "3", "order": "a-1"}
        process, log = federation.start_run(command="forget", **common, **order)
        # In the log of the node, `train` is there once from the first run.
        times = 2 if moment == "train" else 1
        seen = tmp_path / "f" / "logs" / "node-2.log"
        await_text(seen, f"Receiving: {moment} ", times)
        kill_tree(federation.nodes[2])
        assert process.wait(1200) == 0
        assert "fuprune: error" not in log.read_text()
        (row,) = rounds_of(next(federation.workdir.glob("orders/*")))
        assert row["participants"] == 2
        # It comes back, and hears that the order is closed with the first request.
        federation.start_node(2)
        federation.run(timeout=1200, command="evaluate", **common | {"min_clients": 3})
    (row,) = json.loads((federation.workdir / "orders.json").read_text())
    assert sorted(row["closed_by"]) == ["0", "1", "2"]


@pytest.mark.slow
def test_a_client_that_answers_wrongly_counts_for_nothing(tmp_path):
    """Another round's reply, an old model, nonsense: one after the other."""
    app = shutil.copytree(APP, tmp_path / "app")
    wrong = Path(__file__).with_name("wrong_client.py")
    shutil.copy(wrong, app / "fuprune_app" / "client.py")
    federation = Loopback(tmp_path / "f", 3, insecure=True, app=app)
    common, told = patience(3, rounds=4), []
    with federation:
        federation.run(timeout=1200, on_line=told.append, command="train", **common)
    found = rounds_of(federation.workdir / "training")
    assert [row["participants"] for row in found] == [3, 2, 2, 2]
    assert [row.get("rejected", []) for row in found] == [[], [], [], [2]]
    said = "\n".join(told)
    assert said.count("it answers request ") == 1
    assert said.count("it worked on another model than the one that was sent") == 1

    # The model is the one of a federation in which that client fell silent.
    def silent(client, message, reply):
        trained = client == 2 and message.metadata.message_type == "train"
        silent.answered += trained
        return None if trained and silent.answered > 1 else reply

    silent.answered = 0
    grid = small.FakeGrid(tmp_path / "g", common["config"], meddle=silent)
    alone = {"command": "train", "workdir": str(tmp_path / "g" / "server")}
    small.run(grid, read_settings({**alone, "config": common["config"]}))
    (_, one), (_, other) = (
        checkpoint.load(workdir / "training" / "models" / "raw")
        for workdir in (federation.workdir, tmp_path / "g" / "server")
    )
    chex.assert_trees_all_close(one, other, atol=1e-5)


@pytest.mark.slow
def test_a_client_leaves_and_single_examples_go_in_a_real_federation(tmp_path):
    federation = Loopback(tmp_path / "f", 3, insecure=True)
    common = patience(3) | {"timeout": 1200, "method": "fine_tune_only"}
    told = []
    with federation:
        federation.run(command="train", **common)
        federation.run(command="forget", order="b-1", examples="0:3,1:5,1:0", **common)
        federation.run(command="forget", order="c-1", clients="2", **common)
        federation.run(command="evaluate", on_line=told.append, **common)
    rows = json.loads((federation.workdir / "orders.json").read_text())
    assert [(row["order"], row["closed"]) for row in rows] == [
        ("b-1", True),
        ("c-1", True),
    ]
    for row in rows:
        assert sorted(row["confirmed"]) == sorted(row["closed_by"]) == ["0", "1", "2"]
    # Positions are told to their holder alone.
    told_to = [logged(federation, client) for client in range(3)]
    assert [sorted(log["b-1"]["examples"]) for log in told_to] == [[3], [0, 5], []]
    assert all(log["c-1"]["clients"] == [2] for log in told_to)
    # Who has left is asked for nothing but to log orders.
    taken = (tmp_path / "f" / "logs" / "node-2.log").read_text()
    assert taken.count("Receiving: train ") == 2 and "Receiving: evaluate" not in taken
    for folder, participants in (("b-1", 3), ("c-1", 2)):
        (row,) = rounds_of(next(federation.workdir.glob(f"orders/{folder}-*")))
        assert row["participants"] == participants
    # 40 images each, and three of the two who stay are no longer read.
    assert any("accuracy on the 77 images of clients" in line for line in told)


def logged(federation, client):
    """The last row of each order in a client's log, by id."""
    log = federation.client_folder(client) / "orders.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["order"]: row for row in rows}


@pytest.mark.slow
def test_a_killed_server_and_a_restarted_link_lose_nothing(tmp_path):
    federation = Loopback(tmp_path / "f", 2, insecure=True)
    common = patience(2, rounds=3)
    with federation:
        process, _ = federation.start_run(command="train", **common)
        training = federation.workdir / "training"
        await_text(training / "metrics.jsonl", '"round": 1')
        kill_tree(federation.link)  # the ServerApp is its child
        process.wait(120)
        federation.start_link()
        federation.run(timeout=900, command="train", **common)
    assert [row["round"] for row in rounds_of(training)] == [1, 2, 3]


@pytest.mark.slow
def test_too_few_clients_end_in_one_line(tmp_path):
    federation = Loopback(tmp_path / "f", 1, insecure=True)
    with federation, pytest.raises(FederationError, match="1 clients are there"):
        federation.run(
            timeout=300,
            command="train",
            config=config(2),
            min_clients=2,
            join_seconds=20,
        )


@pytest.mark.slow
def test_make_federation_prints_the_table_and_leaves_no_process(tmp_path, capsys):
    folder = tmp_path / "f"
    flags = ["--folder", str(folder), "--nodes", "3", "--config", config(3)]
    assert main(flags) == 0
    printed = capsys.readouterr().out
    assert "class_pruning" in printed
    assert f"report: {folder}" in printed
    assert processes_of(folder) == ""


def processes_of(folder):
    """Ids of the processes whose command line names the folder."""
    found = subprocess.run(
        ["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False
    )
    return found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_federation_leaves_no_process(tmp_path, number):
    folder, log = tmp_path / "f", tmp_path / "log"
    command = [sys.executable, "-m", "fuprune.flower.loopback", "--insecure"]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*command, "--nodes", "1", "--folder", str(folder)],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        await_text(folder / "logs" / "run-0.log", "Successfully started run")
        assert len(processes_of(folder).split()) > 2
        process.send_signal(number)
        assert process.wait(120) == 130
    assert "everything it started is ended" in log.read_text()
    assert processes_of(folder) == ""
