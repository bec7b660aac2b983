"""Surgery on any network, by tracing: mask, compact, and the slim network itself.

A slim network is the uncut one and the list of what was cut. Its `apply` traces the
uncut network and runs the jaxpr on held arrays, so it computes what the masked network
computes, in evaluation and in training, on the channels that are left alone.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fuprune.models.adapt import adapt
from fuprune.surgery import trace
from fuprune.surgery.held import in_full, onto, same
from fuprune.surgery.plan import PrunePlan, check_kept
from fuprune.surgery.trace import Layer, Path, Program, SurgeryError

Variables = Mapping[str, Any]
# Sides of images to try, for a network that does not say what it takes.
SIDES = (
    32,
    28,
    8,
    16,
    64,
    224,
    96,
    48,
    24,
    12,
    10,
    20,
    40,
    80,
    128,
    160,
    192,
    256,
    299,
)


# Of each cut variable its path, its whole shape, and (axis, kept indices) pairs.
PathCuts = tuple[
    tuple[Path, tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]], ...
]


@dataclasses.dataclass(frozen=True)
class SlimNetwork:
    """A network with channels removed, in the form that `models.adapt` describes."""

    base: Any  # the uncut network, adapted
    cuts: PathCuts
    input_shape: tuple[int, ...]  # (H, W, C) of one image

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.base, self.cuts, self.input_shape))

    def __hash__(self) -> int:
        """By value, computed once: the cuts are long."""
        return self._hash

    def init(self, key, images, train: bool = False) -> Variables:
        """Fresh variables: those of the uncut network, cut."""
        return self.cut(self.base.init(key, images, train=train))

    def apply(
        self,
        variables,
        images,
        train: bool = False,
        mask=None,
        *,
        mutable: Any = False,
        rngs=None,
        **options,
    ) -> Any:
        """Logits [B, U], and the updated collections if `mutable` names any.

        Args:
          variables: cut, as `compact` returned them.
          images: [B, H, W, C].
          train: whether this is a step of training.
          mask: [B], nonzero for real examples; passed on if the network takes one.
          mutable: names of collections to return.
          rngs: {"dropout": key}.
          **options: others of the uncut network's `apply`, `capture_intermediates` for
            one; what they return has the shapes of the masked network.
        """

        def call(variables, images, mask, rngs):
            return self.base.apply(
                variables,
                images,
                train=train,
                mask=mask,
                **({"mutable": mutable} if mutable else {}),
                **({"rngs": rngs} if rngs else {}),
                **options,
            )

        arguments = (images, mask, rngs)
        program, numbered = self._trace(call, variables, arguments)
        results, _ = trace.run(
            program,
            jax.tree.leaves(variables),
            numbered,
            jax.tree.leaves(arguments),
        )
        kept = {path: dict(axes) for path, _, axes in self.cuts}
        leaves = []
        for path, held in zip(program.out_paths, results, strict=True):
            # New statistics are cut as the old ones are; everything else is whole.
            axes = kept.get(path[1:], {}) if mutable else {}
            wanted = [axes.get(axis) for axis in range(len(held.shape))]
            wanted = [None if ids is None else np.asarray(ids) for ids in wanted]
            leaves.append(onto(held, wanted) if axes else in_full(held))
        return jax.tree.unflatten(program.out_tree, leaves)

    def cut(self, variables: Any, fill: bool = False) -> Any:
        """Cuts variables of the uncut network, or fills what is dead in them."""
        return _cut_tree(self.cuts, variables, fill)

    def _trace(self, call, variables, arguments) -> tuple[Program, trace.Cuts]:
        shapes = {path: shape for path, shape, _ in self.cuts}
        uncut = jax.tree_util.tree_map_with_path(
            lambda path, x: jax.ShapeDtypeStruct(
                shapes.get(trace.names(path), x.shape), x.dtype
            ),
            variables,
        )
        program = trace.trace(call, uncut, *arguments)
        return program, _numbered(self.cuts, program.paths)


def mask(
    model: Any, variables: Variables, plan: PrunePlan, *, example: Any = None
) -> Variables:
    """Kills the channels a plan does not keep; every shape stays as it is.

    What `compact` would remove is filled with zeros, and variances with ones.

    Args:
      model: what `models.adapt` takes.
      variables: its variables.
      plan: the channels to keep.
      example: images, or an array of their shape [B, H, W, C]; found by trial if the
        network does not say what it takes.
    """
    slim, relative = _plan_cuts(adapt(model), variables, plan, example)
    del slim
    return _cut_tree(relative, variables, fill=True)


def compact(
    model: Any, variables: Variables, plan: PrunePlan, *, example: Any = None
) -> tuple[Any, Variables]:
    """Removes the channels a plan does not keep; the arguments are those of `mask`.

    Returns:
      A `SlimNetwork` and its variables: the same function as the network with masked
      variables, and the same gradients.
    """
    network = adapt(model)
    slim, relative = _plan_cuts(network, variables, plan, example)
    if not relative:
        return model, variables
    return slim, _cut_tree(relative, variables)


def trace_layers(
    model: Any, variables: Variables, example: Any = None, *, dense: bool = False
) -> dict[str, Layer]:
    """Returns the layers whose channels a plan can cut, in forward order.

    Layers are named by the path of their kernel, without "kernel" and a "conv" before
    it. One whose channels are columns of the network's output is left out.

    Args:
      model: what `models.adapt` takes.
      variables: its variables, or their shapes.
      example: images, as in `mask`.
      dense: whether dense layers are among them, or convolutions only.
    """
    network = adapt(model)
    program, cuts = program_of(network, variables, example)
    layers = _layers(program, cuts)
    chosen = {n: x for n, x in layers.items() if dense or x.kind == "convolution"}
    return _without_outputs(program, cuts, chosen)


def capture(
    model: Any, variables: Variables, images: Any, *, dense: bool = False
) -> dict[str, jax.Array]:
    """Returns what each layer of `trace_layers` gives, bias included: [B, ..., C]."""
    network = adapt(model)
    layers = trace_layers(network, variables, images, dense=dense)
    program, cuts = program_of(network, variables, images)
    leaves = jax.tree.leaves(variables)
    _, findings = trace.run(program, leaves, cuts, [images])
    captured = {}
    for name, layer in layers.items():
        held, channel = findings.outputs[layer.leaf]
        kept: list[Any] = [None] * len(held.shape)
        kept[channel] = cuts.get((layer.leaf, layer.axis))
        captured[name] = jnp.moveaxis(onto(held, kept), channel, -1)
    return captured


def program_of(
    network: Any, variables: Variables, example: Any = None
) -> tuple[Program, trace.Cuts]:
    """Returns the evaluation of an adapted network, uncut, and what is cut of it."""
    images = _example(network, variables, example)
    slim = network
    if not isinstance(network, SlimNetwork):
        slim = SlimNetwork(network, (), tuple(images.shape[1:]))

    def call(variables, images):
        return slim.base.apply(variables, images, train=False)

    return slim._trace(call, variables, (images,))


def _layers(program, cuts) -> dict[str, Layer]:
    _, findings = trace.examine(program, cuts)
    layers = {}
    for leaf, (axis, kind) in findings.layers.items():
        path = program.paths[leaf]
        size = program.shapes[leaf].shape[axis]
        channels = len(cuts.get((leaf, axis), range(size)))
        layers[layer_name(path)] = Layer(path, kind, channels, leaf, axis)
    return layers


def layer_name(path: Path) -> str:
    """Returns the name of the layer with a kernel at this path."""
    inner = path[1:] if path[0] == "params" and len(path) > 1 else path
    inner = inner[:-1] if len(inner) > 1 else inner
    inner = inner[:-1] if len(inner) > 1 and inner[-1] == "conv" else inner
    return "/".join(inner)


def _without_outputs(program, cuts, layers) -> dict[str, Layer]:
    """Leaves out the last layers, until what is left cuts no output."""
    whole = _output_kept(program, cuts, {})

    def harmless(chosen):
        return same_kept(_output_kept(program, cuts, chosen), whole)

    chosen, dropped = dict(layers), []
    while chosen and not harmless(chosen):
        dropped.append(chosen.popitem())
    for name, layer in reversed(dropped[:-1]):
        if harmless({**chosen, name: layer}):
            chosen[name] = layer
    return {name: layer for name, layer in layers.items() if name in chosen}


def _output_kept(program, cuts, layers):
    """What is kept of each output if the layers lose their first channel."""
    planned = dict(cuts)
    for layer in layers.values():
        if layer.channels > 1:
            size = program.shapes[layer.leaf].shape[layer.axis]
            ids = np.asarray(cuts.get((layer.leaf, layer.axis), np.arange(size)))
            planned[layer.leaf, layer.axis] = ids[1:]
    results, _ = trace.examine(program, planned)
    return [held.kept for held in results]


def same_kept(first, second) -> bool:
    """Whether two lists of held arrays keep the same indices."""
    return all(
        same(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def _plan_cuts(network, variables, plan, example):
    """The slim network, and its cuts as positions in the variables as they are."""
    program, before = program_of(network, variables, example)
    layers = _layers(program, before)
    planned = dict(before)
    for pair in before:
        if pair not in {(layer.leaf, layer.axis) for layer in layers.values()}:
            del planned[pair]
    for name, keep in plan.keep.items():
        if name not in layers:
            raise SurgeryError(
                f"plan names layer {name!r}, which was not found; the network has"
                f" {', '.join(layers)}."
            )
        layer = layers[name]
        check_kept(name, np.asarray(keep), layer.channels)
        size = program.shapes[layer.leaf].shape[layer.axis]
        pair = (layer.leaf, layer.axis)
        ids = np.asarray(planned.get(pair, np.arange(size)))[np.asarray(keep)]
        if len(ids) < size:
            planned[pair] = ids
    cuts, _ = trace.find_cuts(program, planned)
    _check_outputs(program, before, cuts, planned, layers)
    images = program.jaxpr.jaxpr.invars[len(program.shapes)].aval
    base = network.base if isinstance(network, SlimNetwork) else network
    slim = SlimNetwork(base, _pathed(cuts, program), tuple(images.shape[1:]))
    relative = {
        (leaf, axis): np.searchsorted(before[leaf, axis], ids)
        if (leaf, axis) in before
        else ids
        for (leaf, axis), ids in cuts.items()
        if len(ids)
        < len(before.get((leaf, axis), range(program.shapes[leaf].shape[axis])))
    }
    return slim, _pathed(relative, program)


def _check_outputs(program, before, cuts, planned, layers):
    whole = [held.kept for held in trace.examine(program, before)[0]]
    if same_kept([held.kept for held in trace.examine(program, cuts)[0]], whole):
        return
    guilty = [
        name
        for name, layer in layers.items()
        if (pair := (layer.leaf, layer.axis)) in planned
        and not same_kept(
            [h.kept for h in trace.examine(program, {pair: planned[pair]})[0]], whole
        )
    ]
    raise SurgeryError(
        f"plan cuts {', '.join(map(repr, guilty)) or 'layers'}, whose channels are"
        " columns of the network's output; leave them out of the plan."
    )


def _pathed(cuts, program):
    """Cuts by path, in the order of the leaves."""
    grouped: dict[int, list] = {}
    for leaf, axis in sorted(cuts):
        ids = tuple(int(i) for i in cuts[leaf, axis])
        grouped.setdefault(leaf, []).append((axis, ids))
    return tuple(
        (program.paths[leaf], tuple(program.shapes[leaf].shape), tuple(axes))
        for leaf, axes in grouped.items()
    )


def _numbered(cuts, paths) -> dict[tuple[int, int], np.ndarray]:
    """Cuts by number of the leaf, of those variables that are there."""
    numbers = {path: number for number, path in enumerate(paths)}
    return {
        (numbers[path], axis): np.asarray(ids)
        for path, _, axes in cuts
        if path in numbers
        for axis, ids in axes
    }


def _cut_tree(cuts, tree, fill: bool = False):
    """Takes the kept entries of the leaves at the paths of `cuts`, or fills others."""
    axes_at = {path: axes for path, _, axes in cuts}

    def cut_leaf(path, leaf):
        path = trace.names(path)
        axes = axes_at.get(path, ())
        numpy = jnp if isinstance(leaf, Tracer) else np
        result = leaf if numpy is jnp or not axes else np.asarray(leaf)
        for axis, ids in axes:
            if fill:
                kept = np.isin(np.arange(leaf.shape[axis]), ids)
                kept = kept.reshape([-1] + [1] * (leaf.ndim - axis - 1))
                dead = np.asarray(trace.dead_value(path), leaf.dtype)
                result = numpy.where(kept, result, dead)
            else:
                result = numpy.take(result, np.asarray(ids), axis=axis)
        if not axes or isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
            return result
        return jax.device_put(result, leaf.sharding)

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)


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
