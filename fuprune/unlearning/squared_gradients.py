"""Sums of squared per-example gradients of a Flax model, without forming them all.

In evaluation mode examples do not mix, so one backward pass over a batch yields every
example's cotangent at every layer. A convolution's gradient for one example is then the
product of its input patches and its output cotangent, which is squared and added up
example by example; where the image is small, pairs of its positions are multiplied
instead, for all examples together. Other modules get a copy of their parameters for
each example.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class _Layer(NamedTuple):
    """How the parameters of one module are reached."""

    kind: str  # "conv", "dense" or "copied"
    shape: tuple[int, ...] = ()  # of the output, batch included
    dtype: Any = jnp.float32  # likewise
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
      model: a Flax module, called as `apply(variables, images, train=False)`.
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
        chosen = jnp.where(mask[:, None, None] > 0, chosen, 0.0)
        return jnp.moveaxis(chosen, 1, 0).astype(logits.dtype)  # [J, B, U]

    layers = _find_layers(model, variables, images)
    if layers is None:
        return _example_by_example(model, variables, images, cotangents_of, mask)
    outputs = {
        path: jnp.zeros(layer.shape, layer.dtype)
        for path, layer in layers.items()
        if layer.kind != "copied"
    }
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
    squares: dict[str, Any] = {}
    for path, gradient in by_copy.items():
        _put(squares, path, jax.tree.map(_sum_of_squares, gradient))
    for path, cotangent in by_output.items():
        has_bias = "bias" in _at(variables["params"], path)
        square = _layer_squares(layers[path], inputs[path], cotangent, has_bias)
        _put(squares, path, square)
    return squares


def _find_layers(model, variables, images) -> dict[Path, _Layer] | None:
    """The modules that own parameters, by path; None if that is not all there is.

    Parameters used twice, or outside a call on a batch, need the whole gradient of an
    example before it is squared.
    """
    found: dict[Path, _Layer] = {}
    supported = True

    def watch(call, args, kwargs, context):
        nonlocal supported
        module = context.module
        output = call(*args, **kwargs)
        params = module.variables.get("params", {})
        owns = any(not isinstance(leaf, Mapping) for leaf in params.values())
        if context.method_name == "__call__" and owns:
            once = not any(module.path[: len(path)] == path for path in found)
            whole = bool(module.path) and _shapes(params) == _shapes(
                _at(variables["params"], module.path)
            )
            batched = args and all(
                getattr(x, "shape", ())[:1] == images.shape[:1]
                for x in (args[0], output)
            )
            supported = bool(supported and once and whole and batched)
            if supported:
                found[module.path] = _describe(module, args, kwargs, output)
        return output

    def run():
        with nn.intercept_methods(watch):
            return model.apply(variables, images, train=False)

    jax.eval_shape(run)
    leaves = jax.tree_util.tree_leaves_with_path(variables["params"])
    names = [tuple(key.key for key in path) for path, _ in leaves]
    covered = all(any(name[: len(p)] == p for p in found) for name in names)
    return found if supported and covered else None


def _shapes(params):
    return jax.tree.map(jnp.shape, params)


def _describe(module, args, kwargs, output) -> _Layer:
    plain = len(args) == 1 and not kwargs
    if plain and type(module) is nn.Dense and args[0].ndim == 2:
        return _Layer("dense", output.shape, output.dtype)
    if plain and type(module) is nn.Conv:
        sizes = tuple(np.atleast_1d(module.kernel_size).tolist())
        pairs = _padding_pairs(module, args[0].shape, sizes)
        simple = (
            len(sizes) == 2
            and args[0].ndim == 4
            and module.feature_group_count == 1
            and module.mask is None
            and module.input_dilation in (None, 1, (1, 1))
            and module.kernel_dilation in (None, 1, (1, 1))
        )
        if simple and pairs is not None:
            window = (sizes, _pair(module.strides or 1), pairs)
            return _Layer("conv", output.shape, output.dtype, window)
    return _Layer("copied")


def _padding_pairs(module, shape, sizes):
    padding = module.padding
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID") or len(shape) != 4:
            return None
        strides = _pair(module.strides or 1)
        pairs = lax.padtype_to_pads(shape[1:3], sizes, strides, padding)
        return tuple((int(low), int(high)) for low, high in pairs)
    if isinstance(padding, int):
        padding = (padding,) * len(sizes)
    return tuple(_pair(side) for side in padding)


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
        state = {k: v for k, v in module.variables.items() if k != "params"}
        unbound = module.clone(parent=None, name=None)

        def one_example(params, example):
            output = unbound.apply(
                {"params": params, **state}, example[None], *args[1:], **kwargs
            )
            return output[0]

        in_copy = True
        try:
            return jax.vmap(one_example)(copies[module.path], args[0])
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
    rest = {k: v for k, v in variables.items() if k != "params"}

    def squares(example, real):
        def logits_of(params):
            return model.apply({"params": params, **rest}, example[None], train=False)

        logits, backward = jax.vjp(logits_of, variables["params"])
        (gradients,) = jax.vmap(backward)(cotangents_of(logits, real[None]))
        return jax.tree.map(lambda g: _sum_of_squares(g[:, None]), gradients)

    def add_example(total, example):
        return jax.tree.map(jnp.add, total, squares(*example)), None

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.float32), variables["params"]
    )
    return lax.scan(add_example, zeros, (images, mask))[0]


def _at(tree, path: Path):
    for name in path:
        tree = tree[name]
    return tree


def _put(tree: dict[str, Any], path: Path, value) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
