"""A network that compiles in a second, with the zoo's layers and interface."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.dataset import Dataset
from fuprune.models.layers import ConvNorm


class TinyNet(nn.Module):
    """Two convolutions with norms, or one, mean over space, one dense layer."""

    num_classes: int = 4
    width: int = 6
    norm: str = "batch"
    conv: str = "xla"
    dtype: Any = jnp.float32
    deep: bool = True  # a second convolution; half of what there is to compile

    def setup(self):
        """Build the layers."""
        self.conv1 = ConvNorm(self.width, self.norm)
        if self.deep:
            self.conv2 = ConvNorm(self.width, self.norm)
        self.head = nn.Dense(self.num_classes)

    def __call__(self, images, train=False, mask=None):
        """[B, H, W, 1] -> [B, num_classes]."""
        return self.head(self.features(images, train, mask))

    def features(self, images, train=False, mask=None):
        """[B, H, W, 1] -> [B, width]."""
        x = nn.relu(self.conv1(images, train=train, mask=mask))
        if self.deep:
            x = nn.relu(self.conv2(x, train=train, mask=mask))
        return jnp.mean(x, axis=(1, 2))


def tiny_variables(model=None, seed=0, size=6):
    """Initial variables of a `TinyNet`."""
    return _init(model or TinyNet(), jax.random.key(seed), size)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _init(model, key, size):
    return model.init(key, jnp.zeros((1, size, size, 1)))


def tiny_dataset(number=96, *, num_classes=4, size=6, seed=0) -> Dataset:
    """Noise images with a bright row whose place is the class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(number, dtype=np.int32) % num_classes
    images = generator.integers(0, 60, (number, size, size, 1), np.uint8)
    for i, label in enumerate(labels):
        images[i, label + 1] += 150
    return Dataset(images, labels)


def make_tiny(num_classes, input_shape):
    """A factory, for runs that name their network."""
    return TinyNet(num_classes, width=4, deep=False)
