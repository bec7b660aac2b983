"""Retraining from scratch on what remains: the gold standard, and its price.

Nothing of the old model survives, so this is what forgetting means; every other method
is measured by how near it comes and how much sooner.
"""

import jax.numpy as jnp

from fuprune.models.fresh import init_variables
from fuprune.unlearning.job import Job, unlearn_fn
from fuprune.unlearning.protocol import FineTune, UnlearnResult


@unlearn_fn
def retrain(job: Job, *, train: FineTune | None = None) -> UnlearnResult:
    """Train a new model of the same architecture on what remains.

    Of the old one only the shapes are looked at. `train` is like `fine_tune`, with the
    budget and schedule of a first training, and takes its place if given. For the
    spread over seeds, call it with several keys.
    """
    image = jnp.zeros((1, *job.data.images.shape[1:]))
    fresh = init_variables(job.model, job.own_key, image)
    return job._replace(fine_tune=train or job.fine_tune).recover(fresh)
