"""Sums of squared per-example gradients of a Flax model, without forming them all.

In evaluation mode examples do not mix, so one backward pass over a batch yields every
example's cotangent at every layer. A convolution's gradient for one example is then the
product of its input patches and its output cotangent, which is squared and added up
example by example; where the image is small, pairs of its positions are multiplied
instead, for all examples together. Other modules get a copy of their parameters for
each example. A network that this cannot describe (parameters that are shared, tied,
transformed, or used outside a module's call on the batch) is differentiated example by
example.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from flax.linen.linear import canonicalize_padding
from jax import lax

from fuprune.federated.client import split_params


class _Layer(NamedTuple):
    """How the parameters of one module are reached."""

    kind: str  # "conv", "dense" or "copied"
    output: jax.ShapeDtypeStruct  # of the whole batch
    inputs: tuple[tuple[int, ...] | None, ...]  # shapes of its arguments' array leaves
    window: tuple = ()  # conv: kernel size, strides and padding


Path = tuple[str, ...]


def sum_of_squared_gradients(
    model: nn.Module,
    variables,
    images,
    make_cotangents: Callable[[jax.Array], jax.Array],
    mask=None,
) -> Any:
    """Sum over examples n and vectors j of (d <c_nj, logits_n> / d w)^2, elementwise.

    Args:
      model: a Flax module, called as `apply(variables, images, train=False)`, in which
        no example's logits depend on another example.
      variables: its variables.
      images: [B, H, W, C] float.
      make_cotangents: logits [B, U] -> c [B, J, U], example by example; not
        differentiated.
      mask: [B], 0 for examples that do not count; all do by default.

    Returns:
      A tree like `variables["params"]`, float32, none of it negative.
    """
    if mask is None:
        mask = jnp.ones(len(images))

    def cotangents_of(logits, mask):
        chosen = make_cotangents(lax.stop_gradient(logits.astype(jnp.float32)))
        # Zero vectors have zero squares, so that nothing else needs the mask.
        chosen = jnp.where(mask[:, None, None] > 0, chosen, 0.0)
        return jnp.moveaxis(chosen, 1, 0).astype(logits.dtype)  # [J, B, U]

    layers = _find_layers(model, variables, images)
    if layers is None:
        return _example_by_example(model, variables, images, cotangents_of, mask)
    # The gradient by a layer's output is the gradient by a shift added to it, and what
    # the squares of a dense or convolutional layer need. A zero shift changes nothing.
    outputs = {
        path: jnp.zeros(layer.output.shape, layer.output.dtype)
        for path, layer in layers.items()
        if layer.kind != "copied"
    }
    # Any other layer gets a copy of its parameters for each image, so that gradients of
    # images stay apart.
    copies = {
        path: jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (len(images), *leaf.shape)),
            _at(variables["params"], path),
        )
        for path, layer in layers.items()
        if layer.kind == "copied"
    }

    def forward(shifts, copies):
        return _apply(model, variables, images, layers, shifts, copies)

    logits, backward, inputs = jax.vjp(forward, outputs, copies, has_aux=True)
    by_output, by_copy = jax.vmap(backward)(cotangents_of(logits, mask))  # [J, B, ...]
    squares: dict[Path, Any] = {
        path: jax.tree.map(_sum_of_squares, gradient)
        for path, gradient in by_copy.items()
    }
    for path, cotangent in by_output.items():
        has_bias = "bias" in _at(variables["params"], path)
        squares[path] = _layer_squares(layers[path], inputs[path], cotangent, has_bias)
    # Flax hands parameters out as dictionaries or frozen ones; leaves sort alike.
    return jax.tree.unflatten(
        jax.tree.structure(variables["params"]),
        jax.tree.leaves(traverse_util.unflatten_dict(squares)),
    )


def _find_layers(model, variables, images) -> dict[Path, _Layer] | None:
    """The outermost modules that own parameters, by path; None if that is not all.

    The network is traced at two batch sizes, because an axis as long as the batch is
    not yet the batch's: only what grows with it is.
    """
    batch = len(images)
    found = _trace_layers(model, variables, images, batch)
    doubled = _trace_layers(model, variables, images, 2 * batch)
    if found is None or doubled is None or found.keys() != doubled.keys():
        return None
    for path, layer in found.items():
        larger = doubled[path]
        pairs = list(zip(layer.inputs, larger.inputs, strict=True))
        follows = [_follows_batch(a, b, batch) for a, b in pairs]
        grows = _follows_batch(layer.output.shape, larger.output.shape, batch)
        known = all(a == b or f for (a, b), f in zip(pairs, follows, strict=True))
        if not (grows and known and follows[0]):
            return None
        batched = (a if f else None for a, f in zip(layer.inputs, follows, strict=True))
        found[path] = layer._replace(inputs=tuple(batched))
    return found


def _follows_batch(shape, larger, batch: int) -> bool:
    """Whether the first axis, and no other, is the batch's."""
    return shape[:1] == (batch,) and larger == (2 * batch, *shape[1:])


def _trace_layers(model, variables, images, batch: int) -> dict[Path, _Layer] | None:
    """The layers; None if the network reads parameters other than by their calls."""
    found: dict[Path, _Layer] = {}
    supported = True
    owner: Path | None = None  # of the call that is being traced
    given, rest = split_params(variables)

    def run(given, images):
        # A gradient flows back through the layers' arguments, so they are results too.
        arguments: list[Any] = []

        def watch(call, args, kwargs, context):
            nonlocal supported, owner
            module = context.module
            if owner is not None:
                # A module that belongs elsewhere would not come along with its owner.
                supported &= module.path[: len(owner)] == owner
                return call(*args, **kwargs)
            params = module.variables.get("params", {})
            owns = any(not isinstance(leaf, Mapping) for leaf in params.values())
            if context.method_name != "__call__" or not owns:
                return call(*args, **kwargs)
            # Within a lifted transformation (remat, scan, mapped variables) parameters
            # are not the arrays that were handed in, and a gradient here is not theirs.
            original = _at(given, module.path) if module.path else None
            once = bool(module.path) and module.path not in found
            supported = supported and once and _same_leaves(params, original)
            owner = module.path
            try:
                output = call(*args, **kwargs)
            finally:
                owner = None
            supported = supported and bool(args) and _is_array(args[0])
            supported = supported and _is_array(output)
            if not supported:
                return output
            found[module.path] = _describe(module, args, kwargs, output)
            arguments.extend(x for x in jax.tree.leaves((args, kwargs)) if _is_array(x))
            # Not the output: what follows would depend on the layer's parameters.
            return jnp.zeros(output.shape, output.dtype)

        with nn.intercept_methods(watch):
            logits = model.apply({"params": given, **rest}, images, train=False)
        return logits, arguments

    shape = jax.ShapeDtypeStruct((batch, *images.shape[1:]), images.dtype)
    jaxpr = jax.make_jaxpr(run)(given, shape).jaxpr
    # Read off the program rather than off gradients, which can be zero by chance.
    needed = set(map(id, jaxpr.outvars))
    for equation in reversed(jaxpr.eqns):
        if not needed.isdisjoint(map(id, equation.outvars)):
            needed.update(map(id, equation.invars))
    inputs = jaxpr.invars[: len(jax.tree.leaves(given))]
    is_all = supported and needed.isdisjoint(map(id, inputs))
    return found if is_all else None


def _same_leaves(params, original) -> bool:
    ours, theirs = jax.tree.leaves(params), jax.tree.leaves(original)
    return len(ours) == len(theirs) and all(
        a is b for a, b in zip(ours, theirs, strict=True)
    )


def _is_array(leaf) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _describe(module, args, kwargs, output) -> _Layer:
    result = jax.ShapeDtypeStruct(output.shape, output.dtype)
    leaves = jax.tree.leaves((args, kwargs))
    shapes = tuple(leaf.shape for leaf in leaves if _is_array(leaf))
    plain = len(args) == 1 and not kwargs
    if (
        plain
        and type(module) is nn.Dense
        and args[0].ndim == 2
        and module.dot_general is None
        and module.dot_general_cls is None
    ):
        return _Layer("dense", result, shapes)
    sizes = tuple(np.atleast_1d(getattr(module, "kernel_size", ())).tolist())
    if plain and type(module) is nn.Conv and args[0].ndim == 4 and len(sizes) == 2:
        strides = _pair(module.strides or 1)
        padding: Any = canonicalize_padding(module.padding, 2)
        if padding in ("SAME", "VALID"):
            shape = args[0].shape[1:3]
            padding = lax.padtype_to_pads(shape, sizes, strides, padding)
        if (
            not isinstance(padding, str)
            and module.feature_group_count == 1
            and module.mask is None
            and module.input_dilation in (None, 1, (1, 1))
            and module.kernel_dilation in (None, 1, (1, 1))
        ):
            return _Layer("conv", result, shapes, (sizes, strides, tuple(padding)))
    return _Layer("copied", result, shapes)


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _apply(model, variables, images, layers, shifts, copies):
    """Logits, and the inputs of the shifted layers; shifts are added to outputs."""
    inputs: dict[Path, jax.Array] = {}
    in_copy = False

    def intercept(call, args, kwargs, context):
        nonlocal in_copy
        module = context.module
        layer = None if in_copy else layers.get(module.path)
        if layer is None or context.method_name != "__call__":
            return call(*args, **kwargs)
        if layer.kind != "copied":
            inputs[module.path] = args[0]
            return call(*args, **kwargs) + shifts[module.path]
        _, state = split_params(module.variables)
        unbound = module.clone(parent=None, name=None)
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
        # Whatever has an axis of examples, a residual too, goes along example by
        # example; the rest (channel ids, flags, tables) is the same for all.
        batched = [
            i
            for i, shape in zip(arrays, layer.inputs, strict=True)
            if shape is not None
        ]

        def one_example(params, examples):
            mine = list(leaves)
            for i, example in zip(batched, examples, strict=True):
                mine[i] = example[None]
            args, kwargs = jax.tree.unflatten(treedef, mine)
            return unbound.apply({"params": params, **state}, *args, **kwargs)[0]

        in_copy = True
        try:
            return jax.vmap(one_example)(
                copies[module.path], [leaves[i] for i in batched]
            )
        finally:
            in_copy = False

    with nn.intercept_methods(intercept):
        logits = model.apply(variables, images, train=False)
    return logits, inputs


def _layer_squares(layer: _Layer, inputs, cotangents, has_bias: bool):
    """Squares for one layer; inputs [B, ...], cotangents [J, B, ..., O]."""
    inputs = inputs.astype(jnp.float32)
    cotangents = cotangents.astype(jnp.float32)
    if layer.kind == "dense":
        square = jnp.sum(cotangents**2, axis=0)  # [B, O]
        squares = {"kernel": _exact_dot((inputs**2).T, square)}
        if has_bias:
            squares["bias"] = jnp.sum(square, axis=0)
        return squares
    vectors, batch, height, width, channels = cotangents.shape
    positions = height * width
    flat = cotangents.reshape(vectors, batch, positions, channels)
    (rows, columns), _, _ = layer.window
    # The cost by pairs is T * T for each entry of the kernel, else J * T.
    if 2 * positions <= vectors:
        square = _squares_by_pairs(layer.window, inputs, flat)
    else:
        square = lax.platform_dependent(
            inputs,
            flat,
            cpu=lambda a, d: _squares_one_by_one(layer.window, a, d),
            default=lambda a, d: _squares_at_once(layer.window, a, d),
        )
    squares = {"kernel": square.reshape(rows, columns, inputs.shape[-1], channels)}
    if has_bias:
        squares["bias"] = _sum_of_squares(jnp.sum(flat, axis=2))
    return squares


def _patches(window, inputs):
    """[B, H, W, C] -> [B, K, T]: what each output position reads, K = kh * kw * C."""
    (rows, columns), (down, right), padding = window
    # Channels first: the copies below then run along rows of the image.
    padded = jnp.pad(jnp.moveaxis(inputs, 3, 1), ((0, 0), (0, 0), *padding))
    height = (padded.shape[2] - rows) // down + 1
    width = (padded.shape[3] - columns) // right + 1
    shifted = [
        padded[
            :,
            :,
            i : i + down * (height - 1) + 1 : down,
            j : j + right * (width - 1) + 1 : right,
        ]
        for i in range(rows)
        for j in range(columns)
    ]
    return jnp.stack(shifted, axis=1).reshape(len(inputs), -1, height * width)


def _squares_by_pairs(window, inputs, cotangents):
    """(sum_t a_t d_t)^2 as a sum over pairs (t, s) of products; [K, O]."""
    patches = _patches(window, inputs)
    left = patches[:, :, :, None] * patches[:, :, None, :]  # [B, K, T, T]
    right = jnp.einsum(
        "jbto,jbso->btso", cotangents, cotangents, precision=lax.Precision.HIGHEST
    )
    total = jnp.einsum("bkts,btso->ko", left, right, precision=lax.Precision.HIGHEST)
    # Rounding in a sum of both signs can fall below the zero it stands for.
    return jnp.maximum(total, 0.0)


def _squares_one_by_one(window, inputs, cotangents):
    """One example's gradients at a time, all vectors in one product; [K, O].

    It holds [K, J * O] numbers, which mostly stay in the cache of a CPU core.
    """
    vectors, batch, positions, channels = cotangents.shape
    kernel = math.prod(window[0]) * inputs.shape[-1]

    def add_example(n, total):
        patches = _patches(window, lax.dynamic_slice_in_dim(inputs, n, 1, 0))[0]
        cotangent = lax.dynamic_slice_in_dim(cotangents, n, 1, 1)[:, 0]
        cotangent = jnp.moveaxis(cotangent, 0, 1).reshape(positions, -1)
        gradient = _exact_dot(patches, cotangent).reshape(kernel, vectors, channels)
        return total + jnp.sum(gradient**2, axis=1)

    return lax.fori_loop(0, batch, add_example, jnp.zeros((kernel, channels)))


def _squares_at_once(window, inputs, cotangents):
    """All gradients of the batch in one batched product; [K, O]."""
    gradients = jnp.einsum(
        "bkt,jbto->jbko",
        _patches(window, inputs),
        cotangents,
        precision=lax.Precision.HIGHEST,
    )
    return _sum_of_squares(gradients)


def _sum_of_squares(values):
    """Over the first two axes."""
    return jnp.sum(values.astype(jnp.float32) ** 2, axis=(0, 1))


def _exact_dot(left, right):
    return jnp.dot(left, right, precision=lax.Precision.HIGHEST)


def _example_by_example(model, variables, images, cotangents_of, mask):
    """For any model: every gradient of one example at a time."""
    parameters, rest = split_params(variables)

    def squares(example, real):
        def logits_of(params):
            return model.apply({"params": params, **rest}, example[None], train=False)

        logits, backward = jax.vjp(logits_of, parameters)
        (gradients,) = jax.vmap(backward)(cotangents_of(logits, real[None]))
        return jax.tree.map(lambda g: _sum_of_squares(g[:, None]), gradients)

    def add_example(total, example):
        return jax.tree.map(jnp.add, total, squares(*example)), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), parameters)
    return lax.scan(add_example, zeros, (images, mask))[0]


def _at(tree, path: Path):
    for name in path:
        tree = tree[name]
    return tree
