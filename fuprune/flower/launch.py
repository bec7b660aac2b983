"""A federation's link, its runs, and a rehearsal: `python -m fuprune.flower.launch`.

`link` makes keys and certificates, starts a SuperLink on loopback and the gate through
which nodes reach it, and registers their keys. `run` starts a run there and tells what
the server says, or why nothing happens. `rehearse` does all of it on this machine. What
was started ends with the command, also on Ctrl-C.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fuprune.errors import FupruneError, InputError
from fuprune.flower.certificates import make_certificates
from fuprune.flower.gate import open_gate
from fuprune.flower.server_app import FAILED, FINISHED, LOG, TOLD

HERE = "127.0.0.1"
APP = Path(__file__).parent / "app"
CONNECTION = "federation"
PATIENCE = 60.0  # seconds in which a run must have said something


class FederationError(FupruneError):
    """A process of the federation did not do what it should."""


class Federation:
    """The processes of a link, and perhaps of nodes, with their files in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.keys, self.nodes = self.folder / "keys", {}
        self.workdir = self.folder / "server"  # of the server, unless a run has its own
        self._started: list[subprocess.Popen] = []
        for name in ("logs", "flwr"):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            # Seconds between two looks for a message to start a process for.
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
            "NO_COLOR": "1",
            # Programs of this environment; Flower's processes start others by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, nodes: int, hosts: Sequence[str] = (HERE,), port: int = 0) -> None:
        """Starts the link and a gate for `hosts`; registers nodes' keys."""
        make_certificates(self.keys, hosts=hosts, nodes=nodes)
        self.port = _free_port()
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{HERE}:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self.start_link()
        for key in sorted(self.keys.glob("node-*.pub")):
            # A key that is registered stays so.
            with contextlib.suppress(FederationError):
                self.flwr("supernode", "register", str(key), CONNECTION)
        outside = HERE if tuple(hosts) == (HERE,) else "0.0.0.0"
        self.door = open_gate(self.keys, f"{HERE}:{self.port}", outside, port)

    def start_link(self) -> None:
        """Starts the SuperLink, and waits until it listens."""
        command = ["flower-superlink", "--host", HERE, "--port", str(self.port)]
        command += ["--database", str(self.folder / "link.db")]
        command += ["--ssl-ca-certfile", str(self.keys / "ca.crt")]
        command += ["--ssl-certfile", str(self.keys / "superlink.crt")]
        command += ["--ssl-keyfile", str(self.keys / "superlink.key")]
        command += ["--disable-runtime-dependency-installation"]
        self.link = self._start("superlink", [*command, "--enable-supernode-auth"])
        until = time.monotonic() + 3 * PATIENCE
        while time.monotonic() < until and self.link.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection((HERE, self.port), 1).close()
                return
            time.sleep(0.2)
        raise FederationError(f"the link does not listen; see {self.folder}/logs.")

    def start_node(self, client: int, *, key: Path | None = None) -> None:
        """Starts a SuperNode with a client's part of a dataset that was dealt."""
        key = key or self.keys / f"node-{client}"
        config = f'client-id={client} folder="{self.folder}/client-{client}"'
        config += f' data="npz:{self.folder}/data-{client}.npz"'
        config += f' key="{key}" operator="{self.keys / "operator.pub"}"'
        command = ["flower-supernode", "--superlink", f"{HERE}:{self.door}"]
        command += ["--host", HERE, "--port", str(_free_port())]
        command += ["--root-certificates", str(self.keys / "ca.crt")]
        command += ["--auth-supernode-private-key", str(key), "--node-config", config]
        self.nodes[client] = self._start(f"node-{client}", command)

    def run(
        self, on_line: Callable[[str], None] = lambda line: None, **config
    ) -> list[str]:
        """`flwr run` with the app's keys, to its end; the lines that the server says.

        A run that fails or does not start is a FederationError that says why.
        """
        number, told, asked = self.start_run(**config), [], 0.0
        begun = time.monotonic()
        while True:
            # Asked before the log is read: what it said last is then in there.
            state = ""
            if time.monotonic() > asked + 5:
                state, asked = self._state(number), time.monotonic()
            for line in self._said(number)[len(told) :]:
                told.append(line)
                if line.startswith(FAILED):
                    raise FederationError(line.removeprefix(FAILED))
                if line == FINISHED:
                    return told
                on_line(line)
            if state.startswith("finished"):
                shown = self.flwr("log", number, CONNECTION, "--show").strip()
                last = shown.splitlines()[-1:] or [self._complaint()]
                raise FederationError(f"the run ended ({state}): {last[0][:300]}")
            if not told and time.monotonic() > begun + PATIENCE:
                raise FederationError(
                    f"the run has not started after {PATIENCE:.0f} s: "
                    f"{self._complaint()}"
                )
            time.sleep(0.3)

    def start_run(self, **config) -> str:
        """Starts a run; its number."""
        settings = {"workdir": str(self.workdir), "keys": str(self.keys), **config}
        settings = {name.replace("_", "-"): settings[name] for name in settings}
        self.workdir = Path(settings["workdir"]).expanduser().absolute()
        if settings.get("command") == "forget":
            settings["signatures"] = self._signatures(settings)
        assigned = " ".join(f"{k}={json.dumps(v)}" for k, v in settings.items())
        command = "run", str(APP), CONNECTION, "--format", "json", "-c", assigned
        return str(self._json(*command)["run-id"])

    def _signatures(self, settings: Mapping[str, Any]) -> str:
        """The operator's signatures of a forget order."""
        # Deferred: they load JAX.
        from fuprune.flower.orders import federation_id
        from fuprune.flower.settings import read_settings

        read = read_settings(settings)
        order = read.order._replace(federation=federation_id(read.workdir))
        signed = order.signed(self.keys / "operator", read.config.partition.clients)
        return ",".join(signed.signatures)

    def _state(self, number: str) -> str:
        # The link may be overloaded.
        with contextlib.suppress(FederationError, LookupError, ValueError):
            command = "list", CONNECTION, "--run-id", number, "--format", "json"
            return self._json(*command)["runs"][0]["status"]
        return ""

    def _said(self, number: str) -> list[str]:
        """What the server of a run has said, by its own file."""
        lines = _lines(self.workdir / LOG)
        mine = [i for i, line in enumerate(lines) if line == f"{TOLD}{number}"]
        return lines[mine[-1] + 1 :] if mine else []

    def _complaint(self) -> str:
        """The last line of the link's log that complains."""
        log = self.folder / "logs" / "superlink.log"
        found = [line for line in _lines(log) if "rror" in line or "FAILED" in line]
        return f"{found[-1].strip()[:300] if found else 'no error is there'} ({log})"

    def _json(self, *arguments: str) -> Any:
        said = self.flwr(*arguments)
        return json.loads(said[said.index("{") :])

    def flwr(self, *arguments: str) -> str:
        """One command of Flower's."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            raise FederationError(f"flwr {' '.join(arguments)[:200]}: {said[-500:]}")
        return done.stdout

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_) -> None:
        stop(*reversed(self._started))

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen:
        with open(self.folder / "logs" / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it by way of us
            )
        self._started.append(process)
        return process


def _lines(log: Path) -> list[str]:
    """The whole lines of a log."""
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    return text.split("\n")[:-1]


def deal(text: str, folder: Path) -> int:
    """Writes each client's part of a run's dataset to a folder; how many they are."""
    # Deferred: they load JAX.
    from fuprune.flower.settings import read_config
    from fuprune.run.data import load_data
    from fuprune.run.machine import Runtime

    federation = load_data(read_config(text), Runtime())
    rows, lengths = map(np.asarray, (federation.data.rows, federation.data.lengths))
    images, labels = federation.train
    for client, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        own = row[:length]
        file = folder / f"data-{client}.npz"
        np.savez(file, train_images=images[own], train_labels=labels[own])
    return len(rows)


def _free_port() -> int:
    with socket.create_server((HERE, 0)) as bound:
        return bound.getsockname()[1]


def stop(*processes: subprocess.Popen) -> None:
    """Ends processes and all that they started, some in sessions of their own."""
    started = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            # Listed while the parents live: orphans no longer tell whose they were.
            started += [parent, *parent.children(recursive=True)]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for each in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(each)
        _, started = psutil.wait_procs(started, timeout=20)
    for process in processes:
        process.wait()


def _say(line: str) -> None:
    print(line, flush=True)


def link(given: argparse.Namespace) -> None:
    """Keeps a link and its gate running."""
    with Federation(given.folder) as federation:
        federation.start(given.nodes, given.host, given.port)
        _say(f"nodes reach the link at {given.host[0]}:{federation.door}")
        _say(f"keys are in {federation.keys}, logs in {federation.folder}/logs")
        federation.link.wait()
        raise FederationError(f"the link ended; see {federation.folder}/logs.")


def run(given: argparse.Namespace) -> None:
    """Starts a run at a link that is there, and follows it."""
    wrong = [pair for pair in given.settings if "=" not in pair]
    if wrong or not (given.folder / "flwr" / "config.toml").exists():
        raise InputError(
            f"{wrong[0] if wrong else given.folder} is no "
            f"{'KEY=VALUE' if wrong else 'folder of a link'}; see --help."
        )
    settings: dict[str, Any] = dict(pair.split("=", 1) for pair in given.settings)
    for name, value in settings.items():
        # What is text in the app's table stays text.
        if value.isdecimal() and name not in ("classes", "clients", "order"):
            settings[name] = int(value)
    Federation(given.folder).run(_say, **settings)


def rehearse(given: argparse.Namespace) -> None:
    """Trains, forgets and reports with nodes of this machine."""
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fuprune-federation-"))
    config = f"partition.clients={given.nodes} train.cohort={given.nodes} "
    common = {"config": config + given.config, "min_clients": max(1, given.nodes - 1)}
    with Federation(folder) as federation:
        _say(f"a link and {given.nodes} nodes on {HERE}; logs are in {folder}/logs")
        federation.start(given.nodes)
        for client in range(deal(common["config"], folder)):
            federation.start_node(client)
        federation.run(_say, command="train", **common)
        order = {"order": "rehearsal-1", "classes": given.forget}
        federation.run(_say, command="forget", method=given.method, **order, **common)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("link", help="SuperLink and gate")
    one.set_defaults(do=link)
    one.add_argument("folder", type=Path)
    one.add_argument("--host", action="append", required=True, help="of the gate")
    one.add_argument("--port", type=int, default=443)
    one.add_argument("--nodes", type=int, default=3, help="that have a key")
    one = commands.add_parser("run", help="a run of the app, followed")
    one.set_defaults(do=run)
    one.add_argument("folder", type=Path)
    one.add_argument("settings", nargs="+", metavar="KEY=VALUE")
    one = commands.add_parser("rehearse", help="all of it on this machine")
    one.set_defaults(do=rehearse)
    one.add_argument("--folder", type=Path, help="kept; by default a temporary one")
    one.add_argument("--nodes", type=int, default=3)
    one.add_argument("--forget", default="3", help="the class of the order")
    one.add_argument("--method", default="class_pruning")
    one.add_argument("--config", default=REHEARSAL, help="keys of fuprune's config")
    given = parser.parse_args(arguments)
    # Asked to end by whatever signal, it first ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        given.do(given)
    except (FupruneError, OSError) as error:
        print(f"fuprune: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fuprune: interrupted; everything it started is ended", file=sys.stderr)
        return 130
    return 0


REHEARSAL = "train.rounds=3 train.local_epochs=8 fine_tune.rounds=2"

if __name__ == "__main__":
    sys.exit(main())
