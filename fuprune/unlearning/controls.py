"""Controls: cheap ways to zero accuracy on a class that a real method has to beat.

Each brings U-set accuracy down without the idea under test: by hiding the answer, by
fine-tuning alone, or by cutting other channels. What a method does better than these,
and only that, is its own merit.
"""

import functools

import jax

from fuprune.data.federated import FederatedDataset
from fuprune.unlearning.class_pruning import PAPER_CUT, Cut, class_pruning
from fuprune.unlearning.head import MASKED_LOGIT, head_classes, layer_of, set_rows
from fuprune.unlearning.protocol import FineTune, Stage, UnlearnResult, Variables
from fuprune.unlearning.recovery import recover
from fuprune.unlearning.request import ForgetRequest, check_request, classes_of


def _set_head(
    stage: str,
    kernel: float | None,
    bias: float,
    /,
    model,
    variables: Variables,
    data: FederatedDataset,
    request: ForgetRequest | tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    head: str = "head",
) -> UnlearnResult:
    """Set the classes' rows of the head; no data are read and nothing is trained.

    A `kernel` of None leaves the columns, and then there must be biases. `stage` is the
    name of the result.
    """
    del data, key, fine_tune
    classes = classes_of(request, head_classes(variables, head))
    has_bias = "bias" in layer_of(variables, head)
    # To mask without a bias is impossible, and `set_rows` says so; to zero a row
    # without one needs none.
    biases = {"bias": bias} if has_bias or kernel is None else {}
    changed = set_rows(variables, classes, kernel=kernel, **biases, head=head)
    return UnlearnResult(model, changed, (Stage(stage, model, changed),))


# Never answers the classes. Nothing is forgotten: every weight is still there, and one
# number per class undoes it.
mask_logit = functools.partial(_set_head, "masked", None, MASKED_LOGIT)
# The logit is 0 for every image, which can still be the largest. The features know the
# class as before.
zero_class_row = functools.partial(_set_head, "zeroed", 0.0, 0.0)


def fine_tune_only(
    model,
    variables: Variables,
    data: FederatedDataset,
    request: ForgetRequest | tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    head: str = "head",
) -> UnlearnResult:
    """Fine-tune the trained model on what remains, and do nothing else."""
    request = check_request(request, data, variables, head)
    return recover(model, variables, data, request, key, fine_tune)


def _prune_in_order(
    order: str, /, *arguments, cut: Cut = PAPER_CUT, **pruning
) -> UnlearnResult:
    """The paper's method with another order of cuts, whatever the options say of it."""
    return class_pruning(*arguments, cut=cut._replace(order=order), **pruning)


# As many channels as the paper's method, at random; and those with the lowest TF-IDF,
# as the authors' released code does.
prune_random = functools.partial(_prune_in_order, "random")
prune_lowest = functools.partial(_prune_in_order, "lowest")


def prune_then_drop_row(
    model,
    variables: Variables,
    data: FederatedDataset,
    request: ForgetRequest | tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    head: str = "head",
    **pruning,
) -> UnlearnResult:
    """The paper's method, with the head's rows dropped before the fine-tuning.

    A dropped row has a zero kernel and a bias of -1000: the softmax is over the other
    classes only, and no gradient reaches it. It shows how much of what pruning
    achieves on the class the head alone would have.
    """
    dropped: list[Stage] = []

    def drop_then_tune(model, variables, data, key, objective=None):
        del objective  # class_pruning has none
        variables = set_rows(
            variables, classes, kernel=0.0, bias=MASKED_LOGIT, head=head
        )
        # By the closure: class_pruning knows nothing of this stage.
        dropped.append(Stage("dropped", model, variables))
        return fine_tune(model, variables, data, key)

    classes = classes_of(request, head_classes(variables, head))
    result = class_pruning(
        model,
        variables,
        data,
        classes,
        key=key,
        fine_tune=drop_then_tune,
        head=head,
        **pruning,
    )
    return result._replace(stages=(*result.stages, *dropped))
