"""DELETE: distillation from the model itself with each image's own class ruled out.

Zhou, Zheng et al., "Decoupled Distillation to Erase: A General Unlearning Method for
Any Class-centric Tasks" (CVPR 2025). With t the trained model's logits and y the label
of a forgotten image, clients minimise on these images

    KL(softmax(t with t_y = -inf) || softmax(s)),

which takes the class away and leaves the other classes in the proportion they had.
"""

import jax.numpy as jnp
import optax

from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS
from fuprune.unlearning.teaching import answers_of, own_label, passes, taught, teach


def without_own_class(logits, batch):
    """Logits with minus infinity at each example's label."""
    return jnp.where(own_label(batch, logits.shape[-1]), -jnp.inf, logits)


@taught("delete", serves=ALL_KINDS, options=passes(20, 1e-3, 128))
def delete(job: Job, o) -> UnlearnResult:
    """Teach the forgotten images the model's other answers, then fine-tune.

    The stage `erased` is the model before the fine-tuning.
    """
    objective = answers_of(job.model, job.variables, without_own_class)
    return teach(job, o, objective, optax.sgd(o.learning_rate, momentum=0.9), "erased")
