"""DELETE: distillation from the model itself with each image's own class ruled out.

Zhou, Zheng et al., "Decoupled Distillation to Erase: A General Unlearning Method for
Any Class-centric Tasks" (CVPR 2025). With t the trained model's logits and y the label
of a forgotten image, clients minimise on these images

    KL(softmax(t with t_y = -inf) || softmax(s)),

which takes the class away and leaves the other classes in the proportion they had.
"""

import jax.numpy as jnp
import optax

from fuprune.options import option, options
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.protocol import UnlearnResult
from fuprune.unlearning.teaching import SIMULATED, answers_of, own_label, teach


@options
class Options:
    """Options of delete."""

    rounds: int = option(20, "passes over the forgotten images", ge=0, le=100_000)
    learning_rate: float = option(1e-3, "of these passes", gt=0, le=1000)
    batch_size: int = option(128, "of these passes", ge=1, le=65_536)


def without_own_class(logits, batch):
    """Logits with minus infinity at each example's label."""
    return jnp.where(own_label(batch, logits.shape[-1]), -jnp.inf, logits)


@method(
    "delete",
    serves=ALL_KINDS,
    options=Options,
    reads_forgotten=True,
    simulated=SIMULATED,
)
def delete(job: Job, o: Options) -> UnlearnResult:
    """Teach the forgotten images the model's other answers, then fine-tune.

    The stage `erased` is the model before the fine-tuning.
    """
    return teach(
        job,
        job.forgotten,
        answers_of(job.model, job.variables, without_own_class),
        optax.sgd(o.learning_rate, momentum=0.9),
        rounds=o.rounds,
        batch_size=o.batch_size,
        stage="erased",
    )
