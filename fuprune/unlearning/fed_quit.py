"""FedQUIT: the leaving client distils from a teacher that is unsure of its labels.

Mora, Valerio, Bellavista and Passarella, "FedQUIT: On-Device Federated Unlearning via a
Quasi-Competent Virtual Teacher" (2024). With t the global model's logits and y an
image's label, the client minimises

    KL(softmax(t with t_y = min_u t_u) || softmax(s))

on its own data and leaves; the other clients train on. No other client takes part in
the forgetting.
"""

import jax.numpy as jnp
import optax

from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.teaching import answers_of, own_label, passes, taught, teach


def with_lowest_own_class(logits, batch):
    """Logits whose value at each example's label is the least of the example's."""
    lowest = jnp.min(logits, axis=-1, keepdims=True)
    return jnp.where(own_label(batch, logits.shape[-1]), lowest, logits)


@taught("fed_quit", serves=("clients", "examples"), options=passes(1, 1e-4, 32))
def fed_quit(job: Job, o) -> UnlearnResult:
    """Let the leaving clients unlearn their labels, then fine-tune without them.

    The stage `quit` is the model before the fine-tuning.
    """
    objective = answers_of(job.model, job.variables, with_lowest_own_class)
    return teach(job, o, objective, optax.adam(o.learning_rate), "quit")
