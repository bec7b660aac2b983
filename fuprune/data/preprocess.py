"""From stored uint8 images to what a model sees, as functions of a key and a batch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.data.augment import crop_and_flip, normalise

Preprocess = Callable[[Any, jax.Array], jax.Array]  # (key, uint8) -> float


class Preprocessing(NamedTuple):
    """What images go through, in each of the two uses of a model."""

    evaluation: Preprocess  # (key, uint8 images) -> what the model sees
    training: Preprocess  # the same with augmentation, if it is on


def to_float(key, images):
    """Images on the 0..1 scale, no augmentation; `key` is not used."""
    del key
    return images.astype(jnp.float32) / 255.0


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
