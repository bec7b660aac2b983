"""SCRUB: away from the teacher on forgotten images, near it and the labels elsewhere.

Kurmanji, Triantafillou, Hayes and Triantafillou, "Towards Unbounded Machine Unlearning"
(NeurIPS 2023). With the trained model as teacher t, clients maximise KL(t || s) on the
forgotten images, and minimise gamma CE + alpha KL(t || s) on those that remain. The
paper alternates both passes in its first epochs; here all maximising passes come first,
and the fine-tuning minimises.
"""

import optax

from fuprune.federated.objective import Objective
from fuprune.options import option, options
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS
from fuprune.unlearning.teaching import answers_of, labels_only, passes, taught, teach


@options
class Options(passes(3, 5e-4, 64)):
    """Options of scrub."""

    temperature: float = option(2.0, "T of the softmax of teacher and student", gt=0)
    alpha: float = option(0.5, "weight of the teacher in the fine-tuning", ge=0)
    gamma: float = option(1.0, "weight of the labels in the fine-tuning", ge=0)


@taught("scrub", serves=ALL_KINDS, options=Options)
def scrub(job: Job, o: Options) -> UnlearnResult:
    """Move away from the old answers on the forgotten images, then fine-tune.

    The stage `scrubbed` is the model before the fine-tuning.
    """
    away, near = objectives(job.model, job.variables, o)
    return teach(job, o, away, optax.adam(o.learning_rate), "scrubbed", recover=near)


def objectives(teacher, variables, o: Options) -> tuple[Objective, Objective]:
    """What is minimised on forgotten images, and what on those that remain."""
    answers = answers_of(teacher, variables, lambda t, batch: t / o.temperature)

    def divergence(context, logits, batch):
        # T^2 keeps the size of the gradient the same over temperatures.
        warm = answers.losses(context, logits / o.temperature, batch)
        return o.temperature**2 * warm

    def away(context, logits, batch):
        return -divergence(context, logits, batch)

    def near(context, logits, batch):
        teachers = o.alpha * divergence(context, logits, batch)
        return o.gamma * labels_only(logits, batch) + teachers

    return Objective(away, variables), Objective(near, variables)
