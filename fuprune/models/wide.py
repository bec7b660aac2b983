"""Several clients' networks as one wide network, for hardware whose lanes would idle.

A TPU computes on 128 lanes, and one client's 16 channels or 32 images fill few of them.
Here clients' channels stand side by side, [B, H, W, N * C], each convolution has a
block-diagonal kernel, and BatchNorm, being by channel, is by client as well: what is
multiplied by zero blocks runs on lanes that would have been empty. Where a layer is
wider, fewer clients stand together.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.kernels.normalisation import moments, normalise
from fuprune.models.layers import (
    BATCH_NORM_MOMENTUM,
    NORM_EPSILON,
    convolution,
    place,
    without_dead_channels,
)
from fuprune.models.resnet import ResNet, shifted

LANES = 128


def clients_together(model) -> int:
    """How many clients fill the lanes in the narrowest stage; 1 if none can merge.

    Only ResNets with BatchNorm and XLA's convolutions merge. A VGG's layers fill the
    lanes by themselves.
    """
    if not isinstance(model, ResNet) or model.norm != "batch" or model.conv != "xla":
        return 1
    first = [w for layer, w in model.wiring().items() if layer.startswith("stage1")]
    return max(1, LANES // max(len(wiring.outputs) for wiring in first))


def apply_together(model: ResNet, variables, images, mask):
    """The training pass of N clients, each with its own weights and images.

    Equals `vmap` of `model.apply(..., train=True, mutable=["batch_stats"])`.

    Args:
      model: one that `clients_together` says can merge.
      variables: {"params", "batch_stats"}, each leaf with a leading axis [N].
      images: [N, B, H, W, C] float.
      mask: [N, B], nonzero for real examples.

    Returns:
      Logits [N, B, num_classes] float32, and the new batch_stats.
    """
    params, wires = variables["params"], model.wiring()
    batch, (height, width, channels) = images.shape[1], model.input_shape
    # Padding that comes alone is normalised by itself, as in `layers.Norm`.
    some = jnp.any(mask != 0, axis=1)
    real = jnp.where(some[:, None], mask != 0, True)
    moments = {layer: [] for layer in wires if layer != "head"}

    def layer_of(layer, values, here):
        own = jax.tree.map(lambda x: x[here], params[layer])
        values = _convolve(model, layer, values, own["conv"]["kernel"])
        values, found = _normalise(values, own["norm"], real[here])
        moments[layer].append(found)
        return values

    def advance(values, held, block, here):
        """One block on the stream of the clients `here`; held: ids of its channels."""
        first, second, reader = block
        after, written = wires[reader].inputs, wires[second].outputs
        branch = nn.relu(layer_of(first, values, here))
        if model.strides(first) == 2:
            values = values[:, ::2, ::2]
            held = shifted(held, wires[second].width)
        number = here.stop - here.start
        values = _place(values, held, after, number)
        branch = layer_of(second, branch, here)
        return nn.relu(values + _place(branch, written, after, number))

    everyone = slice(0, images.shape[0])
    merged = images.astype(model.dtype).transpose(1, 2, 3, 0, 4)
    merged = merged.reshape(batch, height, width, everyone.stop * channels)
    parts = [(everyone, nn.relu(layer_of("stem", merged, everyone)))]
    held = wires["stem"].outputs
    for block in model.blocks():
        most = max(1, LANES // len(wires[block[0]].outputs))
        parts = [piece for part in parts for piece in _split(*part, most)]
        parts = [(here, advance(x, held, block, here)) for here, x in parts]
        held = wires[block[2]].inputs
    features = [
        jnp.mean(x, axis=(1, 2), dtype=jnp.float32).reshape(batch, -1, len(held))
        for _, x in parts
    ]
    features = jnp.concatenate(features, axis=1)
    head = params["head"]
    logits = jnp.einsum("bnc,ncu->nbu", features, head["kernel"])
    stats = {
        layer: {"norm": _recorded(variables["batch_stats"][layer]["norm"], new, some)}
        for layer, new in moments.items()
    }
    return logits + head["bias"][:, None], stats


def _split(here, values, most):
    """Clients `here`, merged in `values`, as parts of at most `most` clients."""
    number = here.stop - here.start
    each = values.shape[-1] // number
    return [
        (
            slice(here.start + i, min(here.start + i + most, here.stop)),
            values[..., i * each : (i + most) * each],
        )
        for i in range(0, number, most)
    ]


def _convolve(model, layer, values, kernels):
    """[B, H, W, N * I] by [N, 3, 3, I, O] -> [B, H', W', N * O]."""
    number, height, width, inputs, outputs = kernels.shape
    column = kernels.astype(model.dtype).transpose(1, 2, 0, 3, 4)
    column = column.reshape(height, width, number * inputs, outputs)
    # Tiled and masked: the gradient is then a masked sum, and no matrix product.
    own = np.kron(np.eye(number), np.ones((inputs, outputs))) > 0
    diagonal = jnp.where(own, jnp.tile(column, number), 0)
    return convolution(model.conv)(
        values,
        diagonal,
        (model.strides(layer),) * 2,
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _normalise(inputs, norm, real):
    """`layers.Norm` on merged channels; norm's leaves [N, C], real [N, B] bool."""
    number, channels = norm["scale"].shape
    scale, bias, _ = without_dead_channels(norm["scale"], norm["bias"])
    scale, bias = scale.reshape(-1), bias.reshape(-1)
    chosen = jnp.repeat(real.T, channels, axis=1)  # [B, N * C]
    mean, variance = moments(inputs, chosen)
    outputs = normalise(inputs, mean, variance, scale, bias, NORM_EPSILON)
    shape = (number, channels)
    return outputs, {"mean": mean.reshape(shape), "var": variance.reshape(shape)}


def _recorded(running, found, some):
    """Running moments [N, C] after a batch; those of clients without one stay."""
    found = jax.tree.map(lambda *x: jnp.concatenate(x), *found)
    keep = BATCH_NORM_MOMENTUM
    return jax.tree.map(
        lambda old, new: jnp.where(some[:, None], keep * old + (1 - keep) * new, old),
        running,
        found,
    )


def _place(values, source, target, number):
    """`layers.place` for each of `number` clients: [..., number * len(source)]."""
    if source == target:
        return values
    span = max(target) + 1
    merged = [
        tuple(client * span + c for client in range(number) for c in ids)
        for ids in (source, target)
    ]
    return place(values, *merged)
