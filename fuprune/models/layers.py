"""The layers every network of the zoo is made of, channels last.

A convolution and its norm form one prunable layer (Eq. 3 of the paper, with the norm
that follows it). Which channels a layer reads and writes is static data, a `Wiring` of
original channel ids, so that a network with channels removed is the same code with
shorter wires.
"""

import functools
from typing import Any, NamedTuple

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
DENSE_LAYERS = ("hidden", "head")  # of the zoo; all others are convolutions

# Kaiming's initialisation for ReLU networks, keeping the gradient's variance.
he_normal_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Wiring(NamedTuple):
    """The channels one layer reads and writes, as ids in the uncut network."""

    inputs: tuple[int, ...]  # sorted ids of the channels of the tensor it reads
    outputs: tuple[int, ...]  # sorted ids of the channels it writes
    width: int  # channels it writes in the uncut network


def wire(channels, layer: str, inputs: tuple[int, ...], width: int) -> Wiring:
    """Returns the wiring of a layer that reads `inputs` and, uncut, writes `width`.

    `channels` are those of `ConvolutionalNetwork`.
    """
    outputs = dict(channels).get(layer, tuple(range(width)))
    increasing = all(a < b for a, b in zip(outputs, outputs[1:], strict=False))
    if not outputs or not increasing or outputs[0] < 0 or outputs[-1] >= width:
        raise InputError(
            f"channels of layer {layer!r} are {outputs}, but must be one or more"
            f" increasing ids below {width}; take them from a model that compact"
            " returned."
        )
    return Wiring(inputs, outputs, width)


class Norm(nn.Module):
    """Batch or group normalisation in which a dead channel stays dead.

    A channel whose scale and bias are both exactly zero emits zero and passes no
    gradient, so no optimizer can revive it: momentum, weight decay and Adam all see
    zeros. Statistics are float32 at least, whatever the type of the input.

    Attributes:
      kind: "batch" or "group".
      outputs: ids of the channels present, [C].
      width: channels of the uncut layer, which fixes the groups of "group".
      implementation: "xla", or "onednn" for a kernel where there is one.
    """

    kind: str
    outputs: tuple[int, ...]
    width: int
    implementation: str = "xla"

    @nn.compact
    def __call__(
        self, inputs, *, train: bool, mask=None, residual=None, relu=False,
        held=None, onto=None,
    ):  # fmt: skip
        """Normalises, then adds a residual and applies ReLU if asked to.

        Args:
          inputs: [B, H, W, C].
          train: whether statistics come from this batch and are recorded.
          mask: [B], nonzero for real examples, or None if all are.
          residual: [B, H, W, R], or None.
          relu: whether a ReLU comes last.
          held: ids, sorted, of the R channels of the residual, by default those of the
            result.
          onto: ids, sorted, of the D channels of the result, by default `outputs`; what
            the inputs or the residual lack counts as zero.

        Returns:
          [B, H, W, D] of the input's type.
        """
        onto = self.outputs if onto is None else onto
        held = onto if held is None else held
        # Ids as places in the result: layers of equal places are traced once.
        stream = normalisation.Stream(
            places(self.outputs, onto), places(held, onto), len(onto)
        )
        shape = (len(self.outputs),)
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        if self.kind == "group":
            scale, bias, alive = without_dead_channels(scale, bias)
            moments = self._group_moments(inputs, alive)
            outputs = normalisation.normalise(
                inputs, *moments, scale, bias, NORM_EPSILON
            )
            return normalisation.combine(outputs, residual, relu, stream)
        running = (
            self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32),
            self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32),
        )
        outputs, recorded = _batch_norm(
            inputs,
            scale,
            bias,
            tuple(moment.value for moment in running),
            mask,
            residual,
            train=train,
            relu=relu,
            stream=stream,
            implementation=self.implementation,
        )
        recording = train and self.is_mutable_collection("batch_stats")
        if recording and not self.is_initializing():
            for moment, value in zip(running, recorded, strict=True):
                moment.value = value
        return outputs

    def _group_moments(self, inputs, alive):
        # Moments of a group are those of its live channels alone, so that a network
        # with the dead ones removed computes the same function.
        group = np.asarray(self.outputs) // (self.width // NUM_GROUPS)
        member = jnp.asarray(np.eye(NUM_GROUPS, dtype=np.float32)[group])  # [C, G]
        live = member * alive[:, None]
        values = normalisation.at_least_float32(inputs)
        channel_mean = jnp.mean(values, axis=(1, 2))  # [B, C]
        channel_square = jnp.mean(values * values, axis=(1, 2))
        live = live / jnp.maximum(jnp.sum(live, axis=0), 1.0)
        # Exact products: a lower matmul precision would make it another function.
        dot = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)
        mean = dot(channel_mean, live)  # [B, G]
        variance = jnp.maximum(dot(channel_square, live) - mean * mean, 0.0)
        return (
            dot(mean, member.T)[:, None, None, :],
            dot(variance, member.T)[:, None, None, :],
        )


# Traced once for all layers of the same shape: a deep network has dozens of them, and
# tracing and lowering each anew is most of what a second start spends.
@functools.partial(
    jax.jit, static_argnames=("train", "relu", "stream", "implementation")
)
def _batch_norm(
    inputs, scale, bias, running, mask, residual, *, train: bool, relu: bool,
    stream: normalisation.Stream, implementation: str,
):  # fmt: skip
    """`Norm` of kind "batch", as a function.

    `running` are moments (mean, variance), [C] each. Returns [B, H, W, D], and the
    running moments after this batch.
    """
    scale, bias, _ = without_dead_channels(scale, bias)
    if not train:
        mean, variance = running
        outputs = normalisation.normalise(
            inputs, mean, variance, scale, bias, NORM_EPSILON
        )
        return normalisation.combine(outputs, residual, relu, stream), running
    # Padding that comes alone is normalised by itself, so that it stays finite however
    # deep the network, and is not recorded.
    some = True if mask is None else jnp.any(mask != 0)
    real = mask if mask is None else jnp.where(some, mask, 1)
    outputs, *moments = normalisation.implementation(implementation)(
        inputs, scale, bias, real, residual, relu=relu, epsilon=NORM_EPSILON,
        stream=stream,
    )  # fmt: skip
    return outputs, tuple(
        moving_average(old, new, some)
        for old, new in zip(running, moments, strict=True)
    )


def places(ids: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Where channels are among those of `target`, which has them all; both sorted."""
    return tuple(np.searchsorted(target, ids).tolist())


def moving_average(running, moment, some):
    """BatchNorm's running moment after a batch; the old one where `some` is False.

    A batch of nothing but padding has no statistics to record.
    """
    recorded = BATCH_NORM_MOMENTUM * running + (1 - BATCH_NORM_MOMENTUM) * moment
    # A moment of float64 data must not widen what a loop over batches carries.
    recorded = recorded.astype(running.dtype)
    return recorded if some is True else jnp.where(some, recorded, running)


def without_dead_channels(scale, bias):
    """Scale and bias that pass no gradient to dead channels, and which are alive."""
    # Zero is exact here: only surgery writes it, and no optimiser comes back to it.
    alive = jax.lax.stop_gradient((scale != 0) | (bias != 0))
    return jnp.where(alive, scale, 0.0), jnp.where(alive, bias, 0.0), alive


class ConvNorm(nn.Module):
    """A 3x3 convolution, named "conv", and the norm after it, named "norm".

    Attributes:
      wiring: channels read and written.
      norm: "batch" or "group".
      strides: of the convolution, in both directions.
      conv: which implementation convolves and normalises, "xla" or "onednn".
      dtype: type the convolution computes in; parameters stay float32.
    """

    wiring: Wiring
    norm: str = "batch"
    strides: int = 1
    conv: str = "xla"
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs, *, train: bool, **norm_options):
        """Maps [B, H, W, Cin] to [B, H', W', D]; the options are those of `Norm`."""
        # One pixel of padding on every side, also where the stride is 2, keeps the
        # output aligned with the shortcut's x[:, ::2, ::2].
        outputs = nn.Conv(
            len(self.wiring.outputs),
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
        norm = Norm(
            self.norm, self.wiring.outputs, self.wiring.width, self.conv, name="norm"
        )
        return norm(outputs, train=train, **norm_options)


class ConvolutionalNetwork(nn.Module):
    """What the networks of the zoo have in common.

    Attributes:
      depth: layers with weights; which there are is the subclass's affair.
      num_classes: columns of the logits.
      input_shape: (H, W, C) of one image.
      norm: "batch" or "group".
      channels: `((layer, ids), ...)`, kept original channels of each cut layer.
      conv: implementation of the convolution, "xla" or "onednn".
      dtype: type the convolutions compute in.
    """

    depth: int
    num_classes: int
    input_shape: tuple[int, int, int] = (32, 32, 3)
    norm: str = "batch"
    channels: tuple[tuple[str, tuple[int, ...]], ...] = ()
    conv: str = "xla"
    dtype: Any = jnp.float32

    def setup(self):
        """Builds one submodule per layer, named as in `wiring`."""
        for layer, wiring in self.wiring().items():
            if layer in DENSE_LAYERS:
                module = nn.Dense(wiring.width)
            else:
                stride = self.strides(layer)
                module = ConvNorm(wiring, self.norm, stride, self.conv, self.dtype)
            setattr(self, layer, module)

    def __call__(self, images, train: bool = False, mask=None):
        """Maps normalised images [B, H, W, C] to float32 logits [B, num_classes].

        Args:
          images: [B, H, W, C] float.
          train: whether batch statistics are of this batch, and recorded.
          mask: [B], nonzero for real examples; padding enters no statistic.
        """
        return self.head(self.features(images, train, mask))

    @nn.nowrap
    def wiring(self) -> dict[str, Wiring]:
        """Returns the channels each layer reads and writes, in forward order."""
        raise NotImplementedError

    @nn.nowrap
    def strides(self, layer: str) -> int:
        """Returns the stride of a convolution."""
        del layer
        return 1

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
    if not isinstance(network, str):
        network = getattr(getattr(network, "module", network), "conv", "xla")
    return network == "onednn"
