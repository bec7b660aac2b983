"""Controls: cheap ways to zero accuracy on a class that a real method has to beat.

Each brings U-set accuracy down without the idea under test: by hiding the answer, by
fine-tuning alone, or by cutting other channels. What a method does better than these,
and only that, is its own merit.
"""

import dataclasses

from fuprune.unlearning import privacy
from fuprune.unlearning.class_pruning import Options, class_pruning
from fuprune.unlearning.head import MASKED_LOGIT, head_classes, set_rows
from fuprune.unlearning.job import Job, Stage, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS, method


@method("mask_logit", fine_tunes=False, control="only hides the output")
def mask_logit(job: Job) -> UnlearnResult:
    """Never answer the classes.

    Nothing is forgotten: every weight is still there, and one number per class undoes
    it.
    """
    return _set_head(job, "masked", bias=MASKED_LOGIT)


@method(
    "zero_class_row", fine_tunes=False, control="only clears weights of the last layer"
)
def zero_class_row(job: Job) -> UnlearnResult:
    """Answer 0 for the classes, which can still be the largest logit.

    The features know the class as before.
    """
    return _set_head(job, "zeroed", kernel=0.0, bias=0.0)


def _set_head(job: Job, stage: str, **values: float) -> UnlearnResult:
    """Set the classes' rows of the head; no data are read and nothing is trained."""
    changed = set_rows(job.variables, job.classes, head=job.head, **values)
    return UnlearnResult(job.model, changed, (Stage(stage, job.model, changed),))


@method("fine_tune_only", serves=ALL_KINDS, control="removes nothing")
def fine_tune_only(job: Job) -> UnlearnResult:
    """Fine-tune the trained model on what remains, and do nothing else."""
    return job.recover(job.variables)


@method(
    "prune_random",
    options=Options,
    reads_forgotten=True,
    control="cuts channels at random",
)
def prune_random(job: Job, o: Options) -> UnlearnResult:
    """Cut as many channels as the paper's method, at random."""
    return class_pruning.function(job, dataclasses.replace(o, order="random"))


@method(
    "prune_lowest",
    options=Options,
    reads_forgotten=True,
    control="cuts the channels that matter least",
)
def prune_lowest(job: Job, o: Options) -> UnlearnResult:
    """Cut the channels with the lowest TF-IDF, as the authors' released code does."""
    return class_pruning.function(job, dataclasses.replace(o, order="lowest"))


@method(
    "prune_then_drop_row",
    options=(Options, privacy.Options),
    reads_forgotten=True,
    control="also clears weights of the last layer",
)
def prune_then_drop_row(
    job: Job, o: Options, p: privacy.Options = privacy.NOTHING
) -> UnlearnResult:
    """The paper's method, with the head's rows dropped before the fine-tuning.

    A dropped row has a zero kernel and a bias of -1000: the softmax is over the other
    classes only, and no gradient reaches it. It shows how much of what pruning
    achieves on the class the head alone would have.
    """
    dropped: list[Stage] = []

    def drop_then_tune(model, variables, data, key):
        rows = dict(kernel=0.0, bias=MASKED_LOGIT)
        variables = set_rows(variables, job.classes, **rows, head=job.head)
        dropped.append(Stage("dropped", model, variables))
        return job.fine_tune(model, variables, data, key)

    # Without such a layer it ends here, and not after the cut.
    head_classes(job.variables, job.head)
    result = class_pruning.function(job._replace(fine_tune=drop_then_tune), o, p)
    return result._replace(stages=(*result.stages, *dropped))
