"""Keys of one secure sum, from the side of one party: made, listed, shared, opened.

Keys are X25519 keys, fresh for every sum, because those of clients that drop out are
opened. A client's two secrets are shared by Shamir's scheme: n parts of which any t
recover the secret and fewer say nothing. Shares travel through the server sealed by
ChaCha20-Poly1305, so that only their holders read them. The package cryptography is
imported where it is used: this module is imported without it.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fuprune.errors import InputError, TooFewClientsError
from fuprune.unlearning.secure_sum import check_threshold

KEY_BYTES = 32
# The field of the shares. It holds 64-byte numbers, so that a key is a number in it.
PRIME = 2**521 - 1
SHARE_BYTES = 66  # of a number below PRIME


class Keys(NamedTuple):
    """What one client keeps to itself, for one sum."""

    private_key: bytes  # X25519, of the pair masks; opened if the client drops out
    sealing_key: bytes  # X25519, of the shares under way; never opened
    self_seed: bytes  # of the client's own mask


class PublicKeys(NamedTuple):
    """What one client tells everybody."""

    mask: bytes
    sealing: bytes


class Directory(NamedTuple):
    """What everybody knows."""

    public_keys: tuple[PublicKeys, ...]  # by client
    threshold: int  # how many clients it takes to open a share
    session: str = ""  # which sum it is for


class Party(NamedTuple):
    """One client of one sum."""

    client: int  # its place in the directory
    keys: Keys
    directory: Directory


class HeldShares(NamedTuple):
    """One client's shares of another's secrets."""

    private_key: int
    self_seed: int


def make_keys() -> Keys:
    """A client's keys for one sum; they must not be used for a second one."""
    return Keys(*(os.urandom(KEY_BYTES) for _ in Keys._fields))


def public_keys(keys: Keys) -> PublicKeys:
    """What a client sends first."""
    return PublicKeys(public_key(keys.private_key), public_key(keys.sealing_key))


def make_directory(
    published: Sequence[PublicKeys], threshold: int | None = None, session: str = ""
) -> Directory:
    """The server's list of the clients that take part, by position."""
    threshold = check_threshold(len(published), threshold)
    return Directory(tuple(published), threshold, session)


def check_directory(party: Party) -> None:
    """What a client looks at before it sends anything.

    Raises:
        InputError: its own keys are not where they belong, a key occurs twice, or the
            threshold is below 2 or above the number of clients.
    """
    client, keys, directory = party
    number = len(directory.public_keys)
    if not 0 <= client < number:
        raise InputError(
            f"the directory has {number} clients, and this client is number {client}; "
            "refuse the sum."
        )
    if len(set(itertools.chain(*directory.public_keys))) != 2 * number:
        raise InputError("a key occurs twice in the directory; refuse the sum.")
    if public_keys(keys) != directory.public_keys[client]:
        raise InputError(
            f"the directory has other keys for client {client} than its own; refuse "
            "the sum."
        )
    check_threshold(number, directory.threshold)


def share_keys(party: Party) -> tuple[bytes, ...]:
    """A client's second message: shares of its two secrets, sealed to each holder.

    By holder, this client included, what only the holder can open.
    """
    check_directory(party)
    client, keys, directory = party

    def shares_of(secret: bytes):
        coefficients = [
            # Twice as many bytes as needed, so that the remainder is all but uniform.
            int.from_bytes(os.urandom(2 * SHARE_BYTES)) % PRIME
            for _ in range(directory.threshold - 1)
        ]
        return share_secret(
            int.from_bytes(secret),
            coefficients=coefficients,
            num_shares=len(directory.public_keys),
        )

    pairs = zip(shares_of(keys.private_key), shares_of(keys.self_seed), strict=True)
    sealed = []
    for holder, pair in enumerate(pairs):
        text = b"".join(share.to_bytes(SHARE_BYTES) for share in pair)
        cipher = _sealing_cipher(party, client, holder)
        # Each key seals one text, so the nonce need not vary.
        sealed.append(cipher.encrypt(bytes(12), text, None))
    return tuple(sealed)


def open_shares(party: Party, sealed: Mapping[int, bytes]) -> dict[int, HeldShares]:
    """By owner, what a client holds for the others, from what they sealed to it.

    Raises:
        InputError: something was not sealed by its owner to this client in this sum.
    """
    from cryptography.exceptions import InvalidTag

    client, held = party.client, {}
    for owner, box in sealed.items():
        cipher = _sealing_cipher(party, owner, client)
        try:
            text = cipher.decrypt(bytes(12), box, None)
        except InvalidTag:
            raise InputError(
                f"client {owner}'s share for client {client} was changed on its way, "
                "or belongs to another sum; repeat the round."
            ) from None
        held[owner] = HeldShares(
            int.from_bytes(text[:SHARE_BYTES]), int.from_bytes(text[SHARE_BYTES:])
        )
    return held


def share_secret(
    secret: int, *, coefficients: Sequence[int], num_shares: int, prime: int = PRIME
) -> tuple[int, ...]:
    """Shamir's scheme: values of a random polynomial that is the secret at zero.

    Args:
        secret: in [0, prime).
        coefficients: of the powers 1, 2, ..., uniform in [0, prime); one fewer than
            the shares that it takes to recover the secret.
        num_shares: n, below `prime`.
        prime: the field.

    Returns:
        n shares, the values at 1, 2, ..., n. Any `len(coefficients)` of them are
        uniform whatever the secret is.
    """
    shares = []
    for x in range(1, num_shares + 1):  # x = 0 would hand out the secret itself
        value = 0
        for coefficient in (*reversed(coefficients), secret):  # Horner's rule
            value = (value * x + coefficient) % prime
        shares.append(value)
    return tuple(shares)


def recover_secret(shares: Mapping[int, int], *, threshold: int) -> int:
    """The polynomial's value at zero, by Lagrange's formula.

    Shares are by holder; holder i has the value at i + 1.

    Raises:
        TooFewClientsError: there are fewer shares.
    """
    if len(shares) < threshold:
        raise TooFewClientsError(
            f"{len(shares)} clients remain to recover a secret that takes {threshold}; "
            "sample other clients or lower the threshold."
        )
    # No more than it takes: the polynomial has this many coefficients.
    points = {holder + 1: shares[holder] for holder in sorted(shares)[:threshold]}
    secret = 0
    for x, value in points.items():
        # Lagrange's basis polynomial of x, at zero.
        others = points.keys() - {x}
        above, below = math.prod(others), math.prod(other - x for other in others)
        secret += value * above * pow(below, -1, PRIME)
    return secret % PRIME


def _sealing_cipher(party: Party, owner: int, holder: int) -> Any:
    """Of the shares from `owner` to `holder`, one of which is the party."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    client, keys, directory = party
    peer = holder if client == owner else owner
    agreed = agree_secret(keys.sealing_key, directory.public_keys[peer].sealing)
    # Sum, owner and holder are in the key: a box cannot be used in another sum, or
    # passed off as somebody else's.
    label = f"shares {directory.session} {owner} {holder}".encode()
    return ChaCha20Poly1305(derive_key(agreed, label))


def derive_key(secret: bytes, label: bytes) -> bytes:
    """32 bytes for one purpose, by HKDF."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    label = b"fuprune secure sum: " + label
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label).derive(secret)


def agree_secret(private_key: bytes, public_key: bytes) -> bytes:
    """What a pair has in common: one's private and the other's public key give it."""
    from cryptography.hazmat.primitives.asymmetric import x25519

    try:
        peer = x25519.X25519PublicKey.from_public_bytes(public_key)
        return x25519.X25519PrivateKey.from_private_bytes(private_key).exchange(peer)
    except ValueError:
        raise InputError(
            f"{public_key.hex()[:80]} is no usable X25519 public key; leave the client "
            "out that sent it."
        ) from None


def public_key(private_key: bytes) -> bytes:
    """The public half of an X25519 key."""
    from cryptography.hazmat.primitives.asymmetric import x25519

    key = x25519.X25519PrivateKey.from_private_bytes(private_key)
    return key.public_key().public_bytes_raw()
