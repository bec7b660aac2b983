"""Several networks of one architecture that answer together, as one network.

Its variables hold a branch per member (`shard_0`, `shard_1`, ...) in every collection,
so that it is trained, evaluated, saved and audited like any other network. Its logits
are the logarithm of the probabilities that the members agree on.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fuprune.errors import check_choice
from fuprune.models.adapt import Network, adapt

VOTES = ("softmax", "votes")


@dataclasses.dataclass(frozen=True)
class Ensemble(Network):
    """`size` copies of `member`, in the form that `models.adapt` describes.

    By "softmax" the members' probabilities are averaged; by "votes" each member has one
    vote, and their mean probabilities together have one more, which breaks ties.
    """

    member: Any
    size: int
    vote: str = "softmax"

    def __post_init__(self):
        """Refuses another vote."""
        check_choice("vote", self.vote, VOTES)

    @property
    def num_classes(self) -> int:
        """Columns of the logits."""
        return self.member.num_classes

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of one image."""
        return self.member.input_shape

    def init(self, key, images, train: bool = False):
        """Fresh variables, other ones for each member."""
        keys = (jax.random.fold_in(key, i) for i in range(self.size))
        return stack_members([self.member.init(k, images, train=train) for k in keys])

    def apply(self, variables, images, *arguments, mutable=False, **options):
        """Logits [B, U], and the updated collections unless `mutable` is False."""
        options["mutable"] = mutable
        apply = adapt(self.member).apply
        results = [
            apply(member_of(variables, i), images, *arguments, **options)
            for i in range(self.size)
        ]
        if mutable is False:
            return self.combine(jnp.stack(results))
        answers, updated = zip(*results, strict=True)
        return self.combine(jnp.stack(answers)), stack_members(updated)

    def combine(self, answers: jax.Array) -> jax.Array:
        """Members' logits [S, B, U] -> logits [B, U] of what they agree on."""
        logs = jax.nn.log_softmax(answers.astype(jnp.float32))
        # In logarithms, where probabilities that would underflow keep their order.
        mean = jax.nn.logsumexp(logs, axis=0) - jnp.log(self.size)
        if self.vote == "softmax":
            return mean
        chosen = jax.nn.one_hot(jnp.argmax(answers, axis=-1), answers.shape[-1])
        # The mean probabilities sum to one, so all votes sum to size + 1.
        votes = jnp.sum(chosen, axis=0) + jnp.exp(mean)
        # A class without any vote has a low logit, not minus infinity.
        smallest = jnp.finfo(jnp.float32).tiny
        return jnp.log(jnp.maximum(votes, smallest) / (self.size + 1))


def member_of(variables, number: int) -> dict[str, Any]:
    """The variables of one member."""
    name = f"shard_{number}"
    return {kind: tree[name] for kind, tree in variables.items() if name in tree}


def stack_members(members) -> dict[str, Any]:
    """The variables of an ensemble from those of its members, in their order."""
    stacked: dict[str, Any] = {}
    for i, member in enumerate(members):
        for collection, tree in member.items():
            stacked.setdefault(collection, {})[f"shard_{i}"] = tree
    return stacked
