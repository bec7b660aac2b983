import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fuprune.flower import certificates
from fuprune.flower.certificates import main, make_certificates


def test_the_links_certificate_is_signed_for_its_hosts(tmp_path):
    make_certificates(tmp_path, hosts=["link.example.org", "10.1.2.3"], nodes=2)
    authority, link = (
        x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes())
        for name in ("ca", "superlink")
    )
    link.verify_directly_issued_by(authority)
    names = link.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]
    for certificate, is_authority in ((authority, True), (link, False)):
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert basic.value.ca is is_authority


def test_private_halves_are_their_owners_alone(tmp_path):
    make_certificates(tmp_path, hosts=["localhost"], nodes=1)
    for name in ("ca.key", "superlink.key", "node-0"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    private = load_ssh_private_key((tmp_path / "node-0").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node-0.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public


def test_running_it_again_keeps_what_there_is(tmp_path, capsys):
    assert main([str(tmp_path), "--nodes", "1"]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([str(tmp_path), "--nodes", "2"]) == 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.items() <= after.items() and "node-1" in after
    assert str(tmp_path) in capsys.readouterr().out


def test_a_key_that_a_kill_left_without_its_public_half_is_made_again(
    tmp_path, monkeypatch
):
    def die(path, *content, **options):
        write_whole(path, *content, **options)
        if path.name.startswith("node-"):
            raise KeyboardInterrupt

    write_whole = certificates.write_whole
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(certificates, "write_whole", die)
        make_certificates(tmp_path, hosts=["localhost"], nodes=1)
    make_certificates(tmp_path, hosts=["localhost"], nodes=1)
    private = load_ssh_private_key((tmp_path / "node-0").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node-0.pub").read_bytes())
    assert private.public_key() == public


@pytest.mark.parametrize("flags", [["--days", "0"], ["--host", "höst"]])
def test_nonsense_is_refused_in_one_line(tmp_path, flags, capsys):
    assert main([str(tmp_path), *flags]) == 2
    assert capsys.readouterr().err.startswith("fuprune: error: ")
