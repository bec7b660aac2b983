"""A whole federation on this machine: `python -m fuprune.flower.loopback`.

It makes keys and certificates, starts a SuperLink and SuperNodes on loopback, trains,
sends a forget order by `flwr run`, prints the report, and ends every process that it
started. The tests start theirs with the same class. Without `--insecure` everything
speaks TLS and nodes prove who they are; with it nothing but loopback is listened on.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from fuprune.errors import FupruneError
from fuprune.flower.certificates import make_certificates
from fuprune.flower.server_app import FAILED, FINISHED, TOLD

HOST = "127.0.0.1"
APP = Path(__file__).parent / "app"
CONNECTION = "loop"


class FederationError(FupruneError):
    """A process of the federation did not do what it should."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        return bound.getsockname()[1]


class Loopback:
    """A SuperLink and SuperNodes of this machine, in a folder of their own."""

    def __init__(
        self, folder: Path, nodes: int, *, insecure: bool = False, app: Path = APP
    ):
        self.folder = folder.absolute()
        self.app = app
        self.insecure = insecure
        self.size = nodes
        self.port = free_port()
        self.link: subprocess.Popen | None = None
        self.nodes: dict[int, subprocess.Popen] = {}
        self._started: list[subprocess.Popen] = []
        self._keys = self.folder / "keys"
        for name in ("logs", "flwr"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not insecure:
            make_certificates(self._keys, hosts=["localhost", HOST], nodes=nodes)
        trust = f'root-certificates = "{self._keys / "ca.crt"}"'
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{HOST}:{self.port}"\n'
            f"{'insecure = true' if insecure else trust}\n"
        )

    @property
    def workdir(self) -> Path:
        """Of the server."""
        return self.folder / "server"

    def client_folder(self, client: int) -> Path:
        """Of one client."""
        return self.folder / f"client-{client}"

    def start(self) -> None:
        """Starts the link, registers the keys, starts the nodes."""
        self.start_link()
        if not self.insecure:
            keys = [self._keys / f"node-{client}.pub" for client in range(self.size)]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                register = functools.partial(self.flwr, "supernode", "register")
                list(pool.map(lambda key: register(str(key), CONNECTION), keys))
        for client in range(self.size):
            self.start_node(client)

    def start_link(self) -> None:
        """Starts the SuperLink, and waits until it listens."""
        command = [
            *("flower-superlink", "--host", HOST, "--port", str(self.port)),
            *("--database", str(self.folder / "link.db")),
            "--disable-runtime-dependency-installation",
        ]
        if self.insecure:
            command.append("--insecure")
        else:
            command += ["--ssl-ca-certfile", str(self._keys / "ca.crt")]
            command += ["--ssl-certfile", str(self._keys / "superlink.crt")]
            command += ["--ssl-keyfile", str(self._keys / "superlink.key")]
            command.append("--enable-supernode-auth")
        self.link = self._start("superlink", command)
        until = time.monotonic() + 180
        while time.monotonic() < until and self.link.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, self.port), 1).close()
                return
            time.sleep(0.2)
        raise FederationError(
            f"the SuperLink does not listen; see {self._log('superlink')}."
        )

    def start_node(self, client: int, *, key: Path | None = None) -> subprocess.Popen:
        """Starts the SuperNode of one client."""
        config = f'client-id={client} folder="{self.client_folder(client)}"'
        command = [
            *("flower-supernode", "--superlink", f"{HOST}:{self.port}"),
            *("--host", HOST, "--port", str(free_port())),
            *("--node-config", config),
        ]
        if self.insecure:
            command.append("--insecure")
        else:
            key = key or self._keys / f"node-{client}"
            command += ["--root-certificates", str(self._keys / "ca.crt")]
            command += ["--auth-supernode-private-key", str(key)]
        self.nodes[client] = self._start(f"node-{client}", command)
        return self.nodes[client]

    def run(
        self,
        timeout: float = 3600,
        on_line: Callable[[str], None] = lambda line: None,
        **config,
    ) -> str:
        """`flwr run` with the app's keys to its end; what the server printed.

        `on_line` is given the server's lines of progress as they come.

        Raises:
          FederationError: the run failed; the server's last lines are in it.
        """
        process, log = self.start_run(**config)
        until = time.monotonic() + timeout
        text, told, ended = "", 0, False
        while not ended:
            ended = process.poll() is not None
            text = log.read_text("utf-8", errors="replace")
            # Until it has ended, the rest of the last line may be on the way.
            lines = text.split("\n")[: None if ended else -1]
            for line in map(str.rstrip, lines[told:]):
                own = line.startswith(TOLD) and not line.startswith(FAILED)
                if own and line != f"{TOLD}{FINISHED}":
                    on_line(line.removeprefix(TOLD))
            told = len(lines)
            if not ended and time.monotonic() > until:
                stop(process)
                raise FederationError(f"the run took more than {timeout:.0f} s.")
            time.sleep(0.2)
        if FAILED not in text and f"{TOLD}{FINISHED}" not in text:
            # The stream broke, as it does on an overloaded machine: the run goes on.
            text += self._await_end(text, until)
        if FAILED in text:
            line = text[text.index(FAILED) + len(FAILED) :].splitlines()[0]
            raise FederationError(line)
        # Says the server, or Flower.
        if f"{TOLD}{FINISHED}" not in text and "finished:completed" not in text:
            raise FederationError(
                f"the run did not finish; see {log} and {self.folder / 'logs'}."
            )
        return text

    def _await_end(self, text: str, until: float) -> str:
        """The state and the log of a run that is no longer streamed, once it ends."""
        started = re.search(r"started run (\d+)", text)
        while started and time.monotonic() < until:
            with contextlib.suppress(FederationError):  # the link may be overloaded
                state = self.flwr("list", CONNECTION, "--run-id", started[1])
                if "finished:" in state:
                    shown = self.flwr("log", started[1], CONNECTION, "--show")
                    return f"\n{state}\n{shown}"
            time.sleep(3)
        return ""

    def start_run(self, **config) -> tuple[subprocess.Popen, Path]:
        """Starts `flwr run --stream`; the process and its log."""
        settings = {"workdir": str(self.workdir), **config}
        assigned = " ".join(
            f"{name.replace('_', '-')}={json.dumps(value)}"
            for name, value in settings.items()
        )
        number = len(list((self.folder / "logs").glob("run-*.log")))
        command = ["flwr", "run", str(self.app), CONNECTION, "--stream", "-c", assigned]
        process = self._start(f"run-{number}", command)
        return process, self._log(f"run-{number}")

    def flwr(self, *arguments: str) -> str:
        """One command of Flower's."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            raise FederationError(f"flwr {' '.join(arguments)}: {said[-500:]}")
        return done.stdout

    def stop(self) -> None:
        """Ends every process that was started here."""
        stop(*reversed(self._started))

    def __enter__(self) -> "Loopback":
        try:
            self.start()
        except BaseException:  # Ctrl-C among them: nothing may be left running
            self.stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            # Seconds between two looks for a message to start a process for.
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            # Programs of this environment; Flower's processes start others by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen:
        with open(self._log(name), "ab") as log:
            process = subprocess.Popen(
                command,
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own, so that a signal reaches all that it starts.
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"


def stop(*processes: subprocess.Popen) -> None:
    """Ends processes and all that they started."""
    started = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            # Listed while the parents live: orphans no longer tell whose they were.
            started += psutil.Process(process.pid).children(recursive=True)
    for process in processes:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
    until = time.monotonic() + 20
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until - time.monotonic()))
        # What it started may outlive it.
        _signal(process, signal.SIGKILL)
        process.wait()
    # Flower starts some in sessions of their own; they go with their parents, late.
    _, left = psutil.wait_procs(started, timeout=1)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(left, timeout=20)


def _signal(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def demonstrate(folder: Path, given: argparse.Namespace) -> None:
    """Trains, forgets and reports, as `make federation` does."""
    say = functools.partial(print, flush=True)
    settings: Mapping[str, Any] = {
        "config": (
            f"partition.clients={given.nodes} train.cohort={given.nodes} {given.config}"
        ),
        "min_clients": max(1, given.nodes - 1),
        "on_line": lambda line: say(f"  {line}"),
    }
    federation = Loopback(folder, given.nodes, insecure=given.insecure)
    keys = "without TLS or keys" if given.insecure else "with TLS and a key for each"
    say(f"starting a SuperLink and {given.nodes} SuperNodes on {HOST}, {keys}")
    say(f"what each of them says is in {folder}/logs")
    with federation:
        say("training:")
        federation.run(command="train", **settings)
        say(f"forget order {given.order}, class {given.forget}:")
        order = {"order": given.order, "classes": given.forget, "method": given.method}
        federation.run(command="forget", **order, **settings)
        say("ending what was started")
    (report,) = federation.workdir.glob("orders/*/report/report.md")
    say(f"\n{report.read_text('utf-8')}\nreport: {report}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="kept; by default a temporary one")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--forget", default="3", help="the class of the order")
    parser.add_argument("--order", default="demonstration-1", help="its id")
    parser.add_argument("--method", default="class_pruning")
    parser.add_argument(
        "--config",
        default="train.rounds=3 train.local_epochs=8 fine_tune.rounds=2",
        help="keys of fuprune's config",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="without TLS and keys, on loopback"
    )
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fuprune-federation-"))
    # Asked to end by whatever signal, it first ends what it started.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        demonstrate(folder, given)
    except FupruneError as error:
        print(f"fuprune: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fuprune: interrupted; everything it started is ended", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
