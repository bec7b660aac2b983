"""Bad Teacher: a random network teaches the forgotten images, the trained one the rest.

Chundawat, Tarun, Mandal and Kankanhalli, "Can Bad Teaching Induce Forgetting?" (AAAI
2023). With the logits b of an untrained network and t of the trained one, the student s
minimises KL(softmax(b) || softmax(s)) on forgotten images and KL(softmax(t) ||
softmax(s)) on those that remain. The paper mixes both kinds in one pass; here the
holders learn from the bad teacher first, and the fine-tuning from the good one.
"""

import jax.numpy as jnp
import optax

from fuprune.models.fresh import init_variables
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS
from fuprune.unlearning.teaching import answers_of, passes, taught, teach


@taught("bad_teacher", serves=ALL_KINDS, options=passes(1, 1e-4, 256))
def bad_teacher(job: Job, o) -> UnlearnResult:
    """Teach forgotten images a random network's answers, and the others the old ones.

    The stage `badly_taught` is the model before the fine-tuning.
    """
    image = jnp.zeros((1, *job.data.images.shape[1:]))
    bad = answers_of(job.model, init_variables(job.model, job.own_key, image))
    good = answers_of(job.model, job.variables)
    adam = optax.adam(o.learning_rate)
    return teach(job, o, bad, adam, "badly_taught", recover=good)
