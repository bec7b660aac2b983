"""Tracing and wiring make the same slim network of each of the zoo's, for any plan."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune import surgery
from fuprune.models import zoo
from fuprune.surgery import PrunePlan, cutting, wiring
from tests import reference_jaxpr
from tests.models import drawing
from tests.surgery.test_tracing import assert_close

IMAGES, CLASSES = 4, 5
# Of each layer: a part, nothing said in the plan, one channel, all. Hypothesis begins
# with the first: half of every layer.
SHARES = (0.5, None, 0.0, 0.1, 0.3, 0.7, 0.9, 1.0)
FEW, MANY, ONE = (0.0, 0.1, 0.3), (0.5, 0.7, 0.9), (None, 0.0)


@functools.cache
def network(name):
    """A network of the zoo, its shapes, and variables of which no two are the same."""
    model = drawing.make_model(name)
    shapes = drawing.shapes_of(model)
    numbers = jax.tree.map(
        lambda x: np.arange(1, x.size + 1, dtype=np.float32).reshape(x.shape), shapes
    )
    return model, shapes, numbers


def plans(name):
    """Plans that treat every layer in its own way."""
    model = network(name)[0]
    layers, wires = zoo.layer_names(model), model.wiring()

    def make(seed, shares):
        generator = np.random.default_rng(seed)
        keep = {}
        for layer, share in zip(layers, shares, strict=True):
            order = generator.permutation(wires[layer].width)
            if share is not None:
                keep[layer] = np.sort(order[: max(1, round(share * len(order)))])
        return PrunePlan(keep)

    few = st.sampled_from([SHARES, FEW, MANY, ONE])
    shares = few.flatmap(
        lambda some: st.lists(
            st.sampled_from(some), min_size=len(layers), max_size=len(layers)
        )
    )
    return st.builds(make, st.integers(0, 10**6), shares)


def check_structure(name, plan):
    """The same variables are left, and the same are filled; returns both networks."""
    model, shapes, numbers = network(name)
    traced = cutting.plan_cuts(model, shapes, plan)
    wired = wiring.plan_cuts(model, plan)
    assert traced.shapes == wired.shapes
    assert set(traced.cuts) == set(wired.cuts) == set(traced.network.cuts)
    for fill in (False, True):
        jax.tree.map(
            np.testing.assert_array_equal,
            traced.variables(numbers, fill),
            wired.variables(numbers, fill),
        )
    return traced.network, wired.network


def program(model, variables):
    """Logits, and a training step's loss, statistics and gradients, traced."""
    images = drawing.images_for(model, IMAGES)
    mask = jnp.ones(IMAGES).at[-1].set(0.0)
    labels = np.eye(CLASSES, dtype=np.float32)[np.arange(IMAGES) % CLASSES]

    def loss(params, rest):
        logits, new = model.apply(
            {"params": params, **rest}, images, train=True, mask=mask,
            mutable=["batch_stats"],
        )  # fmt: skip
        losses = optax.softmax_cross_entropy(logits, labels)
        return jnp.sum(losses * mask), dict(new)

    def step(variables):
        rest = {"batch_stats": variables["batch_stats"]}
        grad = jax.value_and_grad(loss, has_aux=True)
        (value, new), gradients = grad(variables["params"], rest)
        logits = model.apply(variables, images, train=False)
        return logits, value, {"params": gradients, **new}

    return reference_jaxpr.trace(step, variables)


@functools.cache
def uncut(name):
    """One program for the masked networks of all plans."""
    model = network(name)[0]
    variables = drawing.variables_of(model)
    return program(model, variables), variables


def check_outputs(name, plan):
    """Both slim networks and the masked one give the same, and train alike."""
    model = network(name)[0]
    traced, small = check_structure(name, plan)
    masked_program, variables = uncut(name)
    cut = surgery.compact(model, variables, plan)[1]
    expected = program(small, cut)(cut)
    assert_close(program(traced, cut)(cut), expected, tolerance=1e-10)
    logits, loss, trees = masked_program(surgery.mask(model, variables, plan))
    trees = surgery.compact(model, trees, plan)[1]
    assert_close((logits, loss, trees), expected, tolerance=1e-10)


def drawn(check, name, number):
    """Checks as many plans of a network."""

    @hypothesis.settings(max_examples=number)
    @hypothesis.given(plan=plans(name))
    def check_plan(plan):
        check(name, plan)

    check_plan()


@pytest.mark.parametrize("name", zoo.MODELS)
def test_tracing_cuts_what_wiring_cuts(name):
    drawn(check_structure, name, 2)


@pytest.mark.parametrize(("name", "number"), [("resnet8", 2), ("vgg11", 1)])
def test_tracing_computes_what_wiring_computes(name, number):
    drawn(check_outputs, name, number)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "resnet8" else pytest.param(name, marks=pytest.mark.slow)
        for name in zoo.MODELS
    ],
)
def test_compiled_tracing_answers_as_wiring_for_no_more_work(name):
    model = network(name)[0]
    plan = drawing.plan_for(model, 1)
    nets = check_structure(name, plan)
    cut = surgery.compact(model, drawing.variables_of(model), plan)[1]
    images = drawing.images_for(model, IMAGES)
    programs = [
        jax.jit(lambda v, x, net=net: net.apply(v, x, train=False))
        .lower(cut, images)
        .compile()
        for net in nets
    ]
    assert_close(*(program(cut, images) for program in programs), tolerance=1e-5)
    works = [program.cost_analysis()["flops"] for program in programs]
    assert works[0] <= 1.05 * works[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.MODELS)
def test_tracing_cuts_what_wiring_cuts_in_many_plans(name):
    drawn(check_structure, name, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.MODELS)
def test_tracing_computes_what_wiring_computes_in_many_plans(name):
    drawn(check_outputs, name, 8)
