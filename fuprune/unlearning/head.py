"""The last layer, where each class has a row of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.surgery import observe
from fuprune.unlearning.protocol import UnlearnError, Variables

# Far below any logit, so that the softmax gives exactly zero and no gradient, and near
# enough for float32 and for weight decay during fine-tuning.
MASKED_LOGIT = -1e3


def head_name(model, variables: Variables, images) -> str | None:
    """The name of the last dense layer, such as "head" or "block/Dense_0".

    Args:
      model: of the zoo, where it is "head", or any other, where it is found by tracing.
      variables: its variables.
      images: [B, H, W, C], of which only the shape matters.

    Returns:
      None if the logits do not come from a dense layer.
    """
    if hasattr(model, "wiring"):
        return "head"
    # By a closure, because `eval_shape` returns shapes and a path is none.
    found: list[tuple[str, ...] | None] = []
    jax.eval_shape(
        lambda v, x: found.append(observe(model, v, x).head), variables, images
    )
    (path,) = found
    return None if path is None else "/".join(path)


def head_classes(variables: Variables, head: str = "head") -> int:
    """U, the number of classes the head tells apart; its name may be a path, a/b."""
    params = variables["params"]
    layer = layer_of(params, head.split("/"))
    if "kernel" not in layer:
        raise UnlearnError(
            f"the model has no dense layer {head!r}, only {', '.join(params)}; pass "
            "head= the name of its last one."
        )
    return layer["kernel"].shape[-1]


def layer_of(params, path) -> Mapping[str, Any]:
    """The arrays of a layer; none if there is no such layer."""
    for name in path:
        params = params.get(name, {}) if isinstance(params, Mapping) else {}
    return params if isinstance(params, Mapping) else {}


def change_layer(params, path: Sequence[str], change: Callable[[Any], Any]):
    """Parameters with one layer, or what is below a path, changed."""
    if not path:
        return change(params)
    inner = change_layer(params[path[0]], path[1:], change)
    return {**params, path[0]: inner}


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
    found = layer_of(variables["params"], head.split("/"))
    # Copies: the rows are set in place below.
    layer = {name: np.array(leaf) for name, leaf in found.items()}
    if kernel is not None:
        layer["kernel"][:, rows] = kernel
    if bias is not None:
        if "bias" not in layer:
            raise UnlearnError(
                f"layer {head!r} has no bias to set; this control needs one."
            )
        layer["bias"][rows] = bias
    layer = {name: jnp.asarray(leaf) for name, leaf in layer.items()}
    params = change_layer(variables["params"], head.split("/"), lambda _: layer)
    return {**variables, "params": params}
