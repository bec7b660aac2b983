"""Client data on the device: one pool of images and a row of indices per client.

A cohort is a choice of rows, so neither sampling a cohort nor forgetting a class copies
an image. A client of length zero contributes nothing.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fuprune.data.dataset import Dataset
from fuprune.errors import InputError, distinct_integers


class FederatedDataset(NamedTuple):
    """Every client's examples: K clients over a pool of N images."""

    images: jax.Array  # [N, H, W, C] uint8
    labels: jax.Array  # [N] int32
    rows: jax.Array  # [K, L] int32, indices into the pool; 0 from lengths[k] on
    lengths: jax.Array  # [K] int32, how many entries of a row are examples
    members: jax.Array | None = None  # [K'] int32, clients that can be drawn; None: all

    @property
    def num_clients(self) -> int:
        """K."""
        return self.rows.shape[0]

    @property
    def num_members(self) -> int:
        """K', the clients that have not left."""
        return self.num_clients if self.members is None else self.members.shape[0]

    @property
    def max_length(self) -> int:
        """L, the width of a row: at least 1, at least the largest client."""
        return self.rows.shape[1]


class Cohort(NamedTuple):
    """The M clients of one round, over the same pool of N images."""

    images: jax.Array  # [N, H, W, C] uint8
    labels: jax.Array  # [N] int32
    rows: jax.Array  # [M, L] int32
    lengths: jax.Array  # [M] int32; 0 contributes nothing
    clients: jax.Array  # [M] int32, client ids


def federate(
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    *,
    place: Callable[[np.ndarray], Any] = jax.device_put,
) -> FederatedDataset:
    """Puts a dataset on the device and gives each client its part.

    Parts are indices of each client's examples and may be empty; rows are as long as
    the largest. `place` puts an array on devices; `np.asarray` leaves it on the host.
    """
    if len(parts) == 0:
        raise InputError("parts is empty, but a federation has 1 client or more.")
    lengths = np.fromiter(map(len, parts), np.int32, len(parts))
    # All parts at once: more steps per client would take seconds for a million.
    held = np.concatenate([np.asarray(part) for part in parts])
    last = len(dataset.labels) - 1
    if held.dtype == bool or np.any((held < 0) | (held > last)):
        raise InputError(
            f"Clients hold what is no index of an example, which run from 0 to {last}."
        )
    rows = np.zeros((len(parts), max(1, int(lengths.max()))), np.int32)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = held
    return FederatedDataset(
        images=place(dataset.images),
        labels=place(np.asarray(dataset.labels, np.int32)),
        rows=place(rows),
        lengths=place(lengths),
    )


def drop_classes(data: FederatedDataset, classes: Iterable[int]) -> FederatedDataset:
    """Takes the given classes out of every client's row: the retain set.

    The pool stays as it is, and so do all shapes; the examples that remain keep
    their order. A client may be left with length 0.
    """
    return _restricted(data, ~_of_classes(data.labels, classes))


def keep_classes(data: FederatedDataset, classes: Iterable[int]) -> FederatedDataset:
    """Keeps only the given classes in every client's row: the forget set."""
    return _restricted(data, _of_classes(data.labels, classes))


def _of_classes(labels: jax.Array, classes: Iterable[int]) -> jax.Array:
    """Which examples are of the classes; [N] bool."""
    chosen = distinct_integers(classes, name="classes")
    return jnp.isin(labels, np.asarray(chosen, np.int32))


def drop_examples(data: FederatedDataset, examples: Iterable[int]) -> FederatedDataset:
    """Takes single images, by their indices in the pool, out of every client's row."""
    return _restricted(data, ~_named(examples, len(data.labels), "examples"))


def keep_examples(data: FederatedDataset, examples: Iterable[int]) -> FederatedDataset:
    """Keeps only the given images of the pool in every client's row."""
    return _restricted(data, _named(examples, len(data.labels), "examples"))


def _named(ids: Iterable[int], number: int, what: str) -> np.ndarray:
    """Which of `number` examples or clients are named; [number] bool."""
    # A mask of truth values, which would name 0 and 1, is refused.
    chosen = np.asarray(distinct_integers(ids, name=what), np.int64)
    if np.any((chosen < 0) | (chosen >= number)):
        raise InputError(
            f"{what} are {chosen[:9].tolist()}, but ids lie in [0, {number - 1}]."
        )
    named = np.zeros(number, bool)
    named[chosen] = True
    return named


def _restricted(data: FederatedDataset, stays) -> FederatedDataset:
    """The data with only those images of the pool in rows for which stays [N] holds."""
    rows, lengths = _compress_rows(data.rows, data.lengths, stays)
    return data._replace(rows=rows, lengths=lengths)


def drop_clients(data: FederatedDataset, clients: Iterable[int]) -> FederatedDataset:
    """Takes clients out of the federation: they hold nothing and are never drawn.

    Shapes stay as they are and the others keep their ids.
    """
    leaves = _named(clients, data.num_clients, "clients")
    if not leaves.any():
        return data
    before = np.arange(data.num_clients)
    if data.members is not None:
        before = np.asarray(jax.device_get(data.members))
    return data._replace(
        rows=jnp.where(leaves[:, None], 0, data.rows),
        lengths=jnp.where(leaves, 0, data.lengths),
        members=jnp.asarray(before[~leaves[before]], jnp.int32),
    )


def keep_clients(data: FederatedDataset, clients: Iterable[int]) -> FederatedDataset:
    """Empties every client but the given ones, who alone can be drawn."""
    stays = _named(clients, data.num_clients, "clients")
    return drop_clients(data, np.flatnonzero(~stays))


@jax.jit
def _compress_rows(rows, lengths, stays):
    """Moves the entries of rows [K, L] for which stays [N] holds to the front."""
    num_clients, width = rows.shape
    remains = (jnp.arange(width) < lengths[:, None]) & stays[rows]
    # An entry's new column is the number of those before it that stay: linear in the
    # entries, where a sort of every row is not. Column `width` does not exist, and
    # what is sent there is dropped.
    column = jnp.cumsum(remains, axis=1, dtype=jnp.int32) - 1
    column = jnp.where(remains, column, width)
    client = jnp.arange(num_clients)[:, None]
    moved = jnp.zeros_like(rows).at[client, column].set(rows, mode="drop")
    return moved, remains.sum(axis=1, dtype=jnp.int32)


def sample_cohort(key: jax.Array, data: FederatedDataset, size: int) -> Cohort:
    """Draws M = `size` different clients; every ordered choice is equally likely.

    Clients that left (`drop_clients`) are not drawn; if fewer than `size` are left, all
    of them are. Jitted on its own it would return a copy of the pool.
    """
    if not 1 <= size <= data.num_clients or not data.num_members:
        raise InputError(
            f"A cohort of {size} was asked for, but {data.num_members} of "
            f"{data.num_clients} clients have not left: give a size from 1 to that."
        )
    size = min(size, data.num_members)
    chosen = _draw(key, data.rows, data.lengths, size, data.members)
    return Cohort(data.images, data.labels, *chosen)


@functools.partial(jax.jit, static_argnames="size")
def _draw(key, rows, lengths, size: int, members):
    if members is None:
        return _rows_of(rows, lengths, draw_distinct(key, rows.shape[0], size))
    return _rows_of(rows, lengths, members[draw_distinct(key, len(members), size)])


def draw_distinct(key: jax.Array, population: int, size: int) -> jax.Array:
    """Draws different integers below `population`, uniform over ordered choices.

    A population of more than four times the size is never enumerated: 2 * size
    integers are drawn with replacement and the first `size` different ones are kept;
    if there are fewer (at most once in 729 draws), all are drawn again. Population and
    size are static under jit.
    """
    if population <= 4 * size:
        return jax.random.permutation(key, population)[:size].astype(jnp.int32)

    def attempt(number):
        draws = jax.random.randint(
            jax.random.fold_in(key, number), (2 * size,), 0, population, jnp.int32
        )
        return number + 1, *_first_distinct(draws, size)

    _, chosen, _ = jax.lax.while_loop(
        lambda state: ~state[2], lambda state: attempt(state[0]), attempt(0)
    )
    return chosen


def _first_distinct(draws: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The first `size` different values of draws [B], and whether there are so many."""
    # In a stable sort the first of equal draws comes first.
    order = jnp.argsort(draws, stable=True)
    by_value = draws[order]
    repeats = jnp.concatenate([jnp.zeros(1, bool), by_value[1:] == by_value[:-1]])
    repeats = jnp.zeros_like(repeats).at[order].set(repeats)
    chosen = draws[jnp.argsort(repeats, stable=True)[:size]]
    return chosen, jnp.sum(~repeats) >= size


def whole_cohort(data: FederatedDataset) -> Cohort:
    """Every client, in order: a cohort of M = K."""
    clients = jnp.arange(data.num_clients, dtype=jnp.int32)
    return Cohort(data.images, data.labels, data.rows, data.lengths, clients)


def take_clients(data: FederatedDataset, clients: jax.Array | Sequence[int]) -> Cohort:
    """The cohort of clients [M], in their order; under jit ids cannot be checked."""
    if not isinstance(clients, Tracer):
        _named(np.asarray(clients), data.num_clients, "clients")
    chosen = _rows_of(data.rows, data.lengths, jnp.asarray(clients, jnp.int32))
    return Cohort(data.images, data.labels, *chosen)


# One program for what would be a dozen, one per operation of every index.
@jax.jit
def _rows_of(rows, lengths, clients):
    return rows[clients], lengths[clients], clients
