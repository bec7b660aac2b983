"""What every way to forget takes and gives back, so that all can be compared.

The caller passes in how to fine-tune, so methods share one budget and one target. A run
gives all methods of one seed the same key, and each derives the fine-tuning's share of
it alike (`job.recovery_key`), so they also see the same cohorts, and the paper's speed
measure (rounds to a target accuracy) is comparable.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from fuprune.data.federated import FederatedDataset
from fuprune.errors import InputError
from fuprune.federated.train import FitResult
from fuprune.models.adapt import Variables as Variables

# (model, variables, data, key, objective=None): federated training on what remains,
# with the caller's budget and target. The objective takes the place of the
# cross-entropy, as `federated.fed_avg` takes it; methods without one leave it out.
FineTune = Callable[..., FitResult]
# (model, variables, data, key, rounds): trains so many rounds, from a fresh optimiser.
TrainRounds = Callable[[Any, Variables, FederatedDataset, jax.Array, int], FitResult]


class UnlearnError(InputError):
    """A method that cannot go on: it diverged, or lacks what it needs."""


class Stage(NamedTuple):
    """A model on the way: raw, pruned for a class, ..."""

    name: str
    model: Any  # as `models.adapt` describes
    variables: Variables


class Checkpoint(NamedTuple):
    """A network in the middle of a method's own training, to go on from."""

    variables: Variables
    images: int  # that clients trained on, as the method counts them


class UnlearnResult(NamedTuple):
    """The model after forgetting, and how it came about."""

    model: Any
    variables: Variables
    stages: tuple[Stage, ...] = ()
    fit: FitResult | None = None
    upload_bytes: int = 0  # sent by one client, apart from fine-tuning's updates
    notes: Mapping[str, Any] = {}  # JSON-able facts for the report

    def __repr__(self) -> str:
        """A line, because the arrays would fill screens."""
        stages = ", ".join(stage.name for stage in self.stages)
        size = tree_bytes(self.variables)
        network = type(self.model).__name__
        return f"UnlearnResult({network} of {size:,} bytes; stages: {stages})"


def tree_bytes(tree) -> int:
    """Bytes of all arrays of a tree, as they would travel."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
