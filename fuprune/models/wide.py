"""Several clients' networks as one wide network, for hardware whose lanes would idle.

A TPU computes on 128 lanes, and one client's 16 channels or 32 images fill few of them.
Here clients' channels stand side by side, [B, H, W, N * C], each convolution has a
block-diagonal kernel, and BatchNorm, being by channel, is by client as well: what is
multiplied by zero blocks runs on lanes that would have been empty. Where a layer is
wider, fewer clients stand together.
"""

import operator

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.kernels.convolution import implementation
from fuprune.kernels.normalisation import Stream, batch_norm_in_jax
from fuprune.models.layers import (
    NORM_EPSILON,
    moving_average,
    places,
    without_dead_channels,
)
from fuprune.models.resnet import ResNet

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
    moments = {layer: [] for layer in wires if layer != "head"}  # mean, variance
    readers = {first for first, _, _ in model.blocks()}  # of the residual stream

    def layer(name, parts, residual=None, held=(), onto=None):
        """One layer on `{(first client, last + 1): [B, H, W, N * C]}`."""
        outputs = wires[name].outputs
        onto = outputs if onto is None else onto
        if name in readers:  # the wider the layer, the fewer clients fill the lanes
            parts = _split(parts, max(1, LANES // len(outputs)))
        results = {}
        for (start, stop), values in parts.items():
            here, together = operator.itemgetter(slice(start, stop)), stop - start
            own = jax.tree.map(here, params[name])
            scale, bias, _ = without_dead_channels(**own["norm"])
            results[start, stop], *found = batch_norm_in_jax(
                _convolve(model, name, values, own["conv"]["kernel"]),
                scale.reshape(-1),
                bias.reshape(-1),
                jnp.repeat(here(real).T, len(outputs), axis=1),  # [B, N * C]
                None if residual is None else _part(residual, start, stop),
                relu=True,
                epsilon=NORM_EPSILON,
                stream=Stream(
                    _side_by_side(outputs, onto, together),
                    _side_by_side(held, onto, together),
                    together * len(onto),
                ),
            )
            moments[name].append(found)
        return results

    number = images.shape[0]
    # Clients before channels: a client's channels are neighbours.
    merged = images.astype(model.dtype).transpose(1, 2, 3, 0, 4)
    merged = merged.reshape(batch, height, width, number * channels)
    parts = model.forward({(0, number): merged}, layer)
    kept = len(wires["head"].inputs)
    features = [
        jnp.mean(x, axis=(1, 2), dtype=jnp.float32).reshape(batch, -1, kept)
        for x in parts.values()
    ]
    features = jnp.concatenate(features, axis=1)
    head = params["head"]
    logits = jnp.einsum("bnc,ncu->nbu", features, head["kernel"])
    stats = {
        layer: {"norm": _recorded(variables["batch_stats"][layer]["norm"], new, some)}
        for layer, new in moments.items()
    }
    return logits + head["bias"][:, None], stats


def _split(parts, most):
    """The parts, each cut into some of at most `most` clients."""
    return {
        (first, min(first + most, stop)): _part(parts, first, min(first + most, stop))
        for start, stop in parts
        for first in range(start, stop, most)
    }


def _part(parts, first, last):
    """The channels of the clients from `first` to `last - 1`, who stand in one part."""
    start, stop = next(span for span in parts if span[0] <= first < span[1])
    values = parts[start, stop]
    each = values.shape[-1] // (stop - start)
    return values[..., (first - start) * each : (last - start) * each]


def _convolve(model, layer, values, kernels):
    """[B, H, W, N * I] by [N, 3, 3, I, O] -> [B, H', W', N * O]."""
    number, height, width, inputs, outputs = kernels.shape
    column = kernels.astype(model.dtype).transpose(1, 2, 0, 3, 4)
    column = column.reshape(height, width, number * inputs, outputs)
    # Tiled and masked: the gradient is then a masked sum, and no matrix product.
    own = np.kron(np.eye(number), np.ones((inputs, outputs))) > 0
    diagonal = jnp.where(own, jnp.tile(column, number), 0)
    return implementation(model.conv)(
        values,
        diagonal,
        (model.strides(layer),) * 2,
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _recorded(running, found, some):
    """Running moments [N, C] after a batch; those of clients without one stay."""
    mean, variance = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    return jax.tree.map(
        lambda old, new: moving_average(old, new.reshape(old.shape), some[:, None]),
        running,
        {"mean": mean, "var": variance},
    )


def _side_by_side(source, target, number) -> tuple[int, ...]:
    """Where each client's channels, with ids `source`, go among those of `target`."""
    # Places of different clients must not meet: each has a range of its own.
    starts = np.arange(number)[:, None] * len(target)
    return tuple((starts + places(source, target)).ravel().tolist())
