"""The network that is left when channels are removed by tracing.

A slim network is the uncut one and the list of what was cut. Its `apply` traces the
uncut network and runs the jaxpr on held arrays, so it computes what the masked network
computes, in evaluation and in training, on the channels that are left alone.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fuprune.models.adapt import Network, Variables
from fuprune.surgery.arrays import PathCuts, cut_tree, names
from fuprune.surgery.held import onto
from fuprune.surgery.trace import Program, trace

KINDS = {"params": nnx.Param, "batch_stats": nnx.BatchStat}  # of an NNX module


@dataclasses.dataclass(frozen=True)
class CutNetwork(Network):
    """A network and what is cut of it; by value, and static under jit."""

    base: Any  # the uncut network, adapted
    cuts: PathCuts  # what is left of each variable that is cut
    input_shape: tuple[int, ...]  # (H, W, C) of one image

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.base, self.cuts, self.input_shape))

    def __hash__(self) -> int:
        """By value, computed once: the cuts are long."""
        return self._hash

    @property
    def num_classes(self) -> int:
        """Columns of the logits, if the uncut network says them."""
        return self.base.num_classes


# eq=False keeps the comparison and the hash of `CutNetwork`; a generated hash would go
# through all cuts at every call under jit.
@dataclasses.dataclass(frozen=True, eq=False)
class SlimNetwork(CutNetwork):
    """A network with channels removed, in the form that `models.adapt` describes."""

    def init(self, key, images, train: bool = False) -> Variables:
        """Fresh variables: those of the uncut network, cut."""
        return cut_tree(self.cuts, self.base.init(key, images, train=train))

    def apply(self, variables, images, train=False, mask=None, *, rngs=None, **options):
        """Logits [B, U], and the updated collections if `mutable` names any.

        What `options`, those of the uncut network's `apply`, return has the shapes of
        the masked network: `capture_intermediates` for one.
        """

        def call(variables, images, mask, rngs):
            return self.base.apply(
                variables, images, train=train, mask=mask, rngs=rngs, **options
            )

        arguments = (images, mask, rngs)
        program = self.trace(call, variables, arguments)
        leaves, others = jax.tree.leaves(variables), jax.tree.leaves(arguments)
        results, _ = program.run(leaves, others)
        # New statistics are cut as the old ones are; everything else is whole. With
        # `mutable` the result is the pair (logits, collections): in front of a
        # variable's own path there is its place in the pair.
        laid = [
            onto(
                held, [program.cuts.get((path[1:], i)) for i in range(len(held.shape))]
            )
            for path, held in zip(program.out_paths, results, strict=True)
        ]
        return jax.tree.unflatten(program.out_tree, laid)

    def trace(self, call, variables, arguments) -> Program:
        """Traces `call(variables, *arguments)` of the uncut network."""
        shapes = {path: shape for path, shape, _ in self.cuts}
        # The variables come cut, so their whole shapes are those on record.
        uncut = jax.tree_util.tree_map_with_path(
            lambda path, x: jax.ShapeDtypeStruct(
                shapes.get(names(path), x.shape), x.dtype
            ),
            variables,
        )
        kept = {
            (path, axis): np.asarray(ids)
            for path, _, axes in self.cuts
            for axis, ids in axes
        }
        return trace(call, uncut, arguments, kept)


@dataclasses.dataclass(frozen=True, eq=False)
class PinnedNetwork(CutNetwork):
    """A network whose dead channels stay dead, whatever an optimizer does to them.

    Entries that `mask` filled are read as the constants they were filled with, and so
    have no gradient.
    """

    def init(self, key, images, train: bool = False) -> Variables:
        """Fresh variables, masked."""
        return cut_tree(self.cuts, self.base.init(key, images, train=train), fill=True)

    def apply(self, variables, images, *arguments, **options) -> Any:
        """That of the network itself, on the variables masked."""
        masked = cut_tree(self.cuts, variables, fill=True)
        return self.base.apply(masked, images, *arguments, **options)


class SlimModule(nnx.Module):
    """An NNX module with channels removed.

    Its variables keep their kinds and the names of their places, so that `nnx.split`,
    `nnx.grad` and optimizers treat it as any module; `train()` and `eval()` switch it.
    """

    def __init__(self, slim: SlimNetwork, variables: Variables):
        """Takes what `compact` returns of an adapted NNX network."""
        self.slim = slim
        for collection, tree in variables.items():
            kind = KINDS.get(collection, nnx.Variable)
            setattr(self, collection, _wrapped(tree, kind))
        self.collections = tuple(variables)
        self.rngs = nnx.Rngs(dropout=0)
        # The names that `train()` and `eval()` switch on any module that has them.
        self.deterministic = True
        self.use_running_average = True

    def __call__(self, images):
        """Logits [B, U]; in training the running statistics are updated in place."""
        values = self.variables()
        if self.deterministic:
            return self.slim.apply(values, images, train=False)
        logits, new = self.slim.apply(
            values,
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": self.rngs.dropout()},
        )
        if not self.use_running_average and "batch_stats" in new:
            nnx.update(getattr(self, "batch_stats"), new["batch_stats"])  # noqa: B009
        return logits

    @property
    def adapted(self) -> SlimNetwork:
        """The network it stands for, which takes `variables()`: see `models.adapt`."""
        return self.slim

    def variables(self) -> dict[str, Any]:
        """The arrays as {"params": ..., "batch_stats": ...}."""
        return {
            name: nnx.to_pure_dict(nnx.state(getattr(self, name)))
            for name in self.collections
        }


def _wrapped(tree, kind):
    if isinstance(tree, dict):
        return nnx.Dict({name: _wrapped(child, kind) for name, child in tree.items()})
    return kind(jnp.asarray(tree))
