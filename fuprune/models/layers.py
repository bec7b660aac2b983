"""The layers every network of the zoo is made of, channels last.

A convolution and its norm form one prunable layer (Eq. 3 of the paper).
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError
from fuprune.kernels import convolution, normalisation

BATCH_NORM_MOMENTUM = 0.9
NORM_EPSILON = 1e-5
NUM_GROUPS = 8
NORMS = ("batch", "group")

# Kaiming's initialisation for ReLU networks, keeping the gradient's variance.
he_normal_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Norm(nn.Module):
    """Batch or group normalisation in which a dead channel stays dead.

    A channel whose scale and bias are both exactly zero emits zero and passes no
    gradient, so no optimizer can revive it: momentum, weight decay and Adam all see
    zeros. Statistics are float32 at least, whatever the type of the input.
    """

    kind: str  # "batch" or "group"
    implementation: str = "xla"  # or "onednn", for a kernel where there is one

    @nn.compact
    def __call__(self, inputs, *, train: bool, mask=None, residual=None, relu=False):
        """Normalises [B, H, W, C], then adds a residual and applies ReLU if asked to.

        In training the statistics come from this batch, and are recorded. The mask [B]
        is nonzero for real examples.
        """
        shape = inputs.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        if self.kind == "group":
            outputs = _group_norm(inputs, scale, bias)
            return normalisation.combine(outputs, residual, relu)
        running = (
            self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32),
            self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32),
        )
        moments = tuple(moment.value for moment in running)
        outputs, recorded = _batch_norm(
            inputs, scale, bias, moments, mask, residual,
            train=train, relu=relu, implementation=self.implementation,
        )  # fmt: skip
        recording = train and self.is_mutable_collection("batch_stats")
        if recording and not self.is_initializing():
            for moment, value in zip(running, recorded, strict=True):
                moment.value = value
        return outputs


def _group_norm(inputs, scale, bias):
    """The moments of a group are those of its live channels alone.

    So a network with the dead ones removed computes the same function.
    """
    scale, bias, alive = _without_dead_channels(scale, bias)
    channels = inputs.shape[-1]
    group = np.arange(channels) // (channels // NUM_GROUPS)
    member = jnp.asarray(np.eye(NUM_GROUPS, dtype=np.float32)[group])  # [C, G]
    # With an axis of size one in front, as what is multiplied with a scale has.
    live = member[None] * alive[None, :, None]
    live = (live / jnp.maximum(jnp.sum(live, axis=1, keepdims=True), 1.0))[0]
    values = normalisation.at_least_float32(inputs)
    # Exact products: a lower matmul precision would make it another function.
    dot = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)
    mean = dot(jnp.mean(values, axis=(1, 2)), live)  # [B, G]
    square = dot(jnp.mean(values * values, axis=(1, 2)), live)
    variance = jnp.maximum(square - mean * mean, 0.0)
    mean, variance = (
        dot(moment, member.T)[:, None, None, :] for moment in (mean, variance)
    )
    factor = scale * jax.lax.rsqrt(variance + NORM_EPSILON)
    return ((values - mean) * factor + bias).astype(inputs.dtype)


# Traced once for all layers of the same shape: a deep network has dozens of them, and
# tracing and lowering each anew is most of what a second start spends.
@functools.partial(jax.jit, static_argnames=("train", "relu", "implementation"))
def _batch_norm(
    inputs, scale, bias, running, mask, residual, *, train: bool, relu: bool,
    implementation: str,
):  # fmt: skip
    """[B, H, W, C] and the running moments (mean, variance) after this batch."""
    scale, bias, _ = _without_dead_channels(scale, bias)
    if not train:
        mean, variance = running
        outputs = normalisation.normalise(
            inputs, mean, variance, scale, bias, NORM_EPSILON
        )
        return normalisation.combine(outputs, residual, relu), running
    # Padding that comes alone is normalised by itself, so that it stays finite however
    # deep the network, and is not recorded.
    some = True if mask is None else jnp.any(mask != 0)
    real = mask if mask is None else jnp.where(some, mask, 1)
    outputs, *moments = normalisation.implementation(implementation)(
        inputs, scale, bias, real, residual, relu=relu, epsilon=NORM_EPSILON
    )
    return outputs, tuple(
        _moving_average(old, new, some)
        for old, new in zip(running, moments, strict=True)
    )


def _moving_average(running, moment, some):
    recorded = BATCH_NORM_MOMENTUM * running + (1 - BATCH_NORM_MOMENTUM) * moment
    # A moment of float64 data must not widen what a loop over batches carries.
    recorded = recorded.astype(running.dtype)
    # A batch of nothing but padding has no statistics to record.
    return recorded if some is True else jnp.where(some, recorded, running)


def _without_dead_channels(scale, bias):
    """Scale and bias that pass no gradient to dead channels, and which are alive."""
    # Zero is exact here: only surgery writes it, and no optimiser comes back to it.
    alive = jax.lax.stop_gradient((scale != 0) | (bias != 0))
    return jnp.where(alive, scale, 0.0), jnp.where(alive, bias, 0.0), alive


class ConvNorm(nn.Module):
    """A 3x3 convolution, named "conv", and the norm after it, named "norm"."""

    width: int  # channels written
    norm: str = "batch"  # or "group"
    strides: int = 1  # in both directions
    conv: str = "xla"  # or "onednn": what convolves and normalises
    dtype: Any = jnp.float32  # that it computes in; parameters stay float32

    @nn.compact
    def __call__(self, inputs, *, train: bool, **norm_options):
        """Maps [B, H, W, Cin] to [B, H', W', C]; the options are those of `Norm`."""
        # One pixel of padding on every side, also where the stride is 2, keeps the
        # output aligned with the shortcut's x[:, ::2, ::2].
        outputs = nn.Conv(
            self.width,
            kernel_size=(3, 3),
            strides=self.strides,
            padding=1,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=he_normal_fan_out,
            conv_general_dilated=convolution.implementation(self.conv),
            promote_dtype=convolution.promotion(self.conv),
            name="conv",
        )(inputs)
        norm = Norm(self.norm, self.conv, name="norm")
        return norm(outputs, train=train, **norm_options)


class ConvolutionalNetwork(nn.Module):
    """What the networks of the zoo have in common."""

    depth: int  # layers with weights
    num_classes: int  # columns of the logits
    input_shape: tuple[int, int, int] = (32, 32, 3)  # (H, W, C) of one image
    norm: str = "batch"  # or "group"
    conv: str = "xla"  # or "onednn": what convolves and normalises
    dtype: Any = jnp.float32  # that the convolutions compute in

    @nn.nowrap
    def layer(self, name: str, width: int, strides: int = 1) -> ConvNorm:
        """Returns a convolution with its norm, of this network's kinds."""
        return ConvNorm(width, self.norm, strides, self.conv, self.dtype, name=name)

    @nn.nowrap
    def typed(self, images):
        """The images in the type the network computes in, if their shape is right."""
        if images.shape[1:] != tuple(self.input_shape):
            raise InputError(
                f"images have shape {images.shape[1:]}, the model was made for"
                f" {tuple(self.input_shape)}; create it with that input_shape."
            )
        return images.astype(self.dtype)


def loops_are_fast(network) -> bool:
    """Whether convolutions inside `lax.map` and its kin run at full speed on CPU.

    True of oneDNN's, while XLA's own are many times slower there. `network` is any, or
    the name of its convolutions.
    """
    while not isinstance(network, str):
        # Its own, or those of the network that it adapts, cuts or repeats.
        parts = ("conv", "base", "member", "module")
        found = [getattr(network, name, None) for name in parts]
        network = next((part for part in found if part is not None), "xla")
    return network == "onednn"
