"""The network that is left when channels are removed by tracing.

A slim network is the uncut one and the list of what was cut. Its `apply` traces the
uncut network and runs the jaxpr on held arrays, so it computes what the masked network
computes, in evaluation and in training, on the channels that are left alone.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fuprune.models.adapt import Forwarding, Variables, asked_for
from fuprune.surgery import trace
from fuprune.surgery.arrays import cut_array
from fuprune.surgery.findings import Path
from fuprune.surgery.held import onto
from fuprune.surgery.trace import Program

# Of each cut variable its path, its whole shape, and (axis, kept indices) pairs.
PathCuts = tuple[
    tuple[Path, tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]], ...
]


@dataclasses.dataclass(frozen=True)
class CutNetwork:
    """A network and what is cut of it; by value, and static under jit."""

    base: Any  # the uncut network, adapted
    cuts: PathCuts  # what is left of each variable
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

    def apply(
        self,
        variables,
        images,
        train: bool = False,
        mask=None,
        *,
        mutable: Any = False,
        rngs=None,
        **options,
    ) -> Any:
        """Logits [B, U], and the updated collections unless `mutable` is False.

        What `options`, those of the uncut network's `apply`, return has the shapes of
        the masked network: `capture_intermediates` for one.
        """

        def call(variables, images, mask, rngs):
            return self.base.apply(
                variables,
                images,
                train=train,
                mask=mask,
                **asked_for(mutable, rngs),
                **options,
            )

        arguments = (images, mask, rngs)
        program, numbers = self.trace(call, variables, arguments)
        leaves, others = jax.tree.leaves(variables), jax.tree.leaves(arguments)
        results, _ = trace.run(program, leaves, numbers, others)
        # With `mutable` the result is the pair (logits, collections): in front of a
        # variable's own path there is its place in the pair.
        kept = {path: axes for path, _, axes in self.cuts}
        laid = []
        for path, held in zip(program.out_paths, results, strict=True):
            # New statistics are cut as the old ones are; everything else is whole.
            wanted: list[Any] = [None] * len(held.shape)
            for axis, ids in kept.get(path[1:], ()) if mutable is not False else ():
                wanted[axis] = np.asarray(ids)
            laid.append(onto(held, wanted))
        return jax.tree.unflatten(program.out_tree, laid)

    def trace(self, call, variables, arguments) -> tuple[Program, trace.Cuts]:
        """Traces a call of the uncut network; returns also what is cut of it."""
        shapes = {path: shape for path, shape, _ in self.cuts}
        # The variables come cut, so their whole shapes are those on record.
        uncut = jax.tree_util.tree_map_with_path(
            lambda path, x: jax.ShapeDtypeStruct(
                shapes.get(trace.names(path), x.shape), x.dtype
            ),
            variables,
        )
        program = trace.trace(call, uncut, *arguments)
        return program, numbered(self.cuts, program.paths)


@dataclasses.dataclass(frozen=True, eq=False)
class PinnedNetwork(Forwarding, CutNetwork):
    """A network whose dead channels stay dead, whatever an optimizer does to them.

    Entries that `mask` filled are read as the constants they were filled with, and so
    have no gradient.
    """

    def init(self, key, images, train: bool = False) -> Variables:
        """Fresh variables, masked."""
        return cut_tree(self.cuts, self.base.init(key, images, train=train), fill=True)

    def target(self, variables) -> tuple[Any, Variables]:
        """The network, and the variables masked."""
        return self.base, cut_tree(self.cuts, variables, fill=True)


def pathed(cuts: trace.Cuts, program: Program) -> PathCuts:
    """Cuts by path, in the order of the leaves."""
    grouped: dict[int, list] = {}
    for leaf, axis in sorted(cuts):
        ids = tuple(int(i) for i in cuts[leaf, axis])
        grouped.setdefault(leaf, []).append((axis, ids))
    return tuple(
        (program.paths[leaf], tuple(program.shapes[leaf].shape), tuple(axes))
        for leaf, axes in grouped.items()
    )


def numbered(cuts: PathCuts, paths: Sequence[Path]) -> trace.Cuts:
    """Cuts by number of the leaf, of those variables that are there."""
    numbers = {path: number for number, path in enumerate(paths)}
    return {
        (numbers[path], axis): np.asarray(ids)
        for path, _, axes in cuts
        if path in numbers
        for axis, ids in axes
    }


def cut_tree(cuts: PathCuts, tree: Any, fill: bool = False) -> Any:
    """Takes the kept entries of the leaves at the paths of `cuts`, or fills others."""
    axes_at = {path: axes for path, _, axes in cuts}

    def cut_leaf(path, leaf):
        path = trace.names(path)
        dead = trace.dead_value(path) if fill else None
        return cut_array(leaf, axes_at.get(path, ()), dead)

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)
