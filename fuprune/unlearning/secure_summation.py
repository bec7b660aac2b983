"""Secure summation of what clients upload: the server learns only the sum.

The protocol is that of Bonawitz et al. 2017, as functions of one party each. Uploads
become whole numbers modulo 2^64; every pair of clients adds and subtracts one common
mask, and each client adds a mask of its own, so that masks cancel exactly in the sum.
Keys and own masks are shared out by Shamir's scheme, so that clients that drop out
after sharing are made up for.

Keys are X25519 keys, fresh for every sum; masks are ChaCha20 streams whose keys HKDF
derives from what a pair agreed; shares travel through the server sealed by
ChaCha20-Poly1305. A federation calls the functions on different machines
(`fuprune.flower`); `secure_sum` calls them all in one process.

What it does not cover: the server hands out the public keys, so it has to follow the
protocol (it may look, and keep what it saw); one that puts keys of its own in the place
of the clients' could read them. Fewer than `threshold` clients that collude with it
learn nothing about the rest beyond the sum of the others. The sum itself is not noised:
that is `privacy.py`. And what cannot be seen cannot be checked: a hostile client can
spoil a secure sum. In `secure_sum` everything random derives from one JAX key.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError, TooFewClientsError
from fuprune.unlearning.summation_keys import (
    KEY_BYTES,
    SHARE_BYTES,
    Directory,
    HeldShares,
    Party,
    RandomBytes,
    agree_secret,
    derive_key,
    make_directory,
    make_keys,
    open_shares,
    public_key,
    public_keys,
    recover_secret,
    share_keys,
)

SCALE = 2.0**20  # a value is sent to the nearest 2^-20


class Setup(NamedTuple):
    """The state of all parties after keys are agreed and shared."""

    directory: Directory
    parties: tuple[Party, ...]  # by client
    held: tuple[dict[int, HeldShares], ...]  # by holder, then owner


def secure_sum(
    uploads: Sequence,
    *,
    key: jax.Array,
    dropped: Collection[int] = (),
    threshold: int | None = None,
):
    """Sums uploads as a server would that may see none of them.

    Args:
        uploads: one pytree per client, all of one form; values may be negative.
        key: everything random in the protocol derives from it.
        dropped: positions of clients that agreed on keys and then sent nothing.
        threshold: how many clients must stay to the end, at least two; a majority by
            default. A lower one survives more dropout and fewer colluders.

    Returns:
        The sum over the clients that did not drop, exact but for each value's rounding
        to a multiple of 1 / SCALE.

    Raises:
        TooFewClientsError: fewer than `threshold` clients stay.
        ValueError: a value is not finite, or too large to be summed without wrapping.
    """
    dropped = set(dropped)
    if not dropped <= set(range(len(uploads))):
        raise InputError(
            f"dropped names client {max(dropped, key=abs)}, but there are "
            f"{len(uploads)} clients; give positions in uploads."
        )
    setup = agree_keys(key, len(uploads), threshold)
    masked = {
        client: mask_upload(upload, setup.parties[client])
        for client, upload in enumerate(uploads)
        if client not in dropped
    }
    # Whoever is still there answers for both kinds of clients, never with both kinds
    # of shares for the same one.
    revealed = {
        client: reveal_shares(setup.held[client], setup.directory, sent=masked)
        for client in masked
    }
    words = unmask(masked, setup.directory, revealed)
    return decode(words, uploads[0])


def agree_keys(key: jax.Array, num_clients: int, threshold: int | None = None) -> Setup:
    """Every client's part of the setup, one after another, from one JAX key.

    Args:
        key: a JAX key.
        num_clients: n, at least two: the sum of one upload is the upload.
        threshold: t of t-of-n, in [2, n]; n // 2 + 1 by default, above which a server
            cannot ask two halves of the clients for the two kinds of shares.
    """
    sources = [_random_from(key, client) for client in range(num_clients)]
    keys = [make_keys(random_bytes) for random_bytes in sources]
    directory = make_directory([public_keys(k) for k in keys], threshold)
    parties = tuple(Party(client, k, directory) for client, k in enumerate(keys))
    sealed = list(map(share_keys, parties, sources))
    # What the owners sealed, by holder.
    boxes = [dict(enumerate(received)) for received in zip(*sealed, strict=True)]
    return Setup(directory, parties, tuple(map(open_shares, parties, boxes)))


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


def encode(upload, *, num_clients: int) -> np.ndarray:
    """A pytree of D values as whole numbers modulo 2^64: [D] uint64.

    Values are rounded to multiples of 1 / SCALE, and may be at most 2^63 / n / SCALE in
    size, so that no sum of n clients' wraps around.
    """
    values = np.concatenate(
        [np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(upload)]
    )
    # Below this, n summands of either sign stay within a signed 64-bit number, and the
    # sum modulo 2^64 is the sum.
    limit = (2**63 - 1) // num_clients
    rounded = np.rint(values * SCALE)
    fits = np.abs(rounded) <= limit
    if not np.all(fits):
        raise InputError(
            f"an upload holds {values[~fits][0]:.6g}, but {num_clients} clients can "
            f"sum values of up to {limit / SCALE:.6g} under masks; look for a diverged "
            "model."
        )
    # Two's complement: negative values add up modulo 2^64 as they should.
    return rounded.astype(np.int64).view(np.uint64)


def decode(words: np.ndarray, template):
    """The pytree, like `template`, that `encode` made numbers of, or their sum."""
    values = words.view(np.int64).astype(np.float64) / SCALE
    leaves, start = [], 0
    for leaf in jax.tree.leaves(template):
        part = values[start : start + leaf.size].reshape(leaf.shape)
        if np.issubdtype(leaf.dtype, np.integer):
            part = np.rint(part)
        leaves.append(jnp.asarray(part.astype(leaf.dtype)))
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


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


def _random_from(key: jax.Array, client: int) -> RandomBytes:
    """A stand-in for a client's own random source that only this key gives."""
    seed = np.asarray(jax.random.key_data(key)).tobytes() + client.to_bytes(8)
    calls = iter(range(2**63))

    def random_bytes(size: int) -> bytes:
        return hashlib.shake_256(seed + next(calls).to_bytes(8)).digest(size)

    return random_bytes
