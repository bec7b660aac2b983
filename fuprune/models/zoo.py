"""Models by name."""

import re
from typing import Any, cast

import jax.numpy as jnp

from fuprune.errors import InputError, check_choice
from fuprune.kernels.library import IMPLEMENTATIONS
from fuprune.models import vgg
from fuprune.models.layers import NORMS, ConvolutionalNetwork
from fuprune.models.resnet import ResNet
from fuprune.models.vgg import VGG

MODELS = (
    *(f"resnet{depth}" for depth in (8, 20, 32, 44, 56)),
    *(f"vgg{depth}" for depth in vgg.STAGE_DEPTHS),
)
# Far above any use: a spec read from a file must not exhaust the memory.
MAX_CLASSES = 100_000
MAX_IMAGE_SIDE = 2048


def create(
    name: str,
    *,
    num_classes: int,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    norm: str = "batch",
    conv: str = "xla",
    dtype: Any = jnp.float32,
) -> ConvolutionalNetwork:
    """Returns the model of a name of `MODELS`, for images (H, W, C).

    Its convolutions compute in `dtype`, by "xla" or "onednn"; parameters are float32,
    norm statistics and logits float32 at least.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = create("resnet20", num_classes=10)
      >>> variables = model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    """
    check_choice("model", name, MODELS)
    check_choice("norm", norm, NORMS)
    check_choice("conv", conv, IMPLEMENTATIONS)
    shape = check_sizes(num_classes, input_shape)
    family, depth = re.findall(r"^(resnet|vgg)(\d+)$", name)[0]
    kind = {"resnet": ResNet, "vgg": VGG}[family]
    return kind(int(depth), int(num_classes), shape, norm, conv, dtype)


def check_sizes(num_classes: int, input_shape) -> tuple[int, int, int]:
    """Returns (H, W, C) of an image, after a check of it and of the classes."""
    shape = tuple(int(size) for size in input_shape)
    if len(shape) != 3 or min(shape) < 1 or max(shape) > MAX_IMAGE_SIDE:
        raise InputError(
            f"input_shape is {input_shape}, but must be (height, width, channels), each"
            f" from 1 to {MAX_IMAGE_SIDE}."
        )
    if not 1 <= num_classes <= MAX_CLASSES:
        raise InputError(
            f"num_classes is {num_classes}, but must be from 1 to {MAX_CLASSES}."
        )
    return cast(tuple[int, int, int], shape)
