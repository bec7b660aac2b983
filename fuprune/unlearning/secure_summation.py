"""Secure summation of what clients upload, simulated: the server learns only the sum.

The protocol is that of Bonawitz et al. 2017. Uploads become whole numbers modulo 2^64;
every pair of clients adds and subtracts one common mask, and each client adds a mask of
its own, so that masks cancel exactly in the sum. Keys and own masks are shared out
by Shamir's scheme, so that clients that drop out after sharing are made up for.

What the simulation does not cover: everything runs in one process from one key; keys
are agreed in a toy Diffie-Hellman group and masks come from Threefry with 64-bit seeds,
where a deployment takes X25519 and a cipher; channels are taken to be private and
authentic; the server follows the protocol, and looks. Fewer than `threshold` clients
that collude with it learn nothing about the rest beyond the sum of the others. The sum
itself is not noised: that is `privacy.py`. And what cannot be seen cannot be checked: a
hostile client can spoil a secure sum.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError
from fuprune.federated.aggregate import TooFewClientsError

PRIME = 2**127 - 1  # the field of the shares, and the toy key-agreement group
GENERATOR = 3
SCALE = 2.0**20  # a value is sent to the nearest 2^-20


class Share(NamedTuple):
    """One point of the polynomial whose value at zero is the secret."""

    holder: int  # x - 1: which client holds it
    value: int


class Keys(NamedTuple):
    """What one client keeps to itself."""

    private_key: int
    self_seed: int  # of the client's own mask


class Directory(NamedTuple):
    """What everybody knows."""

    public_keys: tuple[int, ...]  # by client
    threshold: int  # how many clients it takes to open a share


class Setup(NamedTuple):
    """The state of all parties after keys are agreed and shared."""

    directory: Directory
    keys: tuple[Keys, ...]  # by client
    private_key_shares: tuple[tuple[Share, ...], ...]  # by owner, then holder
    self_seed_shares: tuple[tuple[Share, ...], ...]  # by owner, then holder


def secure_sum(
    uploads: Sequence,
    *,
    key: jax.Array,
    dropped: Collection[int] = (),
    threshold: int | None = None,
    scale: float = SCALE,
):
    """Sums uploads as a server would that may see none of them.

    Args:
        uploads: one pytree per client, all of one form; values may be negative.
        key: everything random in the protocol derives from it.
        dropped: positions of clients that agreed on keys and then sent nothing.
        threshold: how many clients must stay to the end, at least two; a majority by
            default. A lower one survives more dropout and fewer colluders.
        scale: values are rounded to multiples of 1 / scale.

    Returns:
        The sum over the clients that did not drop, exact but for each value's rounding.

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
        client: mask_upload(
            upload, client, setup.keys[client], setup.directory, scale=scale
        )
        for client, upload in enumerate(uploads)
        if client not in dropped
    }
    # Whoever is still there answers for both kinds of clients, never with both kinds
    # of shares for the same one.
    helpers = sorted(masked)[: setup.directory.threshold]
    words = unmask(
        masked,
        setup.directory,
        private_key_shares={
            client: [setup.private_key_shares[client][helper] for helper in helpers]
            for client in dropped
        },
        self_seed_shares={
            client: [setup.self_seed_shares[client][helper] for helper in helpers]
            for client in masked
        },
    )
    return decode(words, uploads[0], scale=scale)


def agree_keys(key: jax.Array, num_clients: int, threshold: int | None = None) -> Setup:
    """Draws every client's keys and shares them out among all clients.

    Args:
        key: a JAX key.
        num_clients: n, at least two: the sum of one upload is the upload.
        threshold: t of t-of-n, in [2, n]; n // 2 + 1 by default, above which a server
            cannot ask two halves of the clients for the two kinds of shares.

    Returns:
        `Setup`.
    """
    if num_clients < 2:
        raise InputError(
            f"secure summation has {num_clients} clients and needs at least 2, since "
            "a sum of one hides nothing; capture on more clients."
        )
    if threshold is None:
        threshold = num_clients // 2 + 1
    if not 2 <= threshold <= num_clients:
        raise InputError(
            f"threshold is {threshold}, but it must lie in [2, {num_clients}], the "
            "number of clients."
        )
    keys = tuple(
        Keys(
            1 + _draw(key, "private key", client) % (PRIME - 2),
            _draw(key, "self seed", client) % 2**64,
        )
        for client in range(num_clients)
    )
    public_keys = tuple(pow(GENERATOR, k.private_key, PRIME) for k in keys)

    def share_out(label, secrets):
        return tuple(
            share_secret(
                secret,
                coefficients=[
                    _draw(key, label, client, power) % PRIME
                    for power in range(1, threshold)
                ],
                num_shares=num_clients,
            )
            for client, secret in enumerate(secrets)
        )

    return Setup(
        Directory(public_keys, threshold),
        keys,
        share_out("private key share", [k.private_key for k in keys]),
        share_out("self seed share", [k.self_seed for k in keys]),
    )


def share_secret(
    secret: int, *, coefficients: Sequence[int], num_shares: int, prime: int = PRIME
) -> tuple[Share, ...]:
    """Shamir's scheme: points of a random polynomial through the secret.

    Args:
        secret: in [0, prime).
        coefficients: of the powers 1, 2, ..., uniform in [0, prime); one fewer than
            the shares that it takes to recover the secret.
        num_shares: n, below `prime`.
        prime: the field.

    Returns:
        n shares. Any `len(coefficients)` of them are uniform whatever the secret is.
    """
    if not (0 <= secret < prime and num_shares < prime):
        raise InputError(
            f"a secret and {num_shares} shares must lie in [0, {prime}); choose a "
            "larger prime."
        )
    shares = []
    for holder in range(num_shares):
        value = 0
        for coefficient in (*reversed(coefficients), secret):
            value = (value * (holder + 1) + coefficient) % prime
        shares.append(Share(holder, value))
    return tuple(shares)


def recover_secret(
    shares: Sequence[Share], *, threshold: int, prime: int = PRIME
) -> int:
    """The polynomial's value at zero, by Lagrange's formula.

    Args:
        shares: of one secret.
        threshold: how many of them it takes.
        prime: the field.

    Raises:
        TooFewClientsError: there are fewer shares of different holders.
    """
    points = {share.holder + 1: share.value for share in shares}
    if len(points) < threshold:
        raise TooFewClientsError(
            f"{len(points)} clients remain to recover a secret that takes {threshold}; "
            "sample other clients or lower the threshold."
        )
    chosen = sorted(points)[:threshold]
    secret = 0
    for x in chosen:
        above, below = 1, 1
        for other in chosen:
            if other != x:
                above = above * other % prime
                below = below * (other - x) % prime
        secret += points[x] * above * pow(below, -1, prime)
    return secret % prime


def encode(upload, *, num_clients: int, scale: float = SCALE) -> np.ndarray:
    """A pytree as whole numbers modulo 2^64.

    Args:
        upload: pytree of arrays, D values in all.
        num_clients: n; a value may be at most 2^63 / n / scale in size, so that no sum
            of n of them wraps around.
        scale: values are rounded to multiples of 1 / scale.

    Returns:
        [D] uint64.
    """
    values = np.concatenate(
        [np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(upload)]
    )
    limit = (2**63 - 1) // num_clients
    rounded = np.rint(values * scale)
    fits = np.abs(rounded) <= limit
    if not np.all(fits):
        raise InputError(
            f"an upload holds {values[~fits][0]:.6g}, but {num_clients} clients at "
            f"scale {scale:.6g} can sum values of up to {limit / scale:.6g}; clip "
            "activations or lower the scale."
        )
    return rounded.astype(np.int64).view(np.uint64)


def decode(words: np.ndarray, template, *, scale: float = SCALE):
    """The pytree that `encode` made numbers of, or a sum of several.

    Args:
        words: [D] uint64.
        template: pytree of arrays that gives form, shapes and types.
        scale: as in `encode`.

    Returns:
        pytree of arrays like `template`.
    """
    values = words.view(np.int64).astype(np.float64) / scale
    leaves, start = [], 0
    for leaf in jax.tree.leaves(template):
        part = values[start : start + leaf.size].reshape(leaf.shape)
        if np.issubdtype(leaf.dtype, np.integer):
            part = np.rint(part)
        leaves.append(jnp.asarray(part.astype(leaf.dtype)))
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def mask_upload(
    upload, client: int, keys: Keys, directory: Directory, *, scale: float = SCALE
) -> np.ndarray:
    """What a client sends: y_i = x_i + PRG(b_i) + sum_{j>i} PRG(s_ij) - sum_{j<i} ...

    Args:
        upload: x_i, a pytree of arrays with D values in all.
        client: i.
        keys: the client's own.
        directory: everybody's public keys.
        scale: as in `encode`.

    Returns:
        [D] uint64, uniform on its own.
    """
    num_clients = len(directory.public_keys)
    words = encode(upload, num_clients=num_clients, scale=scale)
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
    *,
    private_key_shares: Mapping[int, Sequence[Share]],
    self_seed_shares: Mapping[int, Sequence[Share]],
) -> np.ndarray:
    """The server's part: adds up what arrived and takes off the masks that remain.

    Args:
        masked: client -> what it sent, [D] uint64.
        directory: everybody's public keys.
        private_key_shares: dropped client -> shares of its private key, by which its
            half of the pair masks is made up for.
        self_seed_shares: client that sent -> shares of its own mask's seed.

    Returns:
        [D] uint64, the sum of the encoded uploads.

    Raises:
        TooFewClientsError: a secret has too few shares.
        ValueError: both secrets of one client are asked for, which would bare its
            upload; or the shares of a key are not of that key.
    """
    both = private_key_shares.keys() & self_seed_shares.keys()
    if both:
        raise InputError(
            f"both secrets of client {min(both)} are on the table, which bares its "
            "upload; a client has either sent or dropped."
        )
    clients = set(range(len(directory.public_keys)))
    if (
        masked.keys() != self_seed_shares.keys()
        or clients - masked.keys() != private_key_shares.keys()
    ):
        raise InputError(
            f"{len(masked)} uploads came with shares for {len(self_seed_shares)} "
            f"senders and {len(private_key_shares)} dropped of {len(clients)} clients; "
            "give shares for every client."
        )
    if len(masked) < directory.threshold:
        raise TooFewClientsError(
            f"{len(masked)} of {len(clients)} clients remain and "
            f"{directory.threshold} are needed to unmask a secure sum; sample other "
            "clients or lower the threshold."
        )
    words = np.zeros_like(next(iter(masked.values())))
    for sent in masked.values():
        words = words + sent
    for shares in self_seed_shares.values():
        seed = recover_secret(shares, threshold=directory.threshold)
        words = words - _own_mask(seed, len(words))
    for client, shares in private_key_shares.items():
        private_key = recover_secret(shares, threshold=directory.threshold)
        if pow(GENERATOR, private_key, PRIME) != directory.public_keys[client]:
            raise InputError(
                f"the shares of client {client}'s key do not give that key, so one of "
                "them is false; repeat the round with other clients."
            )
        for peer in masked:
            words = words + _pair_mask(
                client, peer, private_key, directory.public_keys, len(words)
            )
    return words


def _own_mask(self_seed: int, size: int) -> np.ndarray:
    return _mask(hashlib.sha256(b"own" + self_seed.to_bytes(16)).digest(), size)


def _pair_mask(client, peer, private_key, public_keys, size) -> np.ndarray:
    """The client's side of the pair's mask: its peer's side is the negative."""
    agreed = pow(public_keys[peer], private_key, PRIME)
    low, high = sorted((client, peer))
    label = b"pair" + low.to_bytes(4) + high.to_bytes(4)
    mask = _mask(hashlib.sha256(label + agreed.to_bytes(16)).digest(), size)
    return mask if client < peer else np.uint64(0) - mask


def _mask(digest: bytes, size: int) -> np.ndarray:
    halves = np.asarray(_stream(np.frombuffer(digest[:8], np.uint32), size=size))
    high, low = halves.astype(np.uint64)
    return (high << np.uint64(32)) | low


def _threefry(seed, *, size):
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.bits(key, (2, size), jnp.uint32)


_stream = jax.jit(_threefry, static_argnames="size")


def _draw(key, label: str, *positions: int) -> int:
    """A whole number below 2^256 that only this key, label and positions give."""
    seed = np.asarray(jax.random.key_data(key)).tobytes()
    text = "/".join([label, *map(str, positions)]).encode()
    return int.from_bytes(hashlib.sha256(seed + text).digest())
