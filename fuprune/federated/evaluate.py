"""Accuracy of a model on a whole test split, on the device, as a confusion matrix.

Per-class accuracy, U-set and R-set accuracy (paper, section 6.2) are all read off one
[U, U] matrix, so that a split is passed through the network once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune.data.preprocess import to_float
from fuprune.federated.cohort import AXIS, on_mesh


class Evaluation(NamedTuple):
    """What a model does on a split with U classes; host arrays."""

    confusion: np.ndarray  # [U, U] int64, rows are true classes, columns predictions
    loss: float  # mean cross-entropy

    @property
    def per_class(self) -> np.ndarray:
        """[U] accuracy of each class; NaN where the split has no such class."""
        totals = self.confusion.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.diagonal(self.confusion) / totals

    @property
    def accuracy(self) -> float:
        """Share of all examples classified correctly."""
        return float(np.trace(self.confusion) / max(self.confusion.sum(), 1))

    def accuracy_on(self, classes: Sequence[int]) -> float:
        """Accuracy on the examples of `classes`: the U-set when those are forgotten."""
        rows = self.confusion[list(classes)]
        hits = np.diagonal(self.confusion)[list(classes)].sum()
        return float(hits / max(rows.sum(), 1))

    def accuracy_without(self, classes: Sequence[int]) -> float:
        """Accuracy on the examples of all other classes: the R-set."""
        forgotten = set(classes)
        rest = [u for u in range(len(self.confusion)) if u not in forgotten]
        return self.accuracy_on(rest)


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

    Args:
      model: a Flax module.
      dataset: `Dataset` with images [N, H, W, C] uint8 and labels [N].
      num_classes: U.
      preprocess: `(key, uint8 images) -> float images`, without augmentation.
      batch_size: images a forward pass.
      mesh: when given, every batch is spread over its `clients` axis.
    """
    size = len(dataset.labels)
    batch_size = min(batch_size, max(size, 1))
    if mesh is not None:
        batch_size = -(-batch_size // mesh.size) * mesh.size
    batches = max(1, -(-size // batch_size))
    padding = batches * batch_size - size
    images = np.concatenate(
        [dataset.images, np.zeros((padding, *dataset.images.shape[1:]), np.uint8)]
    )
    # Padding has the label U, one past the last class, and falls outside the matrix.
    labels = np.concatenate([dataset.labels, np.full(padding, num_classes, np.int32)])
    sharding = None if mesh is None else NamedSharding(mesh, P(AXIS))
    images = [
        _place(images[i : i + batch_size], sharding)
        for i in range(0, len(images), batch_size)
    ]
    labels = [
        _place(labels[i : i + batch_size].astype(np.int32), sharding)
        for i in range(0, len(labels), batch_size)
    ]

    def count(variables, images, labels):
        logits = model.apply(variables, preprocess(None, images), train=False)
        logits = logits.astype(jnp.float32)
        real = labels < num_classes
        picked = jax.nn.log_softmax(logits)
        safe = jnp.minimum(labels, num_classes - 1)
        loss = -jnp.take_along_axis(picked, safe[:, None], axis=1)[:, 0]
        cell = safe * num_classes + jnp.argmax(logits, axis=-1)
        cells = jnp.zeros(num_classes**2, jnp.int32).at[cell].add(real)
        return cells, jnp.sum(jnp.where(real, loss, 0.0))

    if mesh is None:
        batch_result = jax.jit(count)
    else:
        # By hand, because a kernel from outside XLA cannot be partitioned by it.
        batch_result = jax.jit(
            jax.shard_map(
                lambda *inputs: jax.lax.psum(count(*inputs), AXIS),
                mesh=mesh,
                in_specs=(P(), P(AXIS), P(AXIS)),
                out_specs=P(),
                check_vma=False,
            )
        )

    def evaluate(variables) -> Evaluation:
        if mesh is not None:
            variables = on_mesh(variables, mesh)
        results = [
            batch_result(variables, x, y) for x, y in zip(images, labels, strict=True)
        ]
        cells, losses = zip(*jax.device_get(results), strict=True)
        confusion = np.sum(np.asarray(cells, np.int64), axis=0)
        loss = float(np.sum(np.asarray(losses, np.float64)) / max(size, 1))
        return Evaluation(confusion.reshape(num_classes, num_classes), loss)

    return evaluate


def _place(x, sharding):
    if sharding is None:
        return jnp.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])
