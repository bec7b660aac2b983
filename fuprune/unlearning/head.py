"""The last layer, where each class has a row of its own."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fuprune.errors import UnlearnError
from fuprune.models.adapt import Variables
from fuprune.surgery import observe
from fuprune.surgery.trace import names

# Far below any logit, so that the softmax gives exactly zero and no gradient, and near
# enough for float32 and for weight decay during fine-tuning.
MASKED_LOGIT = -1e3


def head_name(model, variables: Variables, images) -> str | None:
    """The name of the last dense layer, such as "head" or "block/Dense_0".

    None if the logits do not come from a dense layer. Of the images, [B, H, W, C], only
    the shape matters.
    """
    # By a closure, because `eval_shape` returns shapes, and this is none.
    found: list[tuple[str, ...] | None] = []

    def look(variables, images):
        found.append(observe(model, variables, images).head)

    jax.eval_shape(look, variables, images)
    return None if found[0] is None else "/".join(found[0])


def head_classes(variables: Variables, head: str = "head") -> int:
    """U, the number of classes the head tells apart; its name may be a path, a/b."""
    layer = layer_of(variables["params"], head)
    if "kernel" not in layer:
        leaves = jax.tree_util.tree_leaves_with_path(variables["params"])
        there = dict.fromkeys("/".join(names(path)[:1]) for path, _ in leaves)
        raise UnlearnError(
            f"the model has no dense layer {head!r}, only {', '.join(there)}; pass "
            "head= the name of its last one."
        )
    return layer["kernel"].shape[-1]


def layer_of(params: Any, layer: str) -> dict[str, Any]:
    """The arrays of a layer by name; none if there is no such layer."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = [(names(path), leaf) for path, leaf in leaves if path]
    return {p[-1]: leaf for p, leaf in named if "/".join(p[:-1]) == layer}


def fill_rows(
    params: Any, layer: str, classes: Sequence[int], **values: float | None
) -> Any:
    """Parameters with a layer's arrays set at the classes' place on their last axis.

    Values go by the name of the array; None leaves it, and a layer may lack some.
    """

    def filled(place, leaf):
        *home, name = names(place)
        value = values.get(name) if "/".join(home) == layer else None
        if value is None:
            return leaf
        # On the host, where no program is compiled for each shape.
        array = np.array(leaf)
        array[..., list(classes)] = value
        return jax.device_put(array)

    return jax.tree_util.tree_map_with_path(filled, params)


def set_rows(
    variables: Variables,
    classes: tuple[int, ...],
    *,
    kernel: float | None = None,
    bias: float | None = None,
    head: str = "head",
) -> Variables:
    """Variables with the classes' kernel columns and biases set; None leaves them."""
    head_classes(variables, head)  # there is such a layer
    if bias and "bias" not in layer_of(variables["params"], head):
        raise UnlearnError(
            f"layer {head!r} has no bias to set; this control needs one."
        )
    filled = fill_rows(variables["params"], head, classes, kernel=kernel, bias=bias)
    return {**variables, "params": filled}
