"""Accuracy of a model on a whole test split, on the device, as a confusion matrix."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune.data.preprocess import to_float
from fuprune.errors import InputError
from fuprune.federated.cohort import keep_compiled
from fuprune.federated.sharded import AXIS, on_mesh
from fuprune.models.adapt import adapt


class Evaluation(NamedTuple):
    """What a model does on a split with U classes; host arrays."""

    confusion: np.ndarray  # [U, U] int64, rows are true classes, columns predictions
    loss: float  # mean cross-entropy

    @property
    def per_class(self) -> np.ndarray:
        """[U] accuracy of each class; NaN where the split has no such class."""
        totals, hits = self.confusion.sum(axis=1), np.diagonal(self.confusion)
        return np.where(totals > 0, hits / np.maximum(totals, 1), np.nan)

    @property
    def accuracy(self) -> float:
        """Share of all examples classified correctly."""
        return float(np.trace(self.confusion) / max(self.confusion.sum(), 1))

    def accuracy_on(self, classes: Sequence[int]) -> float:
        """Accuracy on the examples of `classes` (the U-set); 0 if there are none."""
        chosen = np.asarray(classes, int)
        hits = np.diagonal(self.confusion)[chosen].sum()
        return float(hits / max(self.confusion[chosen].sum(), 1))

    def accuracy_without(self, classes: Sequence[int]) -> float:
        """Accuracy on the examples of all other classes: the R-set."""
        others = np.setdiff1d(range(len(self.confusion)), classes)
        return self.accuracy_on(others.tolist())


def make_evaluator(
    model,
    dataset,
    *,
    num_classes: int,
    preprocess=to_float,
    batch_size: int = 256,
    mesh=None,
) -> Callable[..., Evaluation]:
    """`evaluate(variables) -> Evaluation` for one model and one split.

    The model is any network that `models.adapt.adapt` takes, `preprocess` is without
    augmentation, and every batch is spread over a mesh's `clients` axis, if given.
    """
    size = len(dataset.labels)
    batch_size = min(batch_size, max(size, 1))
    if mesh is not None:
        batch_size = -(-batch_size // mesh.size) * mesh.size
    batches = max(1, -(-size // batch_size))
    padding = batches * batch_size - size
    images = np.pad(dataset.images, ((0, padding), (0, 0), (0, 0), (0, 0)))
    # Padding has the label U, one past the last class, and falls outside the matrix.
    labels = np.pad(dataset.labels, (0, padding), constant_values=num_classes)
    labels = labels.astype(np.int32)
    sharding = None if mesh is None else NamedSharding(mesh, P(AXIS))
    placed = [
        [_place(x[i : i + batch_size], sharding) for x in (images, labels)]
        for i in range(0, len(labels), batch_size)
    ]
    batch_result = _make_count(adapt(model), num_classes, preprocess, mesh)

    def evaluate(variables) -> Evaluation:
        if mesh is not None:
            variables = on_mesh(variables, mesh)
        matrices, losses = _fetch([batch_result(variables, *batch) for batch in placed])
        matrices = matrices.reshape(-1, num_classes, num_classes)
        # A matrix per batch, and with a mesh one per device.
        confusion = np.asarray(matrices).sum(axis=0, dtype=np.int64)
        loss = float(np.sum(losses, dtype=np.float64) / max(size, 1))
        return Evaluation(confusion, loss)

    return evaluate


@keep_compiled
def _make_count(model, num_classes, preprocess, mesh):
    """Confusion matrix [U, U] and summed loss of one batch, compiled."""

    def count(variables, images, labels):
        logits = model.apply(variables, preprocess(None, images), train=False)
        if logits.shape != (*labels.shape, num_classes):
            raise InputError(
                f"the network's logits are {logits.shape}, but {labels.size} images of "
                f"{num_classes} classes need {(*labels.shape, num_classes)}; make it "
                "with that many outputs."
            )
        logits = logits.astype(jnp.float32)
        real = labels < num_classes
        picked = jax.nn.log_softmax(logits)
        safe = jnp.minimum(labels, num_classes - 1)
        loss = -jnp.take_along_axis(picked, safe[:, None], axis=1)[:, 0]
        # Padding adds 0 to a cell that exists.
        cells = safe * num_classes + jnp.argmax(logits, axis=-1)
        counts = jnp.zeros(num_classes**2, jnp.int32).at[cells].add(real)
        matrix = counts.reshape(num_classes, num_classes)
        return matrix, jnp.sum(jnp.where(real, loss, 0.0))

    if mesh is None:
        return jax.jit(count)
    # By hand, because a kernel from outside XLA cannot be partitioned by it. Every
    # device's counts are stacked, and summed on the host: all batches are in flight at
    # once, and CPU devices that met in several of them could wait for ever.
    return jax.jit(
        jax.shard_map(
            lambda *inputs: jax.tree.map(lambda x: x[None], count(*inputs)),
            mesh=mesh,
            in_specs=(P(), P(AXIS), P(AXIS)),
            out_specs=P(AXIS),
            check_vma=False,
        )
    )


def _fetch(results):
    """Stacked matrices and losses of all batches on every host."""
    if results[0][0].is_fully_addressable:
        # Stacked on the host, where it is no program.
        return tuple(map(np.stack, zip(*jax.device_get(results), strict=True)))
    stacked = tuple(jnp.stack(x) for x in zip(*results, strict=True))
    return multihost_utils.process_allgather(stacked, tiled=True)


def _place(x, sharding):
    if sharding is None:
        return jax.device_put(x)  # `jnp.asarray` compiles a program for every shape
    return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])
