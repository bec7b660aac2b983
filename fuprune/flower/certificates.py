"""Keys and certificates of a federation: `python -m fuprune.flower.certificates DIR`.

It makes an authority, a certificate of the SuperLink for the names and addresses by
which nodes reach it, and a key for each SuperNode. What exists is kept, so it can be
run again for more nodes. Private halves are readable by their owner alone; move a
node's key, and `ca.crt`, to its machine, and keep `ca.key` away from all of them.
"""

import argparse
import contextlib
import datetime
import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fuprune.errors import FupruneError, InputError
from fuprune.files import write_whole

AUTHORITY, LINK = "ca", "superlink"


def make_certificates(
    folder: Path, *, hosts: Sequence[str], nodes: int, days: int = 365
) -> None:
    """Makes what is missing in `folder`.

    There will be `ca.key`, `ca.crt`, `superlink.key` and `superlink.crt` for the names
    and addresses in `hosts`, and `node-0`, `node-0.pub` and so on for SuperNodes.

    Raises:
      InputError: a host or a number makes no sense.
    """
    if nodes < 0 or days < 1 or not hosts:
        raise InputError(
            f"{nodes} nodes, {days} days and hosts {list(hosts)} were asked for; give "
            "at least one host and day."
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / f"{AUTHORITY}.crt").exists():
        _make_authority(folder, days)
    if not (folder / f"{LINK}.crt").exists():
        _make_link(folder, hosts, days)
    for number in range(nodes):
        path = folder / f"node-{number}"
        if not path.exists():
            _make_node_key(path)


def _make_authority(folder: Path, days: int) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fuprune federation")])
    builder = _certificate(name, name, key.public_key(), days)
    # A path length of 0: it signs servers, and no further authorities.
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    _write_pair(folder, AUTHORITY, key, builder.sign(key, hashes.SHA384()))


def _make_link(folder: Path, hosts: Sequence[str], days: int) -> None:
    authority = x509.load_pem_x509_certificate(
        (folder / f"{AUTHORITY}.crt").read_bytes()
    )
    signer = serialization.load_pem_private_key(
        (folder / f"{AUTHORITY}.key").read_bytes(), None
    )
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InputError(f"{folder}/{AUTHORITY}.key is not one that this program made.")
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = _certificate(name, authority.subject, key.public_key(), days)
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(server, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(issuer, critical=False)
    _write_pair(folder, LINK, key, builder.sign(signer, hashes.SHA384()))


def _certificate(subject, issuer, public_key, days: int) -> x509.CertificateBuilder:
    # Five minutes back, for machines whose clocks are a little behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"host {host!r} is neither an address nor a name.") from None


def _make_node_key(path: Path) -> None:
    """An OpenSSH key, which is the form that SuperNodes read."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    # In this order: a kill in between leaves no private half, and both are made again.
    write_whole(path.with_suffix(".pub"), public + b"\n")
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)


def _write_pair(folder: Path, name: str, key, certificate: x509.Certificate) -> None:
    _write_private(folder / f"{name}.key", key, serialization.PrivateFormat.PKCS8)
    public = certificate.public_bytes(serialization.Encoding.PEM)
    write_whole(folder / f"{name}.crt", public)


def _write_private(path: Path, key, form: serialization.PrivateFormat) -> None:
    pem, unlocked = serialization.Encoding.PEM, serialization.NoEncryption()
    write_whole(path, key.private_bytes(pem, form, unlocked), mode=0o600)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--host",
        action="append",
        dest="hosts",
        help="name or address of the SuperLink, as nodes reach it; may be repeated",
    )
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes with a key")
    parser.add_argument("--days", type=int, default=365, help="of validity")
    given = parser.parse_args(arguments)
    try:
        make_certificates(
            given.folder,
            hosts=given.hosts or ["localhost", "127.0.0.1"],
            nodes=given.nodes,
            days=given.days,
        )
    except FupruneError as error:
        print(f"fuprune: error: {error}", file=sys.stderr)
        return 2
    print(f"keys and certificates are in {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
