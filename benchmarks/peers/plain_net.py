"""The networks without BatchNorm, as plain JAX functions: what FedJAX can hold.

Every convolution has a bias instead of a norm. The last convolution of a residual
branch starts at zero, so that training is stable without norms. JAX only: FedJAX's
environment imports this.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import workload


def init(key, net: str, size: int = 32):
    """Parameters: layer -> {"kernel", "bias"}."""
    del size
    params = {}
    if net == "vgg11":
        before = 3
        for name, width, _ in _vgg_layers():
            key, now = jax.random.split(key)
            params[name] = _convolution(now, before, width)
            before = width
        key, now = jax.random.split(key)
        params["hidden"] = _dense(now, before, workload.VGG_HIDDEN)
        before = workload.VGG_HIDDEN
    else:
        widths = workload.STAGE_WIDTHS["resnet"]
        key, now = jax.random.split(key)
        params["stem"], before = _convolution(now, 3, widths[0]), widths[0]
        for name, width, _ in _resnet_blocks(net):
            key, first, second = jax.random.split(key, 3)
            params[f"{name}_conv1"] = _convolution(first, before, width)
            last = _convolution(second, width, width)
            params[f"{name}_conv2"] = jax.tree.map(jnp.zeros_like, last)
            before = width
    params["head"] = _dense(key, before, workload.NUM_CLASSES)
    return params


def apply(params, images, net: str, convolve=jax.lax.conv_general_dilated):
    """Images [B, S, S, 3] float -> logits [B, U]."""

    def conv(name, x, stride=1):
        layer = params[name]
        y = convolve(
            x,
            layer["kernel"],
            (stride, stride),
            ((1, 1), (1, 1)),
            dimension_numbers=jax.lax.conv_dimension_numbers(
                x.shape, layer["kernel"].shape, ("NHWC", "HWIO", "NHWC")
            ),
        )
        return y + layer["bias"]

    def dense(name, x):
        return x @ params[name]["kernel"] + params[name]["bias"]

    x = images
    if net == "vgg11":
        for name, _, pool in _vgg_layers():
            x = jax.nn.relu(conv(name, x))
            if pool:
                x = _pool(x)
        x = jax.nn.relu(dense("hidden", x.reshape(x.shape[0], -1)))
        return dense("head", x)
    x = jax.nn.relu(conv("stem", x))
    for name, width, stride in _resnet_blocks(net):
        y = jax.nn.relu(conv(f"{name}_conv1", x, stride))
        y = conv(f"{name}_conv2", y)
        if stride == 2:
            side = width // 4
            x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (side, side)))
        x = jax.nn.relu(x + y)
    return dense("head", jnp.mean(x, axis=(1, 2)))


class PlainNet(NamedTuple):
    """The same with the call signature of fuprune's models."""

    net: str
    convolve: Callable
    conv: str  # its name, from which fuprune sees how fast loops are

    def apply(self, variables, images, train=False, mask=None, mutable=()):
        """Logits, and the collections that changed: none."""
        del train, mask
        logits = apply(variables["params"], images, self.net, self.convolve)
        return (logits, {}) if mutable else logits


def _pool(x):
    """Maximum over 2x2 windows, by slices: XLA's windowed one has a slow gradient."""
    for axis in (1, 2):
        even, odd = (
            jax.lax.slice_in_dim(x, start, x.shape[axis], stride=2, axis=axis)
            for start in (0, 1)
        )
        x = jnp.where(even >= odd, even, odd)
    return x


def _convolution(key, inputs, outputs):
    deviation = math.sqrt(2.0 / (9 * outputs))
    kernel = deviation * jax.random.normal(key, (3, 3, inputs, outputs))
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def _dense(key, inputs, outputs):
    kernel = jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs)
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def _resnet_blocks(net):
    return [
        (f"stage{stage}_block{block}", width, 2 if stage and not block else 1)
        for stage, width in enumerate(workload.STAGE_WIDTHS["resnet"])
        for block in range(workload.blocks_per_stage(net))
    ]


def _vgg_layers():
    layers = []
    for repeats, width in zip(
        workload.VGG11_DEPTHS, workload.STAGE_WIDTHS["vgg"], strict=True
    ):
        for i in range(repeats):
            layers.append((f"conv{len(layers) + 1}", width, i == repeats - 1))
    return layers
