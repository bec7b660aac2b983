"""Retraining from scratch on what remains: the gold standard, and its price.

Nothing of the old model survives, so this is what forgetting means; every other method
is measured by how near it comes and how much sooner.
"""

import jax
import jax.numpy as jnp

from fuprune.data.federated import FederatedDataset
from fuprune.models.fresh import init_variables
from fuprune.unlearning.protocol import (
    FineTune,
    UnlearnResult,
    Variables,
)
from fuprune.unlearning.recovery import recover
from fuprune.unlearning.request import ForgetRequest, checked


def retrain(
    model,
    variables: Variables,
    data: FederatedDataset,
    request: ForgetRequest | tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    train: FineTune | None = None,
    head: str = "head",
) -> UnlearnResult:
    """Train a new model of the same architecture on what remains.

    For the spread over seeds, call it with several keys.

    Args:
      model: a Flax module.
      variables: of the old model; only their shapes are looked at.
      data: every client's data; only what remains is read.
      request: what to forget; a tuple of ints is classes.
      key: of the initialisation and the training.
      fine_tune: used when `train` is not given.
      train: like `fine_tune`, with the budget and schedule of a first training.
      head: name of the last layer.
    """
    request = checked(request, data, variables, head)
    init_key = jax.random.split(key, 4)[0]
    image = jnp.zeros((1, *data.images.shape[1:]))
    fresh = init_variables(model, init_key, image)
    return recover(model, fresh, data, request, key=key, fine_tune=train or fine_tune)
