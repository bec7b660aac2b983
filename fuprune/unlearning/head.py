"""The last layer, where each class has a row of its own."""

import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError
from fuprune.unlearning.protocol import Variables

# Far below any logit, so that the softmax gives exactly zero and no gradient, and near
# enough for float32 and for weight decay during fine-tuning.
MASKED_LOGIT = -1e3


def head_classes(variables: Variables, head: str = "head") -> int:
    """U, the number of classes the head tells apart."""
    params = variables["params"]
    if head not in params or "kernel" not in params[head]:
        raise InputError(
            f"the model has no dense layer {head!r}, only {', '.join(params)}; pass "
            "head= the name of its last one."
        )
    return params[head]["kernel"].shape[-1]


def set_rows(
    variables: Variables,
    classes: tuple[int, ...],
    *,
    kernel: float | None = None,
    bias: float | None = None,
    head: str = "head",
) -> Variables:
    """Variables with the classes' kernel columns and biases set; None leaves them."""
    rows = list(classes)
    layer = {name: np.array(leaf) for name, leaf in variables["params"][head].items()}
    if kernel is not None:
        layer["kernel"][:, rows] = kernel
    if bias is not None:
        if "bias" not in layer:
            raise InputError(
                f"layer {head!r} has no bias to set; this control needs one."
            )
        layer["bias"][rows] = bias
    layer = {name: jnp.asarray(leaf) for name, leaf in layer.items()}
    return {**variables, "params": {**variables["params"], head: layer}}
