"""Keys and certificates of a federation, made where they are missing.

An authority (`ca`), a certificate of the gate for the names and addresses by which
nodes reach it (`superlink`), a key for each SuperNode (`node-K`), and the operator's,
which signs forget orders (`operator`). `node-K`, `ca.crt` and `operator.pub` go to the
machine of client K, `operator` to whoever may order, and `ca.key` to none of them.
"""

import contextlib
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fuprune.errors import InputError
from fuprune.files import write_whole

HERE = ("localhost", "127.0.0.1")  # by which the link's own processes reach it
DAYS = 365  # that a certificate is good for
_PEM, _OPENSSH = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH


def make_certificates(folder: Path, *, hosts: Sequence[str], nodes: int) -> None:
    """Makes what is missing in `folder`, so that it can be called for more nodes."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = [_host(host) for host in dict.fromkeys((*hosts, *HERE))]
    authority, link = folder / "ca.crt", folder / "superlink.crt"
    if not authority.exists():
        # A path length of 0: it signs servers, and no further authorities.
        _issue(folder / "ca", "fuprune federation", [x509.BasicConstraints(True, 0)])
    if not link.exists():
        issuer = x509.load_pem_x509_certificate(authority.read_bytes()).subject
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        rights = [
            x509.SubjectAlternativeName(names),
            x509.BasicConstraints(False, None),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        ]
        _issue(folder / "superlink", hosts[0][:64], rights, (issuer, key))
    made = x509.load_pem_x509_certificate(link.read_bytes())
    known = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = [str(name.value) for name in names if name not in known]
    if missing:
        raise InputError(
            f"{link} is not for {', '.join(missing)}; delete it to have another made, "
            "and start the link again."
        )
    _make_pair(folder / "operator", ed25519.Ed25519PrivateKey.generate)
    for number in range(nodes):
        _make_pair(folder / f"node-{number}", _curve_key)


def _curve_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _issue(path: Path, name: str, rights: list, issuer: Any = None) -> None:
    """Writes a key, and its certificate by an issuer, `(name, key)`, or by itself."""
    key = _curve_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issued_by, signer = issuer or (subject, key)
    # Five minutes back, for machines whose clocks are a little behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = start + datetime.timedelta(days=DAYS)
    builder = x509.CertificateBuilder(
        issued_by, subject, key.public_key(), x509.random_serial_number(), start, end
    )
    # Of nine uses, an authority has two and the gate one.
    signs = issuer is None
    no = False
    usage = x509.KeyUsage(not signs, no, no, no, no, signs, signs, no, no)
    for extension in (
        *rights,
        usage,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ):
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    _write_private(path.with_suffix(".key"), key, serialization.PrivateFormat.PKCS8)
    signed = builder.sign(signer, hashes.SHA384())
    write_whole(path.with_suffix(".crt"), signed.public_bytes(_PEM))


def _host(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"host {host!r} is neither an address nor a name.") from None


def _make_pair(path: Path, generate) -> None:
    """A key and its public half in OpenSSH's form, which SuperNodes read."""
    if path.exists():
        return
    key, form = generate(), serialization.PublicFormat.OpenSSH
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, form)
    # In this order: a kill in between leaves no private half, and both are made again.
    write_whole(path.with_suffix(".pub"), public + b"\n")
    _write_private(path, key, _OPENSSH)


def _write_private(path: Path, key, form: serialization.PrivateFormat) -> None:
    plain = serialization.NoEncryption()
    write_whole(path, key.private_bytes(_PEM, form, plain), mode=0o600)
