"""Every kernel under every transformation of JAX is what JAX computes by itself."""

import jax
import jax.numpy as jnp
import pytest

from fuprune.kernels import convolution, normalisation
from tests.kernels.test_convolution import SMALL, assert_close, layer, needs_onednn
from tests.kernels.test_normalisation import MASK, operands, scattered


def norm(kernel, mask=MASK, relu=True, stream=None):
    return lambda data, scale, bias, *residual: kernel(
        data, scale, bias, mask, *residual, relu=relu, stream=stream
    )


BATCH_NORMS = (normalisation.batch_norm, normalisation.batch_norm_in_jax)
CONVOLUTIONS = (convolution.convolve, jax.lax.conv_general_dilated)
PLACED = scattered(5, 6, 8)
# Name -> (by kernels, by JAX, operands).
OPERATIONS = {
    "convolution": (*map(layer, CONVOLUTIONS), SMALL),
    "strided convolution": (
        *(layer(c, (2, 1), ((0, 2), (1, 0))) for c in CONVOLUTIONS),
        SMALL,
    ),
    "norm": (*map(norm, BATCH_NORMS), operands((3, 4, 4, 5), residual=True)),
    "norm alone": (
        *(norm(f, mask=None, relu=False) for f in BATCH_NORMS),
        operands((3, 4, 4, 5), residual=False),
    ),
    "placed norm": (
        *(norm(f, stream=PLACED) for f in BATCH_NORMS),
        operands((3, 4, 4, 5), residual=True, held=6),
    ),
}


def curved(function):
    """A scalar whose second derivatives are all there."""
    return lambda *operands: sum(
        jnp.mean(jnp.sin(x)) + jnp.mean(x**2)
        for x in jax.tree.leaves(function(*operands))
    )


def gradient(function, operands):
    return jax.value_and_grad(curved(function), tuple(range(len(operands))))


def grad_of_grad(function, operands):
    places = tuple(range(len(operands)))
    first = jax.grad(curved(function), places)
    return jax.grad(lambda *x: sum(jnp.sum(leaf**2) for leaf in first(*x)), places)


def along(function, operands):
    """The derivative in one direction, and that of the gradient."""
    direction = tuple(map(jnp.cos, operands))
    first = jax.grad(curved(function), tuple(range(len(operands))))

    def both(*operands):
        return tuple(
            jax.jvp(f, operands, direction)[1] for f in (curved(function), first)
        )

    return both


def mapped(*axes):
    """`vmap`, of operands that are copied and changed along some axes."""

    def transform(function, operands):
        chosen = [
            axis if axis is None else min(axis, x.ndim)
            for x, axis in zip(operands, axes * len(operands), strict=False)
        ]
        if set(chosen) == {None}:
            chosen = [0]
        stacked = [
            x if axis is None else jnp.stack([x, jnp.sin(x)], axis)
            for x, axis in zip(operands, chosen, strict=True)
        ]
        inner = jax.vmap(gradient(function, operands), tuple(chosen))
        return lambda *_: inner(*stacked)

    return transform


def mapped_twice(function, operands):
    inner = jax.vmap(gradient(function, operands), (0, *(None,) * (len(operands) - 1)))
    first = jnp.stack([jnp.stack([operands[0], jnp.sin(operands[0])])] * 2)
    others = [jnp.stack([x, jnp.cos(x)]) for x in operands[1:]]
    return lambda *_: jax.vmap(inner)(first, *others)


def looped(loop):
    def transform(function, operands):
        step = gradient(function, operands)

        def descend(values):
            return jax.tree.map(jnp.subtract, values, step(*values)[1])

        def run(*operands):
            if loop == "scan":
                return jax.lax.scan(
                    lambda x, _: (descend(x), x[0][0]), operands, length=2
                )
            if loop == "map":
                stacked = jax.tree.map(lambda x: jnp.stack([x, -x]), operands)
                return jax.lax.map(descend, stacked)
            return jax.lax.fori_loop(0, 2, lambda _, x: descend(x), operands)

        return run

    return transform


TRANSFORMATIONS = {
    "gradient": gradient,
    "grad of grad": grad_of_grad,
    "direction": along,
    "vmap": mapped(0),
    "vmap per example": mapped(0, None),
    "vmap of the others": mapped(None, 0),
    "vmap along other axes": mapped(2, 0),
    "vmap twice": mapped_twice,
    **{loop: looped(loop) for loop in ("scan", "map", "fori_loop")},
}


@needs_onednn
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernels_equal_jax_under_transformations(operation, transformation):
    ours, theirs, operands = OPERATIONS[operation]
    transform = TRANSFORMATIONS[transformation]
    actual, expected = (
        jax.jit(transform(function, operands))(*operands) for function in (ours, theirs)
    )
    assert_close(actual, expected, tolerance=3e-5)


@needs_onednn
@pytest.mark.parametrize("operation", OPERATIONS)
def test_outside_of_jit_a_kernel_computes_the_same(operation):
    ours, _, operands = OPERATIONS[operation]
    run = gradient(ours, operands)
    assert_close(run(*operands), jax.jit(run)(*operands))


def lowered_text(operation, *platforms):
    ours, _, operands = OPERATIONS[operation]
    traced = jax.jit(gradient(ours, operands)).trace(*operands)
    return traced.lower(lowering_platforms=platforms).as_text()


@needs_onednn
@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernels_run_on_the_cpu_and_xla_elsewhere(operation):
    assert "fuprune" in lowered_text(operation, "cpu")
    assert "fuprune" not in lowered_text(operation, "cuda")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_the_library_xla_computes(operation, without_onednn):
    assert "fuprune" not in lowered_text(operation, "cpu")


@pytest.mark.parametrize("module", [convolution, normalisation])
def test_an_unknown_implementation_is_refused(module):
    with pytest.raises(ValueError, match="'cudnn'.*xla, onednn"):
        module.implementation("cudnn")
