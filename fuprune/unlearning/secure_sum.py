"""The sum that secure summation would show a server, computed without its messages.

In secure summation every client encodes its upload as whole numbers modulo 2^64 and
hides them under masks that cancel in the sum. A simulation encodes, adds and decodes,
which gives the same sum to the last bit, rounding and limits included. The masks, keys
and messages that hide uploads from a real server are in `fuprune.flower`.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError

SCALE = 2.0**20  # a value is sent to the nearest 2^-20


def secure_sum(uploads: Iterable):
    """The sum of pytrees of one form, each value rounded to a multiple of 1 / SCALE."""
    uploads = list(uploads)
    check_threshold(len(uploads))
    words = [encode(upload, num_clients=len(uploads)) for upload in uploads]
    return decode(np.stack(words).sum(axis=0), uploads[0])


def check_threshold(num_clients: int, threshold: int | None = None) -> int:
    """How many of n clients must stay for a sum to be shown, a majority by default."""
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
    return threshold


def encode(upload, *, num_clients: int) -> np.ndarray:
    """A pytree of D values as whole numbers modulo 2^64: [D] uint64.

    Values may be at most 2^63 / n / SCALE in size, so that no sum of n clients' wraps.
    """
    values = np.concatenate(
        [np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(upload)]
    )
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
