"""Surgery on any network by tracing: its layers, what they give, and their cuts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.models.adapt import Variables, adapt, own_variables
from fuprune.surgery import trace
from fuprune.surgery.arrays import Path, PathCuts, PlannedCut
from fuprune.surgery.findings import Layer, SurgeryError
from fuprune.surgery.held import in_full, onto, same
from fuprune.surgery.plan import PrunePlan, check_kept
from fuprune.surgery.slim import PinnedNetwork, SlimNetwork
from fuprune.surgery.trace import Program

# Sides of images to try, for a network that does not say what it takes.
SIDES = (32, 28, 8, 16, 64, 224, 96, 48, 24, 12, 20, 40, 80, 128, 160, 192, 256, 299)


def trace_layers(
    model: Any, variables: Variables, example: Any = None, *, dense: bool = False
) -> dict[str, Layer]:
    """Returns the layers whose channels a plan can cut, in forward order.

    Layers are named by the path of their kernel, without "kernel" and a "conv" before
    it. One whose channels are columns of the network's output is left out.

    Args:
      model: what `models.adapt` takes.
      variables: its variables, or their shapes; of an NNX module None, for its own.
      example: images, as in `mask`.
      dense: whether dense layers of hidden units are among them, or convolutions only.
        A unit is hidden if some kernel reads it and nothing else: what an attention or
        a block adds to a residual stream is not, nor are queries, keys and values.
    """
    variables = own_variables(model, variables)
    return _cuttable(*program_of(adapt(model), variables, example), dense)


def _cuttable(program, cuts, dense: bool) -> dict[str, Layer]:
    layers = layers_of(program, cuts)
    hidden = _hidden(program, cuts, layers) if dense else set()
    chosen = {
        name: layer
        for name, layer in layers.items()
        if layer.kind == "convolution" or name in hidden
    }
    return _without_outputs(program, cuts, chosen)


def _hidden(program, cuts, layers) -> set[str]:
    """The dense layers of which a unit that goes takes a row of another kernel along.

    Layers of one width are tried together, each without another unit, so that a stream
    into which several of them write stays whole.
    """
    groups: dict[int, list[str]] = {}
    for name, layer in layers.items():
        if layer.kind == "dense" and layer.channels > 1:
            groups.setdefault(layer.channels, []).append(name)
    found = set()
    for width, names in groups.items():
        for start in range(0, len(names), width):
            lost, planned = {}, dict(cuts)
            for turn, name in enumerate(names[start : start + width]):
                pair = layers[name].pair
                ids = trace.kept_of(program, cuts, pair)
                lost[name], planned[pair] = int(ids[turn]), np.delete(ids, turn)
            after, _ = trace.find_cuts(program, planned)
            found |= {
                name
                for name, unit in lost.items()
                if _is_row_missing(program, cuts, after, layers[name], unit)
            }
    return found


def _is_row_missing(program, before, after, layer, unit) -> bool:
    """Whether a kernel no longer reads a unit; flattened, it has several rows of it."""
    width = program.shapes[layer.path].shape[layer.axis]
    for (path, axis), kept in after.items():
        shape = program.shapes[path].shape
        is_kernel = len(shape) > 1 and max(shape) < np.prod(shape)
        if path == layer.path or not is_kernel or shape[axis] % width:
            continue
        there = trace.kept_of(program, before, (path, axis))
        rows = np.intersect1d(there, np.arange(unit, shape[axis], width))
        if len(rows) and not np.intersect1d(rows, kept).size:
            return True
    return False


def capture(
    model: Any, variables: Variables, images: Any, *, dense: bool = False
) -> dict[str, jax.Array]:
    """Returns what each layer of `trace_layers` gives, bias included: [B, ..., C]."""
    variables = own_variables(model, variables)
    program, cuts = program_of(adapt(model), variables, images)
    _, findings = trace.run(program, jax.tree.leaves(variables), cuts, [images])
    captured = {}
    for name, layer in _cuttable(program, cuts, dense).items():
        held, channel = findings.outputs[layer.path]
        kept: list[Any] = [None] * len(held.shape)
        kept[channel] = cuts.get(layer.pair)
        captured[name] = jnp.moveaxis(onto(held, kept), channel, -1)
    return captured


class Observed(NamedTuple):
    """What a network does to a batch."""

    logits: Any  # [B, U]
    head: Path | None  # of the last dense layer, if it gives the logits
    head_logits: Any  # [B, U], as they leave that layer
    features: Any  # [B, ...] what that layer reads, or None
    outputs: dict[str, Any]  # of all layers but that one, [B, ..., C]


def observe(model: Any, variables: Variables, images: Any) -> Observed:
    """Returns what a network and its layers give in evaluation."""
    variables = own_variables(model, variables)
    program, cuts = program_of(adapt(model), variables, images)
    results, findings = trace.run(program, jax.tree.leaves(variables), cuts, [images])
    logits = in_full(results[0])
    outputs, last, head, head_logits, features = {}, None, None, logits, None
    for name, layer in _layers(program, cuts, findings).items():
        held, channel = findings.outputs[layer.path]
        outputs[name] = jnp.moveaxis(in_full(held), channel, -1)
        # The last one of that shape counts: what follows it only rescales logits.
        if layer.kind == "dense" and outputs[name].shape == logits.shape:
            last, head, head_logits = name, layer.path[1:-1], outputs[name]
            features = in_full(findings.inputs[layer.path])
    if last is not None:
        del outputs[last]
    return Observed(logits, head, head_logits, features, outputs)


def program_of(
    network: Any, variables: Variables, example: Any = None
) -> tuple[Program, trace.Cuts]:
    """Returns the evaluation of an adapted network, uncut, and what is cut of it."""
    network = unpinned(network)
    images = _example(network, variables, example)
    slim = network
    if not isinstance(network, SlimNetwork):
        slim = SlimNetwork(network, (), tuple(images.shape[1:]))

    def call(variables, images):
        return slim.base.apply(variables, images, train=False)

    return slim.trace(call, variables, (images,))


def unpinned(network: Any) -> Any:
    """The network that a pinned one pins; dead channels are dead in its variables."""
    return network.base if isinstance(network, PinnedNetwork) else network


def layers_of(program: Program, cuts: trace.Cuts) -> dict[str, Layer]:
    """Returns all layers, dense ones and those that write the output included."""
    return _layers(program, cuts, trace.examine(program, cuts)[1])


def _layers(program, cuts, findings) -> dict[str, Layer]:
    layers = {}
    for path, (axis, kind) in findings.layers.items():
        channels = len(trace.kept_of(program, cuts, (path, axis)))
        layers[layer_name(path)] = Layer(path, kind, channels, axis)
    return layers


def layer_name(path: Path) -> str:
    """Returns the name of the layer with a kernel, or its call, at this path."""
    inner = path[1:] if path[0] == "params" and len(path) > 1 else path
    inner = inner[:-1] if len(inner) > 1 else inner
    inner = inner[:-1] if len(inner) > 1 and inner[-1] == "conv" else inner
    return "/".join(inner)


def _without_outputs(program, cuts, layers) -> dict[str, Layer]:
    """Leaves out the last layers, until what is left cuts no output."""
    whole, _ = trace.examine(program, cuts)

    def harmless(chosen):
        # One channel less, and one channel only: a sum of channels may stand either.
        for some in (slice(1, None), slice(0, 1)):
            planned = {
                layer.pair: trace.kept_of(program, cuts, layer.pair)[some]
                for layer in chosen.values()
                if layer.channels > 1
            }
            results, _ = trace.examine(program, {**cuts, **planned})
            if not _same_kept(results, whole):
                return False
        return True

    # From the end, where the layers that write the output are. The last one dropped is
    # guilty; those dropped before it get another chance.
    chosen, dropped = dict(layers), []
    while chosen and not harmless(chosen):
        dropped.append(chosen.popitem())
    for name, layer in reversed(dropped[:-1]):
        if harmless({**chosen, name: layer}):
            chosen[name] = layer
    return {name: layer for name, layer in layers.items() if name in chosen}


def _same_kept(first, second) -> bool:
    """Whether two lists of held arrays keep the same indices."""
    return all(
        same(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one.kept, other.kept, strict=True)
    )


def plan_cuts(
    network: Any, variables: Variables, plan: PrunePlan, example: Any = None
) -> PlannedCut:
    """Returns the slim network, and what is left of these variables."""
    network = unpinned(network)
    program, before = program_of(network, variables, example)
    whole, findings = trace.examine(program, before)
    layers = _layers(program, before, findings)
    # Cuts of layers are planned; all others followed from them and are found again,
    # since more of them may follow from the new plan.
    planned = {
        layer.pair: before[layer.pair]
        for layer in layers.values()
        if layer.pair in before
    }
    for name, keep in plan.keep.items():
        if name not in layers:
            raise SurgeryError(
                f"plan names layer {name!r}, which was not found; the network has"
                f" {', '.join(layers)}."
            )
        layer = layers[name]
        check_kept(name, np.asarray(keep), layer.channels)
        # A plan counts the channels that are left, a cut those of the uncut network.
        ids = trace.kept_of(program, planned, layer.pair)[np.asarray(keep)]
        if len(ids) < program.shapes[layer.path].shape[layer.axis]:
            planned[layer.pair] = ids
    cuts, results = trace.find_cuts(program, planned)
    _check_outputs(program, whole, results, planned, layers)
    base = network.base if isinstance(network, SlimNetwork) else network
    input_shape = program.arguments[0].shape[1:]
    slim = SlimNetwork(base, _path_cuts(program, cuts), input_shape)
    # The variables at hand are cut by `before` already: of these cuts, positions in
    # what they store, and only where something more goes.
    stored = {pair: trace.kept_of(program, before, pair) for pair in cuts}
    relative = {
        pair: np.searchsorted(stored[pair], ids)
        for pair, ids in cuts.items()
        if len(ids) < len(stored[pair])
    }
    shapes = {
        path: trace.cut_shape(program, before, path).shape for path in program.shapes
    }
    return PlannedCut(slim, _path_cuts(program, relative), shapes)


def _path_cuts(program, cuts) -> PathCuts:
    """Cuts by value, in the order of the variables."""
    found = []
    for path, shape in program.shapes.items():
        kept = [(axis, cuts.get((path, axis))) for axis in range(len(shape.shape))]
        axes = tuple((axis, tuple(k.tolist())) for axis, k in kept if k is not None)
        if axes:
            found.append((path, shape.shape, axes))
    return tuple(found)


def _check_outputs(program, before, after, planned, layers):
    if _same_kept(after, before):
        return
    alone = {
        name: trace.examine(program, {layer.pair: planned[layer.pair]})[0]
        for name, layer in layers.items()
        if layer.pair in planned
    }
    guilty = [name for name, held in alone.items() if not _same_kept(held, before)]
    raise SurgeryError(
        f"plan cuts {', '.join(map(repr, guilty)) or 'layers'}, whose channels are"
        " columns of the network's output; leave them out of the plan."
    )


def _example(network, variables, example) -> jax.ShapeDtypeStruct:
    """The shape of a batch of images: given, said by the network, or found by trial."""
    if example is not None:
        shape = tuple(example.shape)
        return jax.ShapeDtypeStruct(shape, jnp.result_type(example.dtype))
    said = getattr(network, "input_shape", None)
    if said is not None:
        return jax.ShapeDtypeStruct((2, *said), jnp.float32)
    kernels = [x for x in jax.tree.leaves(variables) if len(x.shape) == 4]
    depths = sorted({int(x.shape[2]) for x in kernels} & set(range(1, 17)))
    for depth in [3, 1, *depths]:
        for side in SIDES:
            images = jax.ShapeDtypeStruct((2, side, side, depth), jnp.float32)
            try:
                jax.eval_shape(
                    lambda v, x: network.apply(v, x, train=False), variables, images
                )
            except Exception:  # Whatever the network says to a wrong shape.
                continue
            return images
    raise SurgeryError(
        "the network takes images of a size that was not found by trial; pass some:"
        " compact(model, variables, plan, example=images)."
    )


def kept_channels(
    model: Any, variables: Variables, example: Any = None
) -> dict[str, tuple[int, ...]]:
    """Returns the channels each layer has, as ids in the uncut network."""
    program, cuts = program_of(adapt(model), variables, example)
    return {
        name: tuple(trace.kept_of(program, cuts, layer.pair).tolist())
        for name, layer in layers_of(program, cuts).items()
    }
