"""Rules for the primitives of `fuprune.kernels`: channels move inside the kernels.

See `arithmetic` for what a rule is. Every operand has an axis of independent problems
in front; a network that is traced has one problem there.
"""

from fuprune.kernels.normalisation import Stream
from fuprune.surgery.arithmetic import (
    Result,
    Rule,
    dies_with,
    found_layer,
    zero_elsewhere,
)
from fuprune.surgery.held import Held, intersection, normal, onto, union

CHANNELS = 4  # the axis of the channels in maps [G, N, H, W, C]


def convolution(eqn, operands, notes) -> Result:
    """A convolution of maps with kernels [G, KH, KW, I, O]."""
    image = zero_elsewhere(operands[0], (CHANNELS,))
    kernel = zero_elsewhere(operands[1], (3, 4))
    read = intersection(image.kept[CHANNELS], kernel.kept[3])
    written = kernel.kept[4]
    laid = onto(kernel, (None,) * 3 + (read, written))
    data = eqn.primitive.bind(onto(image, (None,) * 4 + (read,)), laid, **eqn.params)
    for pair, origin in kernel.origins.items():
        if origin.axis == 3:
            notes.read(pair, read)
    result = _map(eqn, data, written, 0)
    if len(data) > 1:
        return [result]
    work = 2 * data.size * (laid.size // laid.shape[-1])
    one = Held(data[0], result.shape[1:], result.kept[1:], result.rest)
    source, weights = operands
    found = found_layer(
        notes, "convolution", source, weights, 4, one, CHANNELS - 1, work
    )
    return [result._replace(layer=found.layer)]


def batch_norm(eqn, operands, notes) -> Result:
    """A norm in training, with the residual and the ReLU: the stream says what goes.

    A dead channel of the inputs, whose scale and bias are dead as well, is no place of
    the result unless the residual has it.
    """
    stream, channels = eqn.params["stream"], operands[0].shape[CHANNELS]
    everything = tuple(range(channels))
    if stream.width != channels or stream.places != everything:
        return "it moves channels already"
    maps = [
        zero_elsewhere(operands[i], (CHANNELS,)) for i in (0, *range(4, len(operands)))
    ]
    own, *residual = [h.kept[CHANNELS] for h in maps]
    parameters = operands[1:3]
    if own is not None and not all(dies_with(h, 1, own, notes) for h in parameters):
        return "its scale or bias does not die with its channels"
    for h in parameters:
        for pair, origin in h.origins.items():
            if origin.axis == 1:
                (notes.read if own is None else notes.follow)(pair, own)
    written = union(own, residual[0]) if residual else own
    places = everything if written is None else tuple(written.tolist())
    at = {channel: place for place, channel in enumerate(places)}

    def placed(kept):
        return tuple(at[c] for c in (everything if kept is None else kept.tolist()))

    arrays = [onto(h, h.kept) for h in maps]
    arrays[1:1] = [onto(h, (None, own)) for h in parameters] + [
        onto(operands[3], (None, None))
    ]
    moved = Stream(placed(own), placed(residual[0]) if residual else (), len(places))
    output, mean, variance = eqn.primitive.bind(
        *arrays, **{**eqn.params, "stream": moved}
    )
    moments = [
        Held(data, (data.shape[0], channels), (None, own), data.dtype.type(0))
        for data in (mean, variance)
    ]
    return [_map(eqn, output, written, 0), *moments]


def _map(eqn, data, kept, rest) -> Held:
    shape = tuple(eqn.outvars[0].aval.shape)
    rest = rest if rest is None else data.dtype.type(rest)
    return Held(data, shape, normal((None,) * CHANNELS + (kept,), shape), rest)


RULES: dict[str, Rule] = {
    "fuprune_conv_forward": convolution,
    "fuprune_batch_norm_forward": batch_norm,
}
