"""FedQUIT: the leaving client distils from a teacher that is unsure of its labels.

Mora, Valerio, Bellavista and Passarella, "FedQUIT: On-Device Federated Unlearning via a
Quasi-Competent Virtual Teacher" (2024). With t the global model's logits and y an
image's label, the client minimises

    KL(softmax(t with t_y = min_u t_u) || softmax(s))

on its own data and leaves; the other clients train on. Nothing but the global model is
needed, and no other client takes part in the forgetting.
"""

import jax.numpy as jnp
import optax

from fuprune.options import option, options
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import method
from fuprune.unlearning.protocol import UnlearnResult
from fuprune.unlearning.teaching import SIMULATED, answers_of, own_label, teach


@options
class Options:
    """Options of fed_quit."""

    rounds: int = option(1, "passes over the leaving client's images", ge=0, le=100_000)
    learning_rate: float = option(1e-4, "of these passes, by Adam", gt=0, le=1000)
    batch_size: int = option(32, "of these passes", ge=1, le=65_536)


def with_lowest_own_class(logits, batch):
    """Logits whose value at each example's label is the least of the example's."""
    lowest = jnp.min(logits, axis=-1, keepdims=True)
    return jnp.where(own_label(batch, logits.shape[-1]), lowest, logits)


@method(
    "fed_quit",
    serves=("clients", "examples"),
    options=Options,
    reads_forgotten=True,
    simulated=SIMULATED,
)
def fed_quit(job: Job, o: Options) -> UnlearnResult:
    """Let the leaving clients unlearn their labels, then fine-tune without them.

    The stage `quit` is the model before the fine-tuning.
    """
    return teach(
        job,
        job.forgotten,
        answers_of(job.model, job.variables, with_lowest_own_class),
        optax.adam(o.learning_rate),
        rounds=o.rounds,
        batch_size=o.batch_size,
        stage="quit",
    )
