"""Retraining from scratch on what remains: the gold standard, and its price.

Nothing of the old model survives, so this is what forgetting means; every other method
is measured by how near it comes and how much sooner.
"""

import jax
import jax.numpy as jnp

from fuprune.data.federated import FederatedDataset
from fuprune.models.fresh import init_variables
from fuprune.unlearning.protocol import FineTune, UnlearnResult, Variables
from fuprune.unlearning.recovery import recover
from fuprune.unlearning.request import ForgetRequest, check_request


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

    Of the old one only the shapes are looked at. `train` is like `fine_tune`, with the
    budget and schedule of a first training, and takes its place if given. For the
    spread over seeds, call it with several keys.
    """
    request = check_request(request, data, variables, head)
    init_key = jax.random.split(key, 4)[0]
    image = jnp.zeros((1, *data.images.shape[1:]))
    fresh = init_variables(model, init_key, image)
    return recover(model, fresh, data, request, key, train or fine_tune)
