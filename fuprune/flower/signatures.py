"""Signatures by OpenSSH keys: a node proves who it is, the operator signs orders."""

import contextlib
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fuprune.errors import InputError


def sign(path: Path, text: str) -> str:
    """The signature of a text by a private key, in hexadecimal digits."""
    key = _read(path, lambda data: load_ssh_private_key(data, None))
    return key.sign(text.encode(), *_hashed(key)).hex()


def is_signed(path: Path, text: str, signature: Any) -> bool:
    """Whether the signature of a text is by the private half of a public key."""
    key = _read(path, load_ssh_public_key)
    with contextlib.suppress(InvalidSignature, TypeError, ValueError):
        key.verify(bytes.fromhex(signature), text.encode(), *_hashed(key))
        return True
    return False


def _hashed(key) -> tuple[ec.ECDSA, ...]:
    """What the nodes' curve takes beside a text, and the operator's does not."""
    of_node = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return (ec.ECDSA(hashes.SHA384()),) if of_node else ()


def _read(path: Path, load) -> Any:
    try:
        return load(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no key that can be read ({error}).") from None
