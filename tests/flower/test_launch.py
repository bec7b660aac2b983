"""What stands between a link and the outside: certificates, keys, the gate, reasons."""

import json
import stat

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from starlette.testclient import TestClient

from fuprune.errors import InputError
from fuprune.flower import launch
from fuprune.flower.certificates import make_certificates
from fuprune.flower.gate import make_gate
from fuprune.flower.launch import Federation, FederationError, main


def test_the_links_certificate_is_for_its_hosts_and_its_own_processes(tmp_path):
    make_certificates(tmp_path, hosts=["link.example.org", "10.1.2.3"], nodes=2)
    authority, link = (
        x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes())
        for name in ("ca", "superlink")
    )
    link.verify_directly_issued_by(authority)
    names = link.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org", "localhost"]
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    assert list(addresses) == ["10.1.2.3", "127.0.0.1"]
    for made, is_authority in ((authority, True), (link, False)):
        basic = made.extensions.get_extension_for_class(x509.BasicConstraints)
        assert basic.value.ca is is_authority


def test_private_halves_are_their_owners_alone_and_stay(tmp_path):
    make_certificates(tmp_path, hosts=["localhost"], nodes=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("ca.key", "superlink.key", "node-0", "operator"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    make_certificates(tmp_path, hosts=["localhost"], nodes=2)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.items() <= after.items() and "node-1" in after
    # Public halves are written first: a key that a kill left without is made again.
    (tmp_path / "node-0").unlink()
    make_certificates(tmp_path, hosts=["localhost"], nodes=1)
    private = load_ssh_private_key((tmp_path / "node-0").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node-0.pub").read_bytes())
    assert private.public_key() == public
    # Another host needs another certificate, and that is said.
    with pytest.raises(InputError, match=r"not for other\.org; delete it"):
        make_certificates(tmp_path, hosts=["other.org"], nodes=2)


def test_the_gate_passes_on_what_nodes_say_and_nothing_else():
    asked = []

    def link(request):
        asked.append((request.url.raw_path, request.content))
        return httpx.Response(200, content=b"yes", headers={"x-flower": "1"})

    client = httpx.AsyncClient(
        transport=httpx.MockTransport(link), base_url="https://link"
    )
    outside = TestClient(make_gate(client))
    answer = outside.post("/v1/fleet/pull-messages", content=b"node")
    assert (answer.content, answer.headers["x-flower"]) == (b"yes", "1")
    for path in (
        "/v1/control/start-run",
        "/v1/runtime/pull-task-input",
        "/v1/fleet/",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "//v1/control/start-run",
        "/docs",
    ):
        assert outside.post(path).status_code == 404, path
        assert outside.get(path).status_code in (404, 405)
    assert asked == [(b"/v1/fleet/pull-messages", b"node")]


class Told(Federation):
    """A federation without processes, whose server says these lines."""

    def __init__(self, folder, said, state="running", complaint=""):
        super().__init__(folder)
        self.state = state
        self.workdir.mkdir()
        lines = ["fuprune: 17", *said] if said is not None else []
        lines = ["fuprune: 16", "of another run", *lines]
        (self.workdir / "server.log").write_text("\n".join(lines) + "\n")
        (self.folder / "logs" / "superlink.log").write_text(complaint)

    def flwr(self, *arguments):
        if arguments[0] == "run":
            return json.dumps({"success": True, "run-id": "17"})
        if arguments[0] == "log":
            return "the last line\n"
        return json.dumps({"runs": [{"run-id": "17", "status": self.state}]})


@pytest.mark.parametrize(
    ("said", "more", "problem"),
    [
        (["one", "fuprune: finished"], {}, None),
        (["one", "fuprune: error: no client came"], {}, "^no client came$"),
        (["one"], {"state": "finished:failed"}, "ended .*: the last line"),
        (
            None,
            {"complaint": "SSL: CERTIFICATE_VERIFY_FAILED\n"},
            "not started after 0 s: SSL: CERTIFICATE_VERIFY_FAILED",
        ),
    ],
)
def test_a_run_is_followed_to_its_end_or_to_a_reason(
    tmp_path, monkeypatch, said, more, problem
):
    monkeypatch.setattr(launch, "PATIENCE", -1.0)
    federation, told = Told(tmp_path, said, **more), []
    if problem is None:
        federation.run(told.append)
    else:
        with pytest.raises(FederationError, match=problem.replace("0 s", "-1 s")):
            federation.run(told.append)
    assert told == ([] if said is None else ["one"])


def test_a_command_line_that_makes_no_sense_is_refused(tmp_path, capsys):
    for settings in (["command"], ["command=train"]):
        assert main(["run", str(tmp_path), *settings]) == 1
        assert "see --help" in capsys.readouterr().err
