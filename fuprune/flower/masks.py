"""Secure summation of what clients upload: the server learns only the sum.

The protocol is that of Bonawitz et al. 2017, as functions of one party each. Uploads
become whole numbers modulo 2^64; every pair of clients adds and subtracts one common
mask, and each client adds a mask of its own, so that masks cancel exactly in the sum.
Keys and own masks are shared out by Shamir's scheme, so that clients that drop out
after sharing are made up for.

Keys are X25519 keys, fresh for every sum; masks are ChaCha20 streams whose keys HKDF
derives from what a pair agreed; shares travel through the server sealed by
ChaCha20-Poly1305 (`keys.py`).

What it does not cover: the server hands out the public keys, so it has to follow the
protocol (it may look, and keep what it saw); one that puts keys of its own in the place
of the clients' could read them. Fewer than `threshold` clients that collude with it
learn nothing about the rest beyond the sum of the others. The sum itself is not noised:
that is `unlearning.privacy`. And what cannot be seen cannot be checked: a hostile
client can spoil a secure sum.
"""

from collections.abc import Collection, Mapping

import numpy as np

from fuprune.errors import InputError, TooFewClientsError
from fuprune.flower.keys import (
    KEY_BYTES,
    SHARE_BYTES,
    Directory,
    HeldShares,
    Party,
    agree_secret,
    derive_key,
    public_key,
    recover_secret,
)
from fuprune.unlearning.secure_sum import encode


def reveal_shares(
    held: Mapping[int, HeldShares], directory: Directory, *, sent: Collection[int]
) -> dict[int, int]:
    """A client's last message: one share for every owner, never both.

    A client answers once for each sum: two answers to different lists of senders would
    bare an upload. By owner, it is a share of the own mask's seed for those whose
    upload the server says it has (`sent`), and of the private key for the others.

    Raises:
        TooFewClientsError: fewer than the threshold sent, so a sum of few would show.
    """
    _check_enough(len(sent), directory)
    return {
        owner: shares.self_seed if owner in sent else shares.private_key
        for owner, shares in held.items()
    }


def mask_upload(upload, party: Party) -> np.ndarray:
    """What a client sends: y_i = x_i + PRG(b_i) + sum_{j>i} PRG(s_ij) - sum_{j<i} ...

    [D] uint64, uniform on its own, of an upload x_i with D values in all.
    """
    client, keys, directory = party
    num_clients = len(directory.public_keys)
    words = encode(upload, num_clients=num_clients)
    # The second mask guards against a server that calls a slow client dropped, has its
    # pair masks opened, and then receives its upload after all.
    words = words + _own_mask(keys.self_seed, len(words))
    for peer in range(num_clients):
        if peer != client:
            words = words + _pair_mask(
                client, peer, keys.private_key, directory.public_keys, len(words)
            )
    return words


def unmask(
    masked: Mapping[int, np.ndarray],
    directory: Directory,
    revealed: Mapping[int, Mapping[int, int]],
) -> np.ndarray:
    """The server's part: adds up what arrived and takes off the masks that remain.

    `revealed` is, by holder, what `reveal_shares` gave. Of every client that sent [D]
    uint64 they are shares of its own mask's seed, and of every dropped one shares of
    its private key, by which its half of the pair masks is made up for. What remains is
    the sum of the encoded uploads, [D] uint64.

    Raises:
        TooFewClientsError: a secret has too few shares.
        ValueError: the shares of a key are not of that key.
    """
    _check_enough(len(masked), directory)

    def recovered(owner: int) -> bytes:
        shares = {h: shown[owner] for h, shown in revealed.items() if owner in shown}
        secret = recover_secret(shares, threshold=directory.threshold)
        # A share's field is larger than a key; the bytes in front are zero.
        return secret.to_bytes(SHARE_BYTES)[-KEY_BYTES:]

    words = np.stack(list(masked.values())).sum(axis=0, dtype=np.uint64)
    for client in masked:
        words = words - _own_mask(recovered(client), len(words))
    for client, published in enumerate(directory.public_keys):
        if client in masked:
            continue
        private_key = recovered(client)
        if public_key(private_key) != published.mask:
            raise InputError(
                f"the shares of client {client}'s key do not give that key, so one of "
                "them is false; repeat the round with other clients."
            )
        # Pair masks between two dropped clients are in no upload.
        for peer in masked:
            words = words + _pair_mask(
                client, peer, private_key, directory.public_keys, len(words)
            )
    return words


def _check_enough(remaining: int, directory: Directory) -> None:
    if remaining < directory.threshold:
        raise TooFewClientsError(
            f"{remaining} of {len(directory.public_keys)} clients remain and "
            f"{directory.threshold} are needed to unmask a secure sum; sample other "
            "clients or lower the threshold."
        )


def _own_mask(self_seed: bytes, size: int) -> np.ndarray:
    return _mask(self_seed, b"own mask", size)


def _pair_mask(client, peer, private_key, public_keys, size) -> np.ndarray:
    """The client's side of the pair's mask: its peer's side is the negative."""
    # The label names the pair by its lower place first, so that both sides derive the
    # same stream.
    agreed = agree_secret(private_key, public_keys[peer].mask)
    low, high = sorted((client, peer))
    mask = _mask(agreed, f"pair mask {low} {high}".encode(), size)
    # uint64 wraps around: adding the negative cancels exactly, which floats would not.
    return mask if client < peer else np.uint64(0) - mask


def _mask(secret: bytes, label: bytes, size: int) -> np.ndarray:
    """[size] uint64 from a ChaCha20 stream under the key that HKDF derives."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(
        algorithms.ChaCha20(derive_key(secret, label), bytes(16)), mode=None
    )
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), "<u8")
