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
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # A path length of 0: it signs servers, and no further authorities.
    extensions = [x509.BasicConstraints(True, 0), _usage(signs=True), identifier]
    _issue(folder / AUTHORITY, "fuprune federation", key, extensions, days)


def _make_link(folder: Path, hosts: Sequence[str], days: int) -> None:
    file = folder / f"{AUTHORITY}.crt"
    authority = x509.load_pem_x509_certificate(file.read_bytes())
    signer = serialization.load_pem_private_key(
        file.with_suffix(".key").read_bytes(), None
    )
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InputError(f"{folder}/{AUTHORITY}.key is not one that this program made.")
    extensions = [
        x509.SubjectAlternativeName([_host(host) for host in hosts]),
        x509.BasicConstraints(False, None),
        _usage(signs=False),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ]
    key, issuer = ec.generate_private_key(ec.SECP384R1()), (authority.subject, signer)
    _issue(folder / LINK, hosts[0][:64], key, extensions, days, issuer)


def _issue(path: Path, name: str, key, extensions, days: int, issuer=None) -> None:
    """Writes a key, and its certificate by an issuer, `(name, key)`, or by itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issued_by, signer = issuer or (subject, key)
    # Five minutes back, for machines whose clocks are a little behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    signed = builder.sign(signer, hashes.SHA384())
    _write_private(path.with_suffix(".key"), key, serialization.PrivateFormat.PKCS8)
    public = signed.public_bytes(serialization.Encoding.PEM)
    write_whole(path.with_suffix(".crt"), public)


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
