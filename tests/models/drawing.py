"""Random variables, plans and cheap compilation for tests of whole networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.models import zoo
from fuprune.models.resnet import ResNet
from fuprune.surgery import PrunePlan, trace_layers

# Each drawn plan is a network of new shapes: compiling it counts, not running it.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


def make_model(name, norm="batch", shape=(8, 8, 1)):
    return zoo.create(name, num_classes=5, input_shape=shape, norm=norm)


def small_model(norm="batch"):
    return ResNet(8, 5, (8, 8, 1), norm)


def variables_of(model, seed=0):
    """Variables with nothing left at its initial value, so that nothing cancels."""
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        name, shape = path[-1].key, leaf.shape
        if name == "kernel":
            values = generator.normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1]))
        elif name in ("scale", "var"):
            values = generator.uniform(0.5, 1.5, shape)
        else:
            values = generator.normal(size=shape) * 0.3
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes_of(model))


def apply_in_training(network, variables, params, inputs, mask):
    """`(outputs, new statistics)` with these parameters in the variables."""
    return network.apply(
        {**variables, "params": params},
        inputs,
        train=True,
        mask=mask,
        mutable=["batch_stats"],
    )


def shapes_of(model):
    image = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)


def images_for(model, number, seed=0):
    generator = np.random.default_rng(seed)
    return jnp.asarray(generator.normal(size=(number, *model.input_shape)), jnp.float32)


def plan_for(model, seed, share=0.5):
    """A plan that keeps about `share` of each layer, at least one channel."""
    generator = np.random.default_rng(seed)
    keep = {}
    for layer, found in trace_layers(model, None).items():
        size = found.channels
        kept = generator.random(size) < share
        kept[generator.integers(size)] = True
        keep[layer] = np.flatnonzero(kept)
    return PrunePlan(keep, {})


def evaluate(model, variables, images):
    """Logits of the model in evaluation, compiled without optimisation."""
    return run_quick(model.apply, variables, images)


def run_quick(function, *arguments):
    compiled = _compiled(
        function,
        jax.tree.structure(arguments),
        tuple((x.shape, x.dtype) for x in jax.tree.leaves(arguments)),
    )
    return compiled(*arguments)


@functools.cache
def _compiled(function, structure, shapes):
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    arguments = jax.tree.unflatten(structure, leaves)
    return jax.jit(function).lower(*arguments).compile(compiler_options=QUICK)
