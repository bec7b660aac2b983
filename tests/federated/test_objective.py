"""Any loss and any teacher, in both algorithms, the same in every backend."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune.data.federated import federate, take_clients, whole_cohort
from fuprune.federated.client import Batch
from fuprune.federated.objective import classification, distillation
from fuprune.federated.server import fed_avg, fed_sgd
from tests import reference_objective as reference
from tests.tiny import tiny_dataset

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)


def echo(variables, images):
    """A teacher whose answers are the images themselves."""
    return images + 0 * variables["params"]


@pytest.mark.parametrize("temperature, weight", [(1.0, 1.0), (2.0, 0.7), (4.0, 0.0)])
@pytest.mark.parametrize("masked", [(), (3,), (0, 4)])
@settings(max_examples=20)
@given(student=LOGITS, teacher=LOGITS, label=st.integers(0, 4))
def test_distillation_equals_its_twin(
    temperature, weight, masked, student, teacher, label
):
    options = dict(temperature=temperature, weight=weight)
    variables = {"params": jnp.zeros(())}
    objective = distillation(echo, variables, masked_classes=masked, **options)
    batch = Batch(jnp.array([teacher]), jnp.array([label]), jnp.ones(1))
    found = objective.losses(objective.context, jnp.array([student]), batch)
    expected = reference.distillation_loss(
        student, teacher, label, masked=masked, **options
    )
    np.testing.assert_allclose(found, [expected], rtol=1e-4, atol=1e-4)


class Linear(nn.Module):
    """Logistic regression, any convention."""

    @nn.compact
    def __call__(self, images):
        """[B, H, W, 1] -> [B, 4]."""
        return nn.Dense(4)(images.reshape(len(images), -1))


def variables_of(seed):
    """Of `Linear`."""
    return Linear().init(jax.random.key(seed), jnp.zeros((1, 6, 6, 1)))


@pytest.fixture(scope="module")
def data():
    """Three clients, one of them empty."""
    return federate(
        tiny_dataset(20), [np.arange(0, 13), np.array([], int), np.arange(13, 20)]
    )


def test_a_taught_round_is_compiled_once_with_the_teacher_as_an_argument(data):
    """A second round traces nothing; the program holds no copy of the teacher."""
    traces = []

    def teacher(variables, images):
        traces.append(isinstance(variables["params"], jax.core.Tracer))
        return images.reshape(len(images), -1)[:, :4] + variables["params"]

    objective = distillation(teacher, {"params": jnp.zeros(4)})
    for algorithm in (
        fed_avg(Linear(), client_optimizer=optax.sgd(0.1), objective=objective),
        fed_sgd(Linear(), server_optimizer=optax.sgd(0.1), objective=objective),
    ):
        state = algorithm.init(variables_of(0))
        state, _ = algorithm.round(state, whole_cohort(data), jax.random.key(0))
        traced = len(traces)
        for number in range(2):
            cohort = take_clients(data, np.roll(np.arange(3), number))
            state, _ = algorithm.round(state, cohort, jax.random.key(number))
        assert len(traces) == traced
    assert traces and all(traces)


def test_a_plain_function_is_an_objective_and_the_default_is_the_cross_entropy(data):
    def cross_entropies(logits, batch):
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)

    ends = []
    for objective in (None, classification(), cross_entropies):
        algorithm = fed_sgd(
            Linear(), server_optimizer=optax.sgd(0.3), objective=objective
        )
        state = algorithm.init(variables_of(0))
        ends.append(algorithm.round(state, whole_cohort(data), jax.random.key(0))[0])
    chex.assert_trees_all_close(ends[0], ends[1], rtol=1e-6)
    chex.assert_trees_all_close(ends[0], ends[2], rtol=1e-5, atol=1e-7)
