"""A masked and a compacted network train alike, round by round, in a federation."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate
from fuprune.federated.server import fed_avg
from fuprune.federated.train import fit
from fuprune.models import zoo
from fuprune.surgery import compact, mask
from tests.models import drawing
from tests.tiny import tiny_dataset, tiny_variables


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
        form = dict(num_classes=4, input_shape=(6, 6, 1), dtype=jnp.float64)
        model = zoo.create(name, **form)
        plan = drawing.plan_for(model, seed, share)
        variables = jax.tree.map(np.float64, tiny_variables(model))
        data = federate(tiny_dataset(96), np.array_split(np.arange(96), 3))
        optimizer = optax.chain(
            optax.add_decayed_weights(5e-4),
            optax.sgd(0.005, momentum=0.9, nesterov=True),
        )
        pairs = compact(model, variables, plan), (model, mask(model, variables, plan))
        losses = []
        for net, values in pairs:
            algorithm = fed_avg(net, client_optimizer=optimizer, batch_size=32)
            state, how = algorithm.init(values), dict(cohort_size=2, rounds=10)
            result = fit(algorithm, state, data, key=jax.random.key(1), **how)
            losses.append([record.metrics["loss"] for record in result.history])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    assert losses[0][-1] < losses[0][0]
