"""Secure summation of what clients upload: the server learns only the sum.

The protocol of Bonawitz et al. 2017, as functions of one party each. Uploads become
whole numbers modulo 2^64; every pair of clients adds and subtracts one common mask, and
each client adds one of its own. Secrets are shared out by Shamir's scheme, so that
clients that drop out are made up for. The server has to follow the protocol: one that
hands out keys of its own could read uploads.
"""

import itertools
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fuprune.errors import InputError, TooFewClientsError
from fuprune.unlearning.secure_sum import encode

KEY_BYTES = 32
# The field of the shares. It holds 64-byte numbers, so that a key is a number in it.
PRIME = 2**521 - 1
SHARE_BYTES = 66  # of a number below PRIME


class Keys(NamedTuple):
    """What one client keeps to itself, for one sum; keys are hexadecimal digits."""

    private_key: str  # X25519, of the pair masks; opened if the client drops out
    sealing_key: str  # X25519, of the shares under way; never opened
    self_seed: str  # of the client's own mask


class PublicKeys(NamedTuple):
    """What one client tells everybody."""

    mask: str
    sealing: str


class Directory(NamedTuple):
    """What everybody knows."""

    public_keys: tuple[PublicKeys, ...]  # by client
    threshold: int  # how many clients it takes to open a share
    session: str  # which sum it is for


class Party(NamedTuple):
    """One client of one sum."""

    client: int  # its place in the directory
    keys: Keys
    directory: Directory


def fewest(number: int) -> int:
    """How many of n clients a sum takes: a majority, and three at least.

    Of a sum of two each would know the other's part.
    """
    return max(3, number // 2 + 1)


def make_keys() -> Keys:
    """A client's keys for one sum; they must not be used for a second one."""
    return Keys(*(os.urandom(KEY_BYTES).hex() for _ in Keys._fields))


def public_keys(keys: Keys) -> PublicKeys:
    """What a client sends first."""
    return PublicKeys(_public(keys.private_key), _public(keys.sealing_key))


def share_keys(party: Party) -> list[str]:
    """A client's second message: by holder, shares of its two secrets, sealed.

    It is refused for a directory that would bare the client.
    """
    client, keys, directory = party
    number, published = len(directory.public_keys), directory.public_keys
    if (
        not fewest(number) <= directory.threshold <= number
        or len(set(itertools.chain(*published))) != 2 * number
        or public_keys(keys) not in published[client : client + 1]
    ):
        raise InputError(
            f"the directory of a secure sum has a threshold of {directory.threshold} "
            f"for {number} clients, a key twice, or other keys for client {client} "
            "than its own; refuse the sum."
        )
    shares = []
    for secret in (keys.private_key, keys.self_seed):
        # More bytes than needed, so that the remainder is all but uniform.
        drawn = [os.urandom(2 * SHARE_BYTES) for _ in range(directory.threshold - 1)]
        coefficients = [int.from_bytes(each) % PRIME for each in drawn]
        shares.append(share_secret(int(secret, 16), coefficients, num_shares=number))
    sealed = []
    for holder, pair in enumerate(zip(*shares, strict=True)):
        text = b"".join(share.to_bytes(SHARE_BYTES) for share in pair)
        # Each key seals one text, so the nonce need not vary.
        cipher = _sealing_cipher(party, client, holder)
        sealed.append(cipher.encrypt(bytes(12), text, None).hex())
    return sealed


def open_shares(party: Party, sealed: Mapping[int, str]) -> dict[int, tuple[int, int]]:
    """By owner, a client's shares of its private key and of its own mask's seed."""
    client, held = party.client, {}
    for owner, box in sealed.items():
        cipher = _sealing_cipher(party, owner, client)
        try:
            text = cipher.decrypt(bytes(12), bytes.fromhex(box), None)
        except InvalidTag:
            raise InputError(
                f"client {owner}'s share for client {client} was changed on its way, "
                "or belongs to another sum; repeat the round."
            ) from None
        parts = text[:SHARE_BYTES], text[SHARE_BYTES:]
        held[owner] = tuple(map(int.from_bytes, parts))
    return held


def share_secret(
    secret: int, coefficients: Sequence[int], *, num_shares: int, prime: int = PRIME
) -> tuple[int, ...]:
    """Shamir's scheme: a polynomial that is the secret at zero, at 1, 2, ...

    `coefficients`, uniform in [0, prime), are those of the powers 1, 2, ...: one fewer
    than the shares that it takes to recover the secret.
    """

    def at(x: int) -> int:
        value = 0
        for coefficient in (*reversed(coefficients), secret):  # Horner's rule
            value = (value * x + coefficient) % prime
        return value

    # At 0 it is the secret itself.
    return tuple(map(at, range(1, num_shares + 1)))


def recover_secret(shares: Mapping[int, int], *, threshold: int) -> int:
    """The polynomial's value at zero, by Lagrange; holder i has the value at i + 1."""
    _check_enough(len(shares), threshold)
    # No more than it takes: the polynomial has this many coefficients.
    points = {holder + 1: shares[holder] for holder in sorted(shares)[:threshold]}
    secret = 0
    for x, value in points.items():
        # Lagrange's basis polynomial of x, at zero.
        others = points.keys() - {x}
        above, below = math.prod(others), math.prod(other - x for other in others)
        secret += value * above * pow(below, -1, PRIME)
    return secret % PRIME


def mask_upload(upload, party: Party) -> np.ndarray:
    """What a client sends: y_i = x_i + PRG(b_i) + sum_{j>i} PRG(s_ij) - sum_{j<i} ...

    [D] uint64, uniform on its own, of an upload x_i with D values in all. The own mask
    guards against a server that calls a slow client dropped, has its pair masks opened,
    and then receives its upload after all.
    """
    client, keys, directory = party
    number = len(directory.public_keys)
    words = encode(upload, num_clients=number)
    words = words + _mask(bytes.fromhex(keys.self_seed), "own mask", len(words))
    for peer in {*range(number)} - {client}:
        secret = keys.private_key
        words = words + _pair_mask(client, peer, secret, directory, len(words))
    return words


def reveal_shares(
    held: Mapping[int, tuple[int, int]], directory: Directory, sent: Collection[int]
) -> dict[int, int]:
    """A client's last message: one share for every owner, never both.

    It is a share of the own mask's seed for those whose upload the server says it has
    (`sent`), and of the private key for the others. A client answers once for each sum:
    two answers to different lists of senders would bare an upload.
    """
    _check_enough(len(sent), directory.threshold)
    return {owner: shares[owner in sent] for owner, shares in held.items()}


def unmask(
    masked: Mapping[int, np.ndarray],
    directory: Directory,
    revealed: Mapping[int, Mapping[int, int]],
) -> np.ndarray:
    """The server's part: adds up what arrived and takes off the masks that remain.

    `revealed` is, by holder, what `reveal_shares` gave. The result is the sum of the
    encoded uploads, [D] uint64.
    """
    _check_enough(len(masked), directory.threshold)

    def recovered(owner: int) -> str:
        shares = {h: shown[owner] for h, shown in revealed.items() if owner in shown}
        secret = recover_secret(shares, threshold=directory.threshold)
        # A share's field is larger than a key; the digits in front are zero.
        return f"{secret:0{2 * KEY_BYTES}x}"[-2 * KEY_BYTES :]

    words = np.stack(list(masked.values())).sum(axis=0, dtype=np.uint64)
    for client, published in enumerate(directory.public_keys):
        secret = recovered(client)
        if client in masked:
            words = words - _mask(bytes.fromhex(secret), "own mask", len(words))
            continue
        if _public(secret) != published.mask:
            raise InputError(
                f"the shares of client {client}'s key do not give that key, so one of "
                "them is false; repeat the round with other clients."
            )
        # Pair masks between two dropped clients are in no upload.
        for peer in masked:
            words = words + _pair_mask(client, peer, secret, directory, len(words))
    return words


def _check_enough(remaining: int, threshold: int) -> None:
    if remaining < threshold:
        raise TooFewClientsError(
            f"{remaining} clients remain in a secure sum that takes {threshold}; "
            "sample other clients, or look at the SuperNodes."
        )


def _private(digits: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(digits))


def _public(private_key: str) -> str:
    return _private(private_key).public_key().public_bytes_raw().hex()


def agree(private_key: str, public_key: str, label: str) -> bytes:
    """A key for one purpose, from one's private and the other's public key.

    A public key that is none, or a point of small order, is a ValueError.
    """
    peer = X25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
    return _derive(_private(private_key).exchange(peer), label)


def _derive(secret: bytes, label: str) -> bytes:
    info = f"fuprune secure sum: {label}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _sealing_cipher(party: Party, owner: int, holder: int) -> ChaCha20Poly1305:
    """For the shares from `owner` to `holder`, one of which is the party."""
    client, keys, directory = party
    peer = directory.public_keys[holder if client == owner else owner]
    # Sum, owner and holder are in the key: a box cannot be used in another sum, or
    # passed off as somebody else's.
    label = f"shares {directory.session} {owner} {holder}"
    return ChaCha20Poly1305(agree(keys.sealing_key, peer.sealing, label))


def _pair_mask(client, peer, private_key, directory, size) -> np.ndarray:
    """The client's side of the pair's mask: its peer's side is the negative."""
    agreed = agree(private_key, directory.public_keys[peer].mask, "pair")
    low, high = sorted((client, peer))
    mask = _mask(agreed, f"pair mask {low} {high}", size)
    # uint64 wraps around: adding the negative cancels exactly, which floats would not.
    return mask if client < peer else np.uint64(0) - mask


def _mask(secret: bytes, label: str, size: int) -> np.ndarray:
    """[size] uint64 from a ChaCha20 stream."""
    cipher = Cipher(algorithms.ChaCha20(_derive(secret, label), bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), "<u8")
