"""From stored uint8 images to what a model sees: scaling, random crop, random flip."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Preprocess = Callable[[Any, jax.Array], jax.Array]  # (key, uint8) -> float


class Preprocessing(NamedTuple):
    """What images go through, in each of the two uses of a model."""

    evaluation: Preprocess  # (key, uint8 images) -> what the model sees
    training: Preprocess  # the same with augmentation, if it is on


def to_float(key, images):
    """Images on the 0..1 scale, no augmentation; `key` is not used."""
    del key
    return images.astype(jnp.float32) / 255.0


def normalise(
    images: jax.Array | np.ndarray,
    mean: Sequence[float] | jax.Array | float,
    std: Sequence[float] | jax.Array | float,
) -> Any:
    """Bytes to floats: (images / 255 - mean) / std, [..., H, W, C].

    The result is on the host if the images are: there, JAX would compile every
    operation for every shape of a batch.
    """
    numpy = np if isinstance(images, np.ndarray) else jnp
    scale = 1.0 / numpy.asarray(std, np.float32)
    shift = numpy.asarray(mean, np.float32) * scale
    # One multiply-add per pixel.
    return images.astype(np.float32) * (scale / 255.0) - shift


def crop_and_flip(key: jax.Array, images: jax.Array, *, padding: int = 4) -> jax.Array:
    """Shifts every image by up to `padding` pixels and mirrors half of them.

    The usual CIFAR augmentation: zero-pad each side, crop back to the original size
    at a random place, flip left to right with probability 1/2. Each image of the batch
    [B, H, W, C] has its own draws.
    """
    batch, height, width, channels = images.shape
    row_key, column_key, flip_key = jax.random.split(key, 3)
    shift = (batch, 1)
    top = jax.random.randint(row_key, shift, -padding, padding + 1)
    left = jax.random.randint(column_key, shift, -padding, padding + 1)
    flip = jax.random.bernoulli(flip_key, 0.5, shift)

    # Pixel (row, column) of the output is read at (rows, columns) of the input. One
    # gather of whole pixels: XLA's vmapped dynamic_slice is 10x slower in CPU loops.
    rows = jnp.arange(height) + top
    columns = jnp.where(flip, jnp.arange(width)[::-1], jnp.arange(width)) + left
    inside_rows = (rows >= 0) & (rows < height)
    inside_columns = (columns >= 0) & (columns < width)
    inside = inside_rows[:, :, None] & inside_columns[:, None, :]
    source = jnp.where(inside, rows[:, :, None] * width + columns[:, None, :], 0)
    pixels = jnp.take_along_axis(
        images.reshape(batch, height * width, channels),
        source.reshape(batch, height * width, 1),
        axis=1,
        # `source` keeps the promise: what lies outside is read at pixel 0, and blanked.
        mode="promise_in_bounds",
    ).reshape(images.shape)
    return jnp.where(inside[..., None], pixels, jnp.zeros((), images.dtype))


def make_preprocess(
    mean: Sequence[float], std: Sequence[float], *, augment: bool = False, padding=4
) -> Preprocess:
    """`(key, uint8 [B, H, W, C]) -> float32`, normalised, augmented if asked."""
    mean, std = tuple(mean), tuple(std)

    def preprocess(key, images):
        if augment:
            images = crop_and_flip(key, images, padding=padding)
        return normalise(images, mean, std)

    return preprocess


def make_preprocessing(
    mean: Sequence[float], std: Sequence[float], shape: Sequence[int], *, augment: bool
) -> Preprocessing:
    """How images [H, W, C] are prepared for a run, in evaluation and in training."""
    # CIFAR's four pixels around 32, to scale.
    padding = max(1, min(shape[:2]) // 8)
    return Preprocessing(
        make_preprocess(mean, std),
        make_preprocess(mean, std, augment=augment, padding=padding),
    )
