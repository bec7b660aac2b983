"""How much to cut: the smallest rate at which the federation no longer knows the class.

The server tries a few cuts, and each participant answers with two counts: on how many
of a few of its own training images the cut network is right, of the leaving classes and
of the others. The counts travel in the form of class statistics, so that the same
checks and the same secure sum serve them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import UnlearnError
from fuprune.federated.client import gather_batch
from fuprune.federated.program import Client, ClientProgram, Shared, Task
from fuprune.unlearning.activations import ClassActivations

# Geometric from 0.005 to 0.6: neighbours differ by 4%, and seven halvings find one.
RATES = tuple(float(rate) for rate in np.round(np.geomspace(0.005, 0.6, 127), 4))


class Tried(NamedTuple):
    """One cut that was tried, and what the participants said of it."""

    rate: float
    forgotten: float  # share of images of the leaving classes that it is right on
    others: float  # share of the other images


def smallest_rate(try_cut: Callable[[float], Tried], level: float) -> list[Tried]:
    """Halves `RATES` until the smallest is found that forgets; the last one is it.

    A cut forgets if it is right on at most the share `level`. At most eight are tried;
    if none forgets, the last one is that at the largest rate.
    """
    tried: dict[int, Tried] = {}
    low, high = 0, len(RATES) - 1
    while low < high:
        middle = (low + high) // 2
        tried[middle] = try_cut(RATES[middle])
        if tried[middle].forgotten <= level:
            high = middle
        else:
            low = middle + 1
    chosen = tried.pop(low, None) or try_cut(RATES[low])
    return [*tried.values(), chosen]


def answers_program(
    model,
    *,
    classes: Sequence[int],
    leaving: Sequence[int],
    images: int,
    preprocess: Preprocess = to_float,
) -> ClientProgram:
    """Counts right answers on at most `images` examples of two kinds, in one step.

    The kinds are the rows of the `ClassActivations` that a client sends: 0 `classes`,
    1 those that are not `leaving`. A client takes the examples evenly from its own. The
    context is the server's variables.
    """

    def init(shared: Shared, client: Client):
        return ClassActivations({"right": jnp.zeros((2, 1))}, jnp.zeros(2))

    def step(shared: Shared, client: Client, carry, i):
        real = jnp.arange(client.row.shape[0]) < client.length
        labels = shared.labels[client.row]
        asked = jnp.isin(labels, jnp.asarray(classes))
        stays = ~jnp.isin(labels, jnp.asarray(leaving))
        kinds = jnp.stack([asked & real, stays & real])  # [2, L]
        taken, valid = jax.vmap(functools.partial(_evenly, number=images))(kinds)
        batch = gather_batch(shared, client, taken.ravel(), preprocess, None)
        logits = model.apply(shared.context, batch.images, train=False)
        right = (jnp.argmax(logits, -1) == batch.labels).reshape(taken.shape) & valid
        counts = jnp.sum(right, axis=1, dtype=jnp.float32)
        examples = jnp.sum(valid, axis=1, dtype=jnp.float32)
        return ClassActivations({"right": counts[:, None]}, examples)

    def finish(shared, client, carry):
        return (), carry

    asked = {"classes": list(classes), "leaving": list(leaving), "images": images}
    task = Task("answer_counts", model, asked)
    return ClientProgram(lambda client: 1, init, step, finish, task=task)


def _evenly(member, number: int):
    """[number] positions of members, spread evenly, and whether each is one."""
    total = jnp.sum(member)
    members = jnp.argsort(~member, stable=True)
    ranks = jnp.arange(number)
    spread = jnp.where(total > number, ranks * total // number, ranks)
    return members[jnp.minimum(spread, member.shape[0] - 1)], ranks < total


def judged(rate: float, seen: Any) -> Tried:
    """What counts, one sum or one per client, say of the cut at a rate."""
    uploads = [seen] if isinstance(seen, ClassActivations) else list(seen)
    right = sum(np.asarray(u.total["right"])[:, 0] for u in uploads)
    examples = np.asarray(sum(np.asarray(u.num_examples) for u in uploads))
    if examples.ndim == 0 or examples[0] < 1:
        raise UnlearnError(
            "no participant answered whether the cut network still knows the class, "
            "because none holds an example of it or too few are counted; set "
            "prune.rate to a number, or lower privacy.min_count."
        )
    forgotten, others = (right / np.maximum(examples, 1)).tolist()
    return Tried(rate, forgotten, others)
