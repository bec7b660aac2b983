"""From stored uint8 images to what a model sees, as functions of a key and a batch."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fuprune.data.augment import crop_and_flip, normalise


def to_float(key, images):
    """Images on the 0..1 scale, no augmentation; `key` is not used."""
    del key
    return images.astype(jnp.float32) / 255.0


def crop_padding(shape: Sequence[int]) -> int:
    """Pixels around an image [H, W, ...] for crops: CIFAR's four in 32, to scale."""
    return max(1, min(shape[:2]) // 8)


def make_preprocess(
    mean: Sequence[float], std: Sequence[float], *, augment: bool = False, padding=4
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """`(key, uint8 [B, H, W, C]) -> float32`, normalised, augmented if asked."""
    mean, std = tuple(mean), tuple(std)

    def preprocess(key, images):
        if augment:
            images = crop_and_flip(key, images, padding=padding)
        return normalise(images, mean, std)

    return preprocess
