"""Forgetting by teaching the forgotten images the answer of a model that never knew.

Each participant asks the trained model for the best other answer, gives it to its own
forgotten images as their label, and the federation fine-tunes with them. Labels never
leave their client. Relabelling to the nearest wrong class is Boundary Shrink (Chen et
al., "Boundary Unlearning", CVPR 2023), which finds that class by an adversarial step
where this takes the second-best logit; random labels are older (Graves et al.,
"Amnesiac Machine Learning", AAAI 2021).
"""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset, drop_classes
from fuprune.federated.client import gather_batch
from fuprune.federated.local_work import count_batches
from fuprune.federated.program import ClientProgram, Task
from fuprune.options import option, options
from fuprune.unlearning import class_pruning, privacy
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import method

BATCH_SIZE = 64  # images that are asked about at a time


@options
class Options:
    """Options of relabel and prune_relabel."""

    section: ClassVar[str] = "relabel"

    answer: Literal["nearest", "random"] = option(
        "nearest", "new label: the most likely other class, or a random one"
    )


@method("relabel", options=Options, reads_forgotten=True, trains_on_forgotten=True)
def relabel(job: Job, o: Options) -> UnlearnResult:
    """Fine-tune with the forgotten images under the labels of other classes.

    The participants' forgotten images are trained on for the whole fine-tuning; those
    of other clients are left out.
    """
    data, notes = relabelled(job, o.answer)
    # What still has its label belongs to clients that do not take part.
    return job._replace(data=data).recover(job.variables, notes=notes)


@method(
    "prune_relabel",
    options=(class_pruning.Options, privacy.Options, Options),
    reads_forgotten=True,
    trains_on_forgotten=True,
)
def prune_relabel(
    job: Job, cut: class_pruning.Options, p: privacy.Options, o: Options
) -> UnlearnResult:
    """The paper's cut, fine-tuned with the forgotten images under other labels.

    Labels are the answers of the network before the cut.
    """
    data, notes = relabelled(job, o.answer)
    taught = drop_classes(data, job.classes)

    def tune(model, variables, data, key):
        return job.fine_tune(model, variables, taught, key)

    result = class_pruning.class_pruning.function(job._replace(fine_tune=tune), cut, p)
    return result._replace(notes={**result.notes, **notes})


def relabelled(job: Job, answer: str) -> tuple[FederatedDataset, dict[str, Any]]:
    """The data with new labels for the classes, and how often each was given."""
    forgotten = job.forgotten
    others = np.setdiff1d(np.arange(job.num_classes), job.classes)
    rows, lengths = jax.device_get((forgotten.rows, forgotten.lengths))
    if answer == "nearest":
        size, options = rows.shape[1], dict(batch_size=BATCH_SIZE)
        program = answers_program(
            job.model, others, size, **options, preprocess=job.preprocess
        )
        _, answers = job.run(program)(job.variables, forgotten)
    else:
        answers = jax.random.choice(job.own_key, others, rows.shape)
    answers = jax.device_get(answers)
    # Labels are of the pool, and each image is in one client's row at most: to change
    # the pool is to change the client's own label.
    labels = np.array(jax.device_get(job.data.labels))
    real = np.arange(rows.shape[1]) < lengths[:, None]
    labels[rows[real]] = answers[real]
    placed = jax.device_put(labels, job.data.labels.sharding)
    counts = np.bincount(answers[real], minlength=job.num_classes)
    return job.data._replace(labels=placed), {"new_labels": counts.tolist()}


def answers_program(model, others, size, *, batch_size, preprocess) -> ClientProgram:
    """`finish` gives `((), answers)`: the best of `others` for each image, [size]."""
    # Whole batches, because an update past the end would be moved back and overwrite
    # answers before it.
    padded = -(-size // batch_size) * batch_size
    arguments = {"others": [int(u) for u in others], "batch_size": batch_size}
    others = jnp.asarray(others, jnp.int32)

    def init(shared, client):
        return jnp.zeros(padded, jnp.int32)

    def step(shared, client, answers, i):
        positions = i * batch_size + jnp.arange(batch_size)
        batch = gather_batch(shared, client, positions, preprocess, jax.random.key(0))
        logits = model.apply(shared.context, batch.images, train=False)
        best = others[jnp.argmax(logits[:, others], axis=-1)]
        return jax.lax.dynamic_update_slice(answers, best, (i * batch_size,))

    def finish(shared, client, answers):
        return (), answers[:size]

    def num_steps(client):
        return count_batches(client.length, batch_size)

    task = Task("relabel", model, arguments)
    return ClientProgram(num_steps, init, step, finish, task=task)
