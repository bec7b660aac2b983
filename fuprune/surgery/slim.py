"""The network that is left when channels are removed: the uncut one, and its cuts."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from fuprune.models.adapt import Variables
from fuprune.surgery.arrays import Cuts, cut_tree
from fuprune.surgery.held import onto
from fuprune.surgery.trace import trace

KINDS = {"params": nnx.Param, "batch_stats": nnx.BatchStat}  # of an NNX module


class SlimNetwork(nn.Module):
    """A network with channels removed, as a Linen module, static under jit.

    Its `apply` traces the uncut network and runs the jaxpr on held arrays. With
    `filled` its variables keep their shapes, and what is cut is read as the constants
    that `mask` fills in: it has no gradient and stays dead under any optimizer.

    Attributes:
      base: the uncut network, adapted.
      channels: the plan, `((layer, ids), ...)`: kept channels of the base.
      cuts: what the plan leaves of each variable.
      input_shape: (H, W, C) of one image.
      filled: whether dead channels are zeros that are there.
    """

    base: Any
    channels: tuple[tuple[str, tuple[int, ...]], ...]
    cuts: Cuts
    input_shape: tuple[int, ...]
    filled: bool = False

    @property
    def num_classes(self) -> int:
        """Columns of the logits, if the uncut network says them."""
        return self.base.num_classes

    @nn.nowrap
    def init(self, rngs, images, train: bool = False) -> Variables:
        """Fresh variables: those of the uncut network, cut or filled."""
        fresh = self.base.init(rngs, images, train=train)
        return cut_tree(self.cuts, fresh, self.filled)

    @nn.nowrap
    def apply(self, variables, images, train=False, mask=None, *, rngs=None, **options):
        """Logits [B, U], and the updated collections if `mutable` names any.

        What other options of the uncut network's `apply` return has the slim shapes.
        """

        def call(variables, images, mask, rngs):
            return self.base.apply(
                variables, images, train=train, mask=mask, rngs=rngs, **options
            )

        arguments = (images, mask, rngs)
        if self.filled:
            return call(cut_tree(self.cuts, variables, fill=True), *arguments)
        program = trace(call, variables, arguments, self.cuts)
        leaves, others = jax.tree.leaves(variables), jax.tree.leaves(arguments)
        results, _ = program.run(leaves, others)
        laid = []
        for path, held in zip(program.out_paths, results, strict=True):
            # With `mutable` the result is a pair, (logits, collections): a variable's
            # own path follows its place there. New statistics are cut as the old ones
            # are, and the logits are whole.
            axes = range(len(held.shape))
            kept = held.kept
            if path[1:2] != ("intermediates",):
                kept = [program.cuts.get((path[1:], axis)) for axis in axes]
            laid.append(onto(held, kept))
        return jax.tree.unflatten(program.out_tree, laid)

    def __call__(self, images, train: bool = False, mask=None):
        """Logits [B, U]; as a part of another module, with the variables of its own."""
        alone = self.clone(parent=None, name=None)
        if self.is_initializing():
            self._put(alone.init(self.make_rng("params"), images, train=train))
        rngs = {"dropout": self.make_rng("dropout")} if self.has_rng("dropout") else {}
        logits, new = alone.apply(
            self.variables, images, train, mask, mutable=["batch_stats"], rngs=rngs
        )
        if train and self.is_mutable_collection("batch_stats"):
            self._put(new)
        return logits

    def _put(self, variables):
        for collection, tree in variables.items():
            for name, value in tree.items():
                self.put_variable(collection, name, value)


class SlimModule(nnx.Module):
    """An NNX module with channels removed, which keeps its kinds of variables."""

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
        train = not self.deterministic
        logits, new = self.slim.apply(
            self.variables(),
            images,
            train=train,
            mutable=["batch_stats"],
            rngs={"dropout": self.rngs.dropout()} if train else None,
        )
        if not self.use_running_average and new.get("batch_stats"):
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
