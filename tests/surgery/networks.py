"""Networks that people bring, written as their owners write them, and small.

None is of the zoo, and none knows of surgery. `NETWORKS` maps names to `Case`s.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fuprune.models.adapt import adapt

CLASSES = 5
INPUT_SHAPE = (16, 16, 3)


class Case(NamedTuple):
    """A network and how it is to be cut."""

    make: Callable[[], Any]  # a Linen or NNX module
    dense: bool = False  # whether dense layers are cut as well
    whole: int = 0  # primitives that may run on whole operands
    share: float = 0.62  # of the parameters that may be left at 60% of the channels
    shallow: Callable[[], Any] | None = None  # with fewer layers of each kind


class ProjectionBlock(nn.Module):
    """A residual block with a 1x1 projection where the shape changes."""

    width: int
    stride: int = 1

    @nn.compact
    def __call__(self, x, train: bool):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        shortcut = x
        strides = (self.stride, self.stride)
        y = nn.Conv(self.width, (3, 3), strides, use_bias=False)(x)
        y = nn.relu(norm()(y))
        y = nn.Conv(self.width, (3, 3), use_bias=False)(y)
        y = norm()(y)
        if x.shape != y.shape:
            shortcut = norm()(nn.Conv(self.width, (1, 1), strides, use_bias=False)(x))
        return nn.relu(y + shortcut)


class ProjectionResNet(nn.Module):
    """Three blocks, of which two project; or as many as there are widths."""

    widths: tuple[int, ...] = (8, 12, 16)

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(8, (3, 3), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        for i, width in enumerate(self.widths):
            x = ProjectionBlock(width, 2 if i else 1)(x, train)
        return nn.Dense(CLASSES)(jnp.mean(x, axis=(1, 2)))


class DenseNet(nn.Module):
    """Two dense blocks of concatenated maps with a transition, norms before."""

    layers: int = 3  # per block

    @nn.compact
    def __call__(self, x, train: bool = False):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.Conv(8, (3, 3), use_bias=False)(x)
        for block in range(2):
            for _ in range(self.layers):
                y = nn.relu(norm()(x))
                y = nn.Conv(12, (1, 1), use_bias=False)(y)
                y = nn.relu(norm()(y))
                y = nn.Conv(6, (3, 3), use_bias=False)(y)
                x = jnp.concatenate([x, y], axis=-1)
            if block == 0:
                x = nn.Conv(10, (1, 1), use_bias=False)(nn.relu(norm()(x)))
                x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.relu(norm()(x))
        return nn.Dense(CLASSES)(jnp.mean(x, axis=(1, 2)))


class InvertedResidual(nn.Module):
    """MobileNetV2's block, with squeeze-and-excitation and swish."""

    width: int
    stride: int = 1
    expansion: int = 3

    @nn.compact
    def __call__(self, x, train: bool):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        hidden = self.expansion * x.shape[-1]
        y = nn.Conv(hidden, (1, 1), use_bias=False)(x)
        y = nn.swish(norm()(y))
        y = nn.Conv(
            hidden,
            (3, 3),
            (self.stride, self.stride),
            feature_group_count=hidden,
            use_bias=False,
        )(y)
        y = nn.swish(norm()(y))
        gate = jnp.mean(y, axis=(1, 2), keepdims=True)
        gate = nn.swish(nn.Conv(4, (1, 1))(gate))
        gate = nn.sigmoid(nn.Conv(hidden, (1, 1))(gate))
        y = norm()(nn.Conv(self.width, (1, 1), use_bias=False)(y * gate))
        return x + y if x.shape == y.shape else y


class MobileNet(nn.Module):
    """A stem, inverted residuals, and a 1x1 convolution before the head."""

    blocks: tuple[tuple[int, int], ...] = ((8, 1), (12, 2), (12, 1))  # width, stride

    @nn.compact
    def __call__(self, x, train: bool = False):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.swish(norm()(nn.Conv(8, (3, 3), (2, 2), use_bias=False)(x)))
        for width, stride in self.blocks:
            x = InvertedResidual(width, stride)(x, train)
        x = nn.swish(norm()(nn.Conv(24, (1, 1), use_bias=False)(x)))
        return nn.Dense(CLASSES)(jnp.mean(x, axis=(1, 2)))


class ConvNeXt(nn.Module):
    """Depthwise 7x7, layer norm, two dense layers, layer scale; no train argument."""

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Conv(8, (2, 2), (2, 2))(x))
        for width in (8, 12):
            if x.shape[-1] != width:
                x = nn.Conv(width, (2, 2), (2, 2))(nn.LayerNorm()(x))
            y = nn.Conv(width, (7, 7), feature_group_count=width)(x)
            y = nn.Dense(4 * width)(nn.LayerNorm()(y))
            y = nn.Dense(width)(nn.gelu(y))
            scale = self.param(
                f"scale_{width}", nn.initializers.constant(0.5), (width,)
            )
            x = x + scale * y
        return nn.Dense(CLASSES)(nn.LayerNorm()(jnp.mean(x, axis=(1, 2))))


class GroupNormNet(nn.Module):
    """Group norms, a grouped convolution, and max pooling."""

    @nn.compact
    def __call__(self, x, training: bool = False):
        del training
        x = nn.relu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        y = nn.relu(nn.GroupNorm(4)(nn.Conv(16, (3, 3), feature_group_count=4)(x)))
        x = x + nn.GroupNorm(2)(nn.Conv(16, (3, 3), use_bias=False)(y))
        x = nn.avg_pool(nn.leaky_relu(x), (2, 2), (2, 2))
        return nn.Dense(CLASSES)(x.reshape(x.shape[0], -1))


class ViT(nn.Module):
    """Patches, a class token, blocks of attention and hidden layers, dropout."""

    width: int = 12
    blocks: int = 2

    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        x = nn.Conv(self.width, (4, 4), (4, 4))(x)
        x = x.reshape(x.shape[0], -1, self.width)
        token = self.param("token", nn.initializers.normal(), (1, 1, self.width))
        token = jnp.broadcast_to(token, (x.shape[0], 1, self.width))
        x = jnp.concatenate([token, x], axis=1)
        shape = (1, x.shape[1], self.width)
        x = x + self.param("positions", nn.initializers.normal(0.1), shape)
        for _ in range(self.blocks):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(2)(y, y)
            y = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            y = nn.Dropout(0.1, deterministic=deterministic)(y)
            x = x + nn.Dense(self.width)(y)
        return nn.Dense(CLASSES)(nn.LayerNorm()(x)[:, 0])


class NNXNet(nnx.Module):
    """An NNX network with a residual block, batch norm and dropout."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.blocks = nnx.List(
            [nnx.Conv(8, 8, (3, 3), use_bias=False, rngs=rngs) for _ in range(2)]
        )
        self.norms = nnx.List([nnx.BatchNorm(8, rngs=rngs) for _ in range(2)])
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = nnx.relu(x + norm(conv(x)))
        return self.head(self.dropout(jnp.mean(x, axis=(1, 2))))


NETWORKS = {
    "projection_resnet": Case(
        ProjectionResNet, shallow=partial(ProjectionResNet, (8, 12))
    ),
    "densenet": Case(DenseNet, shallow=partial(DenseNet, 1)),
    "mobilenet": Case(MobileNet, shallow=partial(MobileNet, ((8, 1), (12, 2)))),
    "convnext": Case(ConvNeXt, dense=True),
    "group_norm": Case(GroupNormNet, whole=6),
    # Attention and the stream stay whole: only patches and hidden units go.
    "vit": Case(ViT, dense=True, share=0.75, shallow=partial(ViT, blocks=1)),
    "nnx": Case(lambda: NNXNet(nnx.Rngs(0))),
}


@cache  # those who use one share what is compiled
def adapted(name: str, shallow: bool = False) -> Any:
    """A network of the table, or its shallow form if it has one."""
    case = NETWORKS[name]
    made = (case.shallow or case.make)() if shallow else case.make()
    # Of an NNX module the class, which can be initialised afresh.
    return adapt(type(made) if isinstance(made, nnx.Module) else made)


def variables_of(network: Any, shape=INPUT_SHAPE, seed: int = 0) -> Any:
    """Variables of an adapted network, of which none is zero: norms that do something.

    Args:
      network: adapted.
      shape: (H, W, C) of an image.
      seed: of the numbers.
    """
    images = jnp.zeros((1, *shape))
    shapes = jax.eval_shape(lambda key: network.init(key, images), jax.random.key(0))
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        name = str(path[-1])
        noise = generator.normal(size=leaf.shape).astype(np.float32)
        if "kernel" in name:
            return noise * np.float32((1.5 * leaf.shape[-1] / leaf.size) ** 0.5)
        if "var" in name or "scale" in name:
            return 1 + np.float32(0.3) * np.tanh(noise)
        return np.float32(0.3) * noise

    drawn = jax.tree_util.tree_map_with_path(draw, shapes)
    return jax.tree.map(jnp.asarray, drawn)


def bring(name):
    """A network, adapted, its variables, and a few images."""
    network = adapted(name)
    images = np.random.default_rng(1).normal(size=(4, *INPUT_SHAPE))
    return network, variables_of(network), jnp.asarray(images, jnp.float32)


class Small(nn.Module):
    """A convolution, its norm, another, and a head that is a convolution too."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(6, (3, 3), name="first")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.relu(nn.Conv(4, (3, 3), name="second")(x))
        return jnp.mean(nn.Conv(5, (1, 1), name="classifier")(x), axis=(1, 2))


@cache
def small_network():
    network = adapt(Small())
    return network, variables_of(network, (8, 8, 3))


IMAGES = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype(np.float32)
