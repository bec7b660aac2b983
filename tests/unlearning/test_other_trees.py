"""Networks whose parameters are no nested dictionaries: lists and named tuples."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.errors import UnlearnError
from fuprune.federated.server import fed_avg
from fuprune.models.adapt import adapt
from fuprune.unlearning.fed_eraser import Replay
from fuprune.unlearning.head import head_classes, head_name
from fuprune.unlearning.request import ForgetRequest
from tests.unlearning.small import forget_by, small_data, train_and_keep

LAYOUT = ("NHWC", "HWIO", "NHWC")


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def apply(variables, images):
    first, second, (head,) = variables["params"]
    for layer in (first, second):
        images = jax.lax.conv_general_dilated(
            images, layer.kernel, (1, 1), "SAME", dimension_numbers=LAYOUT
        )
        images = jax.nn.relu(images + layer.bias)
    return jnp.mean(images, axis=(1, 2)) @ head["kernel"] + head["bias"]


def init(key, images):
    del images
    keys = jax.random.split(key, 3)

    def layer(key, *shape):
        return Layer(jax.random.normal(key, shape) / 3, jnp.full(shape[-1:], 0.1))

    head = layer(keys[2], 4, 4)._asdict()
    return {"params": [layer(keys[0], 3, 3, 1, 4), layer(keys[1], 3, 3, 4, 4), (head,)]}


MODEL = adapt(apply, init=init)
VARIABLES = init(jax.random.key(5), None)
HEAD = "2/0"


@pytest.mark.parametrize("request_", [(1,), ForgetRequest(clients=(2,))])
def test_fisher_noises_a_network_of_lists(request_):
    given = (MODEL, VARIABLES, small_data(), request_)
    result = forget_by("fisher", *given, head=HEAD)
    chex.assert_trees_all_equal_structs(result.variables, VARIABLES)
    chex.assert_tree_all_finite(result.variables)
    before, after = (tree["params"][0].kernel for tree in (VARIABLES, result.variables))
    assert not np.any(before == after)


def test_regrowing_a_network_of_lists_keeps_its_shallow_layers():
    result = forget_by(
        "regrow", MODEL, VARIABLES, small_data(), (1,), share=0.5, head=HEAD
    )
    chex.assert_trees_all_equal_structs(result.variables, VARIABLES)
    old, new = VARIABLES["params"], result.variables["params"]
    chex.assert_trees_all_equal(new[0], old[0])
    assert not np.any(new[1].kernel == old[1].kernel)
    assert not np.any(new[2][0]["kernel"] == old[2][0]["kernel"])
    assert result.notes["fresh_layers"] == ["1"]


def test_the_head_is_found_and_its_rows_are_set_in_any_tree():
    images = jnp.zeros((2, 6, 6, 1))
    assert head_name(MODEL, VARIABLES, images) == HEAD
    assert head_classes(VARIABLES, HEAD) == 4
    result = forget_by("mask_logit", MODEL, VARIABLES, small_data(), (1,), head=HEAD)
    chex.assert_trees_all_equal_structs(result.variables, VARIABLES)
    assert jnp.argmax(MODEL.apply(result.variables, images), axis=1).tolist() != [1, 1]
    assert result.variables["params"][2][0]["bias"].tolist()[1] == -1000
    with pytest.raises(UnlearnError, match="no dense layer 'head', only 0, 1, 2;"):
        head_classes(VARIABLES)
    with pytest.raises(UnlearnError, match="no dense layer ''"):
        head_classes({"params": jnp.ones((36, 4))}, "")


def test_replaying_the_rounds_of_a_network_of_lists():
    algorithm = fed_avg(
        MODEL, client_optimizer=optax.sgd(0.05), batch_size=8, keep_updates=True
    )
    data, request = small_data(), ForgetRequest(clients=(2,))
    trained, kept = train_and_keep(algorithm, VARIABLES, data, [range(4)] * 2)
    options = dict(kept_rounds=kept, replay=Replay(algorithm), variant="released")
    result = forget_by("fed_eraser", MODEL, trained, data, request, **options)
    chex.assert_trees_all_equal_structs(result.variables, VARIABLES)
    chex.assert_tree_all_finite(result.variables)
