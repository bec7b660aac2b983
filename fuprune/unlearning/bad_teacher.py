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
from fuprune.options import option, options
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.protocol import UnlearnResult
from fuprune.unlearning.teaching import SIMULATED, answers_of, teach


@options
class Options:
    """Options of bad_teacher."""

    rounds: int = option(1, "passes over the forgotten images", ge=0, le=100_000)
    learning_rate: float = option(1e-4, "of these passes, by Adam", gt=0, le=1000)
    batch_size: int = option(256, "of these passes", ge=1, le=65_536)


@method(
    "bad_teacher",
    serves=ALL_KINDS,
    options=Options,
    reads_forgotten=True,
    simulated=SIMULATED,
)
def bad_teacher(job: Job, o: Options) -> UnlearnResult:
    """Teach forgotten images a random network's answers, and the others the old ones.

    The stage `badly_taught` is the model before the fine-tuning.
    """
    image = jnp.zeros((1, *job.data.images.shape[1:]))
    untrained = init_variables(job.model, job.own_key, image)
    return teach(
        job,
        job.forgotten,
        answers_of(job.model, untrained),
        optax.adam(o.learning_rate),
        rounds=o.rounds,
        batch_size=o.batch_size,
        stage="badly_taught",
        recover=answers_of(job.model, job.variables),
    )
