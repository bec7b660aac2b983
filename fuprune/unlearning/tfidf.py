"""How much each channel says about one class: TF-IDF of activations, Eqs. 6-8.

A class is a document and a channel a word. All functions are pure jnp over one layer's
global representation A*, [U, C] (mean activations, classes by channels, not negative)
and the class u', `target`; they can be jitted and vmapped, over `target` too.
"""

import jax
import jax.numpy as jnp

from fuprune.errors import check_choice

VARIANTS = ("paper", "released")


def term_frequency(a, target) -> jax.Array:
    """The share of each channel in a class's activation, Eq. 6: TF, [C].

    It sums to one; zeros where the class activates nothing.
    """
    row = jnp.asarray(a)[target]
    total = jnp.sum(row)
    # `where` computes both of its branches: the inner one keeps 0 / 0 out of this one.
    return jnp.where(total > 0, row / jnp.where(total > 0, total, 1.0), 0.0)


def inverse_document_frequency(a, *, variant: str = "paper") -> jax.Array:
    """How rare it is that a class uses each channel, Eq. 7: IDF, [C].

    With n_j the number of classes that use channel j:

    * "paper": log((1 + U) / (1 + n_j)), a class using the channels at or above the mean
      of its own channels. The largest value is log(1 + U), the least zero.
    * "released", the authors' code: log(U / (1 + n_j)), a channel being used by the
      classes at or above the mean of that channel. It can be negative.
    """
    check_choice("variant", variant, VARIANTS)
    a = jnp.asarray(a)
    # Avg in Eq. 7 runs over the channels of one class; the released code averages one
    # channel over the classes instead.
    axis = 1 if variant == "paper" else 0
    # "At or above the mean" as n * a >= sum: compilers turn a division by n into a
    # product with a rounded 1/n, which breaks ties at the mean one way or another.
    uses = a * a.shape[axis] >= jnp.sum(a, axis=axis, keepdims=True)
    # A row of zeros is at its own mean everywhere: by Eq. 7 as written, a class that
    # activates nothing uses every channel.
    users = jnp.sum(uses, axis=0).astype(jnp.float32)
    num_classes = a.shape[0]
    if variant == "paper":
        return jnp.log((1.0 + num_classes) / (1.0 + users))
    return jnp.log(num_classes / (1.0 + users))


def tf_idf(a, target, *, variant: str = "paper") -> jax.Array:
    """The score of each channel for a class, Eq. 8: the higher, the more about it."""
    return term_frequency(a, target) * inverse_document_frequency(a, variant=variant)
