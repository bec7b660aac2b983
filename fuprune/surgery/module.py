"""A slim network as an NNX module, for those who brought one."""

from typing import Any

import jax
from flax import nnx

from fuprune.models.adapt import Variables
from fuprune.surgery.slim import SlimNetwork

KINDS = {"params": nnx.Param, "batch_stats": nnx.BatchStat}


class SlimModule(nnx.Module):
    """An NNX module with channels removed.

    Its variables keep their kinds and the names of their places, so that `nnx.split`,
    `nnx.grad` and optimizers treat it as any module; `train()` and `eval()` switch it.
    """

    def __init__(self, slim: SlimNetwork, variables: Variables):
        """Takes what `cutting.compact` returned for an adapted NNX network."""
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
    return kind(jax.numpy.asarray(tree))
