"""Surgery on any network by tracing: its layers, what they give, and their cuts."""

import functools
import itertools
from collections import Counter
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fuprune.errors import InputError
from fuprune.models.adapt import LinenNetwork, adapt, own_variables
from fuprune.surgery.arrays import Cuts, Path
from fuprune.surgery.findings import Findings, Layer, Product, SurgeryError
from fuprune.surgery.held import Held, in_full, onto
from fuprune.surgery.plan import PrunePlan, check_kept
from fuprune.surgery.slim import SlimNetwork
from fuprune.surgery.trace import Program, follow_cuts, trace

# Sides of images to try, for a network that does not say what it takes.
SIDES = (32, 28, 8, 16, 64, 224, 96, 48, 24, 12, 20, 40, 80, 128, 160, 192, 256, 299)


class Traced(NamedTuple):
    """A network, and the program of its evaluation with what is cut of it already."""

    network: SlimNetwork  # perhaps of no cuts
    program: Program
    leaves: list[Any]  # of its variables


def trace_network(model: Any, variables: Any, example: Any = None) -> Traced:
    """Returns the evaluation of a network; the arguments are those of `mask`."""
    network, variables = unfilled(adapt(model)), own_variables(model, variables)
    if variables is None:
        variables = _shapes_of(network)
    images = _example(network, variables, example)
    if not isinstance(network, SlimNetwork):
        network = SlimNetwork(network, (), (), tuple(images.shape[1:]))

    def evaluate(variables, images):
        return network.base.apply(variables, images, train=False)

    try:
        program = trace(evaluate, variables, (images,), network.cuts)
    except InputError:
        raise
    except Exception as error:  # whatever a network says
        reason = " ".join(str(error).split())
        raise SurgeryError(
            f"the network cannot be traced with these variables and images of shape"
            f" {images.shape}: {type(error).__name__}: {reason[:300]}; pass the"
            " variables of this network, and compute nothing of it as Python numbers."
        ) from error
    return Traced(network, program, jax.tree.leaves(variables))


def unfilled(network: Any) -> Any:
    """The network that a masked one masks; dead channels are dead in its variables."""
    filled = isinstance(network, SlimNetwork) and network.filled
    return network.base if filled else network


def _shapes_of(network: Any) -> Any:
    """Shapes of the variables of a network that says what images it takes."""
    if getattr(network, "input_shape", None) is None:
        raise SurgeryError(
            "variables are missing: this network is cut by tracing them."
        )
    images = _example(network, None, None)
    return jax.eval_shape(network.init, jax.random.key(0), images)


def _example(network, variables, example) -> jax.ShapeDtypeStruct:
    """The shape of a batch of images: given, said by the network, or found by trial."""
    if example is not None:
        dtype = jnp.result_type(example.dtype)
        return jax.ShapeDtypeStruct(tuple(example.shape), dtype)
    said = getattr(network, "input_shape", None)
    if said is not None:  # two images, because networks may squeeze a batch of one
        return jax.ShapeDtypeStruct((2, *said), jnp.float32)
    kernels = [x for x in jax.tree.leaves(variables) if len(x.shape) == 4]
    depths = sorted({int(x.shape[2]) for x in kernels} & set(range(1, 17)))
    for depth, side in itertools.product([3, 1, *depths], SIDES):
        images = jax.ShapeDtypeStruct((2, side, side, depth), jnp.float32)
        try:
            evaluate = functools.partial(network.apply, train=False)
            jax.eval_shape(evaluate, variables, images)
        except Exception:  # Whatever the network says to a wrong shape.
            continue
        return images
    raise SurgeryError(
        "the network takes images of a size that was not found by trial; pass some:"
        " compact(model, variables, plan, example=images)."
    )


def trace_layers(
    model: Any, variables: Any, example: Any = None, *, dense: bool = False
) -> dict[str, Layer]:
    """Returns the layers whose channels a plan can cut, in forward order.

    Layers are named by the path of their kernel, without "kernel" and a "conv" before
    it; those of a module with several kernels by the whole path. One whose channels are
    columns of the network's output is left out.

    Args:
      model: as in `mask`.
      variables: its variables, or their shapes.
      example: images, as in `mask`.
      dense: whether dense layers of hidden units are among them, or convolutions only.
        A unit is hidden if some kernel reads it and nothing else: what an attention or
        a block adds to a residual stream is not, nor are queries, keys and values.
    """
    return _cuttable(trace_network(model, variables, example).program, dense)


def _cuttable(program: Program, dense: bool) -> dict[str, Layer]:
    whole, findings = program.examine()
    layers = {
        name: layer
        for name, layer in layers_of(program, findings).items()
        if reads_images(program, findings.products[layer.path])
    }
    hidden = _hidden(program, layers) if dense else ()
    convolutions = {n for n, layer in layers.items() if layer.kind == "convolution"}
    chosen = {n: layers[n] for n in layers if n in convolutions or n in hidden}
    return _without_outputs(program, whole, chosen)


def reads_images(program: Program, found: Product) -> bool:
    """Whether a product has an entry per image, so that classes tell its rows apart.

    A table of positions that goes through a layer has none, and patches that were
    merged into the batch have several.
    """
    batch = program.arguments[0].shape[0]
    return found.inputs.sees_images and found.outputs.shape[0] == batch


def _hidden(program: Program, layers: dict[str, Layer]) -> set[str]:
    """The dense layers of which a unit that goes takes a row of another kernel along.

    All are tried together. Those of one width each go without another unit, so that a
    stream into which several of them write stays whole.
    """
    turns: Counter = Counter()
    lost, planned = {}, dict(program.cuts)
    for name, layer in layers.items():
        if layer.kind == "dense" and layer.channels > 1:
            ids, turn = program.kept(layer.pair), turns[layer.channels] % layer.channels
            turns[layer.channels] += 1
            lost[name], planned[layer.pair] = int(ids[turn]), np.delete(ids, turn)
    after, _ = follow_cuts(program._replace(cuts=planned))
    return {
        name
        for name, unit in lost.items()
        if _is_row_missing(program, after, layers[name], unit)
    }


def _is_row_missing(before: Program, after: Program, layer: Layer, unit: int) -> bool:
    """Whether a kernel no longer reads a unit; flattened, it has several rows of it."""
    width = before.shapes[layer.path].shape[layer.axis]
    for (path, axis), kept in after.cuts.items():
        shape = before.shapes[path].shape
        is_kernel = len(shape) > 1 and max(shape) < np.prod(shape)
        if path == layer.path or not is_kernel or shape[axis] % width:
            continue
        there = before.kept((path, axis))
        rows = np.intersect1d(there, np.arange(unit, shape[axis], width))
        if len(rows) and not np.intersect1d(rows, kept).size:
            return True
    return False


def _without_outputs(program: Program, whole: list[Held], layers) -> dict[str, Layer]:
    """Leaves out the last layers, until what is left cuts no output, now `whole`."""

    def harmless(chosen):
        # One channel less, and one channel only: a sum of channels may stand either.
        for some in (slice(1, None), slice(0, 1)):
            planned = {
                layer.pair: program.kept(layer.pair)[some]
                for layer in chosen.values()
                if layer.channels > 1
            }
            cuts = {**program.cuts, **planned}
            results, _ = program._replace(cuts=cuts, explores=True).examine()
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


def _same_kept(first: list[Held], second: list[Held]) -> bool:
    pairs: list[Any] = [
        pair
        for one, other in zip(first, second, strict=True)
        for pair in zip(one.kept, other.kept, strict=True)
    ]
    return all(np.array_equal(*pair) for pair in pairs)


def layers_of(program: Program, findings: Findings) -> dict[str, Layer]:
    """Returns all layers, dense ones and those that write the output included."""
    short = Counter(map(layer_name, findings.products))
    layers = {}
    for path, found in findings.products.items():
        name = layer_name(path)
        # Of a module with several kernels each is a layer by its whole path.
        name = name if short[name] == 1 else "/".join(path[1:])
        if path not in findings.disagree:
            channels = len(program.kept((path, found.axis)))
            layers[name] = Layer(path, found.kind, channels, found.axis)
    return layers


def layer_name(path: Path) -> str:
    """Returns the name of the layer with a kernel, or its call, at this path."""
    inner = path[1:] if path[0] == "params" and len(path) > 1 else path
    inner = inner[:-1] if len(inner) > 1 else inner
    inner = inner[:-1] if len(inner) > 1 and inner[-1] == "conv" else inner
    return "/".join(inner)


def capture(
    model: Any, variables: Any, images: Any, *, dense: bool = False
) -> dict[str, jax.Array]:
    """Returns what each layer of `trace_layers` gives, bias included: [B, ..., C]."""
    network, program, leaves = trace_network(model, variables, images)
    layers = _cuttable(program, dense)
    found = _capture_by_flax(network, own_variables(model, variables), images, layers)
    if found is not None:
        return found
    _, findings = program.run(leaves, [images])
    return {
        name: _outputs(findings.products[layer.path], program.cuts.get(layer.pair))
        for name, layer in layers.items()
    }


def _capture_by_flax(network, variables, images, layers) -> dict[str, Any] | None:
    """The same by `capture_intermediates`, if every layer is a module of Linen's."""
    base = getattr(network.base, "network", network.base)
    if not isinstance(base, nn.Module | LinenNetwork):
        return None
    _, captured = network.apply(
        variables,
        images,
        train=False,
        capture_intermediates=lambda module, method: (
            isinstance(module, nn.Conv | nn.Dense) and method == "__call__"
        ),
        mutable=["intermediates"],
    )
    calls: Any = traverse_util.flatten_dict(captured.get("intermediates", {}))
    paths = {n: (*layer.path[1:-1], "__call__") for n, layer in layers.items()}
    if not set(paths.values()) <= calls.keys():
        return None
    # Of several calls the last counts.
    return {name: calls[path][-1] for name, path in paths.items()}


def _outputs(found: Product, kept: np.ndarray | None = None) -> jax.Array:
    """What a layer gives, of the kept channels or all: [B, ..., C]."""
    laid: list[Any] = [None] * len(found.outputs.shape)
    laid[found.channel] = kept
    return jnp.moveaxis(onto(found.outputs, laid), found.channel, -1)


class Observed(NamedTuple):
    """What a network does to a batch."""

    logits: Any  # [B, U]
    head: Path | None  # of the last dense layer, if it gives the logits
    features: Any  # [B, ...] what that layer reads, or None
    outputs: dict[str, Any]  # of all layers but that one, [B, ..., C]


def observe(model: Any, variables: Any, images: Any) -> Observed:
    """Returns what a network and its layers give in evaluation."""
    _, program, leaves = trace_network(model, variables, images)
    results, findings = program.run(leaves, [images])
    logits = in_full(results[0])
    outputs, last, head, features = {}, None, None, None
    for name, layer in layers_of(program, findings).items():
        found = findings.products[layer.path]
        outputs[name] = _outputs(found)
        # The last one of that shape counts: what follows it only rescales logits.
        if layer.kind == "dense" and outputs[name].shape == logits.shape:
            last, head, features = name, layer.path[1:-1], in_full(found.inputs)
    if last is not None:
        del outputs[last]
    return Observed(logits, head, features, outputs)


class PlannedCut(NamedTuple):
    """A plan worked out for a network."""

    network: SlimNetwork  # with fewer channels
    cuts: Cuts  # positions in the variables at hand, which may be cut already
    before: Program


def plan_cuts(
    model: Any, variables: Any, plan: PrunePlan, example: Any = None
) -> PlannedCut:
    """Returns the slim network, and what is left of these variables."""
    network, before, _ = trace_network(model, variables, example)
    after = carry_out(before, plan)
    channels = tuple(
        (name, tuple(after.cuts[layer.pair].tolist()))
        for name, layer in layers_of(after, after.examine()[1]).items()
        if layer.pair in after.cuts
    )
    slim = network.clone(
        channels=channels,
        cuts=after.cuts_by_value(),
        input_shape=before.arguments[0].shape[1:],
    )
    relative = {
        pair: np.searchsorted(before.kept(pair), ids)
        for pair, ids in after.cuts.items()
        if len(ids) < len(before.kept(pair))
    }
    return PlannedCut(slim, before._replace(cuts=relative).cuts_by_value(), before)


def pin(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> Any:
    """Returns the network in which what `mask` kills stays dead in training.

    Arguments are those of `mask`.
    """
    slim, cuts, _ = plan_cuts(model, variables, plan, example)
    channels = tuple(
        (layer, tuple(np.asarray(keep).tolist())) for layer, keep in plan.keep.items()
    )
    network = unfilled(adapt(model))
    return SlimNetwork(network, channels, cuts, slim.input_shape, filled=True)


def scales_of(
    model: Any, variables: Any, layers: dict[str, Layer], example: Any = None
) -> dict[str, Path]:
    """The path of the scale of the norm behind each layer, if it has one of its own.

    It is the first parameter of that name that loses a channel with the layer.
    """
    program, found = trace_network(model, variables, example).program, {}
    for name, layer in layers.items():
        if layer.channels > 1:
            left = program.kept(layer.pair)[1:]
            cuts = {**program.cuts, layer.pair: left}
            after, _ = follow_cuts(program._replace(cuts=cuts))
            for (path, _), kept in after.cuts.items():
                if path[-1] == "scale" and np.array_equal(kept, left):
                    found.setdefault(name, path)
    return found


def carry_out(program: Program, plan: PrunePlan) -> Program:
    """Returns the program with the cuts of a plan, and those that follow from them."""
    whole, findings = program.examine()
    layers = layers_of(program, findings)
    # Cuts of layers are planned; all others followed from them and are found again,
    # since more of them may follow from the new plan.
    planned = {
        layer.pair: program.cuts[layer.pair]
        for layer in layers.values()
        if layer.pair in program.cuts
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
        ids = program.kept(layer.pair)[np.asarray(keep)]
        if len(ids) < program.shapes[layer.path].shape[layer.axis]:
            planned[layer.pair] = ids

    def follow(cuts):
        after, results = follow_cuts(program._replace(cuts=cuts))
        return after, _same_kept(results, whole)

    after, harmless = follow(planned)
    if not harmless:
        guilty = [
            repr(name)
            for name, layer in layers.items()
            if layer.pair in planned
            and not follow({layer.pair: planned[layer.pair]})[1]
        ]
        raise SurgeryError(
            f"plan cuts {', '.join(guilty) or 'layers'}, whose channels are columns of"
            " the network's output; leave them out of the plan."
        )
    return after
