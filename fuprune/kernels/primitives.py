"""Primitives with a kernel on CPU and a function of JAX everywhere else.

Every operand has G independent problems on its leading axis, and every result as well:
`vmap` then has an axis to grow, and needs no further primitive.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from fuprune.kernels import library


def make_primitive(
    name: str,
    abstract: Callable,
    function: Callable,
    attributes: Callable[..., Mapping[str, Any]] | None,
    *,
    multiple_results: bool = False,
) -> Any:
    """A primitive that computes `vmap(function)`, on CPU by a kernel.

    Its tangents are those of the function in JAX; kernels for them have other rules.

    Args:
      name: of the primitive, and of its FFI target.
      abstract: abstract operands and static parameters -> abstract results; by hand,
        because tracing `function` for them would double the time of a start.
      function: one problem in JAX, of operands and static parameters.
      attributes: static parameters -> those of the FFI call; None without a kernel.
      multiple_results: whether `function` returns a sequence.
    """
    primitive = jax.extend.core.Primitive(name)
    primitive.multiple_results = multiple_results
    primitive.def_abstract_eval(abstract)

    def in_jax(*operands, **static):
        return jax.vmap(functools.partial(function, **static))(*operands)

    # Outside of jit a primitive has to run by itself; compiled, it takes the kernel.
    @functools.partial(jax.jit, static_argnames="static")
    def run(*operands, static):
        return primitive.bind(*operands, **dict(static))

    primitive.def_impl(
        lambda *operands, **static: run(*operands, static=tuple(static.items()))
    )
    lower_to_xla = mlir.lower_fun(in_jax, multiple_results=multiple_results)
    mlir.register_lowering(primitive, lower_to_xla)
    if attributes is not None:

        def lower(context, *operands, **static):
            # Decided here, because only now is the platform known.
            if not library.ready():
                return lower_to_xla(context, *operands, **static)
            library.share_cores()
            call = jax.ffi.ffi_lowering(library.target(name))
            return call(context, *operands, **attributes(**static))

        mlir.register_lowering(primitive, lower, platform="cpu")

    def differentiate(primals, tangents, **static):
        tangents = tuple(map(ad.instantiate_zeros, tangents))
        _, tangents = jax.jvp(functools.partial(in_jax, **static), primals, tangents)
        return primitive.bind(*primals, **static), tangents

    ad.primitive_jvps[primitive] = differentiate
    batching.primitive_batchers[primitive] = functools.partial(batch, primitive)
    return primitive


def bind_one(primitive: Any, *operands: jax.Array, **static) -> Any:
    """The result of one problem, G = 1, whose operands have no leading axis for it."""
    results = primitive.bind(
        *(jax.lax.expand_dims(operand, (0,)) for operand in operands), **static
    )
    return jax.tree.map(lambda result: jax.lax.squeeze(result, (0,)), results)


def batch(primitive: Any, operands: Sequence, dimensions: Sequence, **static):
    """The batching rule: a batch is as many more independent problems."""
    pairs = list(zip(operands, dimensions, strict=True))
    size = next(operand.shape[axis] for operand, axis in pairs if axis is not None)
    merged = [_to_leading(operand, axis, size) for operand, axis in pairs]
    results = jax.tree.map(
        lambda result: result.reshape(size, -1, *result.shape[1:]),
        primitive.bind(*merged, **static),
    )
    return results, jax.tree.map(lambda _: 0, results)


def _to_leading(operand: jax.Array, axis: int | None, size: int) -> jax.Array:
    """Merges the axis of a batch, or copies for want of one: [size * G, ...]."""
    if axis is None:
        operand = jnp.broadcast_to(operand, (size, *operand.shape))
    else:
        operand = jnp.moveaxis(operand, axis, 0)
    return operand.reshape(-1, *operand.shape[2:])
