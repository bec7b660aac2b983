"""Signatures by the OpenSSH keys of a federation: nodes' and the operator's.

A node proves with its key which client it is, and the operator signs forget orders.
"""

import contextlib
import json
from collections.abc import Sequence
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

_HASHED = ec.ECDSA(hashes.SHA384())


def sign(path: Path, text: str) -> str:
    """The signature of a text by a private key, in hexadecimal digits."""
    key: Any = _read(path, lambda data: load_ssh_private_key(data, None))
    with_hash = (_HASHED,) if isinstance(key, ec.EllipticCurvePrivateKey) else ()
    return key.sign(text.encode(), *with_hash).hex()


def is_signed(path: Path, text: str, signature: Any) -> bool:
    """Whether the signature of a text is by the private half of a public key."""
    key: Any = _read(path, load_ssh_public_key)
    with_hash = (_HASHED,) if isinstance(key, ec.EllipticCurvePublicKey) else ()
    with contextlib.suppress(InvalidSignature, TypeError, ValueError):
        key.verify(bytes.fromhex(signature), text.encode(), *with_hash)
        return True
    return False


def _read(path: Path, load):
    try:
        return load(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no key that can be read ({error}).") from None


def order_text(
    name: str,
    client: int,
    classes: Sequence[int],
    clients: Sequence[int],
    examples: Sequence[int],
) -> str:
    """What the operator signs of an order for one client.

    `name` is the federation's and the order's; `examples` are the client's own.
    """
    named = (sorted(set(numbers)) for numbers in (classes, clients, examples))
    return json.dumps(["fuprune forget order", name, client, *named])
