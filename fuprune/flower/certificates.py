"""Keys and certificates of a federation, made where they are missing.

An authority (`ca`), a certificate of the gate for the names and addresses by which
nodes reach it (`superlink`), a key for each SuperNode (`node-K`), and the operator's,
which signs forget orders (`operator`). Private halves are readable by their owner
alone: `node-K`, `ca.crt` and `operator.pub` go to the machine of client K, `operator`
to whoever may order, and `ca.key` to none of them.
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


def make_certificates(
    folder: Path, *, hosts: Sequence[str], nodes: int, days: int = 365
) -> None:
    """Makes what is missing in `folder`, so that it can be called for more nodes.

    Raises:
      InputError: a host makes no sense, or the certificate that is there lacks one.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = [_host(host) for host in dict.fromkeys((*hosts, *HERE))]
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    authority, link = folder / "ca.crt", folder / "superlink.crt"
    if not authority.exists():
        # A path length of 0: it signs servers, and no further authorities.
        rights = [x509.BasicConstraints(True, 0), _usage(signs=True)]
        _issue(folder / "ca", "fuprune federation", rights, end)
    if not link.exists():
        issuer = x509.load_pem_x509_certificate(authority.read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        rights = [
            x509.SubjectAlternativeName(names),
            x509.BasicConstraints(False, None),
            _usage(signs=False),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        ]
        _issue(folder / "superlink", hosts[0][:64], rights, end, (issuer.subject, key))
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
        path = folder / f"node-{number}"
        _make_pair(path, lambda: ec.generate_private_key(ec.SECP384R1()))


def _issue(path: Path, name: str, rights, end, issuer: Any = None) -> None:
    """Writes a key, and its certificate by an issuer, `(name, key)`, or by itself."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issued_by, signer = issuer or (subject, key)
    # Five minutes back, for machines whose clocks are a little behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    public, of_signer = key.public_key(), signer.public_key()
    builder = x509.CertificateBuilder(
        issued_by, subject, public, x509.random_serial_number(), start, end
    )
    for extension in (
        *rights,
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(of_signer),
    ):
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    signed = builder.sign(signer, hashes.SHA384())
    _write_private(path.with_suffix(".key"), key, serialization.PrivateFormat.PKCS8)
    pem = signed.public_bytes(serialization.Encoding.PEM)
    write_whole(path.with_suffix(".crt"), pem)


def _usage(*, signs: bool) -> x509.KeyUsage:
    no = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment"), False
    )
    no |= dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **no
    )


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
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)


def _write_private(path: Path, key, form: serialization.PrivateFormat) -> None:
    pem, unlocked = serialization.Encoding.PEM, serialization.NoEncryption()
    write_whole(path, key.private_bytes(pem, form, unlocked), mode=0o600)
