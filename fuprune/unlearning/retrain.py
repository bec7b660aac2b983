"""Retraining from scratch on what remains: the gold standard, and its price.

Nothing of the old model survives, so this is what forgetting means; every other method
is measured by how near it comes and how much sooner.
"""

import jax.numpy as jnp

from fuprune.models.fresh import init_variables
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS, method


@method("retrain", serves=ALL_KINDS, budget="training")
def retrain(job: Job) -> UnlearnResult:
    """Train a new model of the same architecture on what remains.

    Of the old one only the shapes are looked at. For the spread over seeds, call it
    with several keys.
    """
    image = jnp.zeros((1, *job.data.images.shape[1:]))
    return job.recover(init_variables(job.model, job.own_key, image))


retrain_short = method(
    "retrain_short",
    serves=ALL_KINDS,
    budget="short",
    control="trains again from scratch for a tenth of the rounds",
)(retrain.function)
