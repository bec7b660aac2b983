"""A masked and a compacted network train alike, round by round, in a federation."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate, sample_cohort
from fuprune.federated.server import fed_avg
from fuprune.federated.train import fit
from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.surgery import PrunePlan, compact, mask, trace_layers
from tests.models import drawing
from tests.tiny import tiny_dataset, tiny_variables


@pytest.mark.slow
def test_masked_and_compacted_train_alike_in_a_federation():
    """Ten rounds of FedAvg: the same losses, round by round."""
    model = zoo.create("resnet8", num_classes=4, input_shape=(6, 6, 1))
    _check_federated_training(model, _half_of_every_layer(model))


@pytest.mark.slow
@hypothesis.settings(max_examples=2)
@hypothesis.given(seed=st.integers(0, 10**6), share=st.sampled_from([0.4, 0.7]))
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_net_trains_alike_for_ten_rounds_after_any_plan(name, seed, share):
    """Side by side, in float64.

    In float32 the deepest networks turn one unit of rounding into tenths of the loss
    within ten rounds, whatever is compared. So does VGG19 even in float64 if a batch is
    8 images, of which its last layers see one pixel each.
    """
    with jax.enable_x64(True):
        model = zoo.create(
            name, num_classes=4, input_shape=(6, 6, 1), dtype=jnp.float64
        )
        plan = drawing.plan_for(model, seed, share)
        _check_federated_training(model, plan, images=96, batch_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_net_masked_and_compacted_has_the_same_weights_after_each_round(name):
    """Ten rounds in float64, each from the same state, for every network.

    In float32 one step of VGG19 moves some weights by 5e-4 more or less, depending on
    the processor: its last norms are over few numbers.
    """
    with jax.enable_x64(True):
        model = zoo.create(
            name, num_classes=4, input_shape=(6, 6, 1), dtype=jnp.float64
        )
        images = jnp.zeros((1, 6, 6, 1))
        variables = jax.tree.map(
            lambda leaf: leaf.astype(jnp.float64),
            init_variables(model, jax.random.key(0), images),
        )
        data = federate(tiny_dataset(96), np.array_split(np.arange(96), 3))
        plan = _half_of_every_layer(model)
        small, _ = compact(model, variables, plan)
        masked, compacted = (
            fed_avg(net, client_optimizer=optax.sgd(0.02, momentum=0.9), batch_size=32)
            for net in (model, small)
        )
        state, losses = masked.init(mask(model, variables, plan)), []
        for number in range(10):
            key = jax.random.fold_in(jax.random.key(1), number)
            cohort = sample_cohort(key, data, 2)
            start = compact(model, state.variables, plan)[1]
            state, info = masked.round(state, cohort, key)
            other, other_info = compacted.round(compacted.init(start), cohort, key)
            np.testing.assert_allclose(other_info.loss, info.loss, rtol=1e-9)
            chex.assert_trees_all_close(
                compact(model, state.variables, plan)[1]["params"],
                other.variables["params"],
                atol=1e-9,
                rtol=1e-7,
            )
            losses.append(float(info.loss))
        assert losses[-1] < losses[0]


def _half_of_every_layer(model):
    generator = np.random.default_rng(0)
    keep = {}
    for layer, found in trace_layers(model, None).items():
        width = found.channels
        keep[layer] = np.sort(generator.choice(width, width // 2, replace=False))
    return PrunePlan(keep)


def _check_federated_training(model, plan, *, images=24, batch_size=8):
    variables = jax.tree.map(
        lambda leaf: leaf.astype(model.dtype), tiny_variables(model)
    )
    data = federate(tiny_dataset(images), np.array_split(np.arange(images), 3))
    losses = []
    pairs = (compact(model, variables, plan), (model, mask(model, variables, plan)))
    for net, values in pairs:
        algorithm = fed_avg(
            net,
            client_optimizer=optax.chain(
                optax.add_decayed_weights(5e-4),
                optax.sgd(0.005, momentum=0.9, nesterov=True),
            ),
            batch_size=batch_size,
        )
        state, key = algorithm.init(values), jax.random.key(1)
        result = fit(algorithm, state, data, key=key, cohort_size=2, rounds=10)
        losses.append([record.metrics["loss"] for record in result.history])
    print(type(model).__name__, model.depth, np.max(np.abs(np.subtract(*losses))))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    assert losses[0][-1] < losses[0][0]
