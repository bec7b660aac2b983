"""Networks of every convention train, evaluate and hash like those of the zoo."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fuprune.data.federated import federate, whole_cohort
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.server import fed_avg, fed_sgd
from fuprune.models.adapt import adapt, variables_of
from fuprune.models.fresh import init_variables
from tests.tiny import TinyNet, tiny_dataset

IMAGES = np.random.default_rng(0).random((5, 6, 6, 1), np.float32)


class Deterministic(nn.Module):
    """`__call__(x, *, deterministic)`; the norm is told by an attribute."""

    use_running_average: bool = True

    @nn.compact
    def __call__(self, x, *, deterministic=True):
        """[B, H, W, 1] -> [B, 4]."""
        x = nn.Conv(6, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(self.use_running_average, momentum=0.8)(x))
        x = nn.Dropout(0.2)(x.reshape(len(x), -1), deterministic=deterministic)
        return nn.Dense(4)(x)


class Masked(nn.Module):
    """`__call__(x, train, mask)` with Flax's own masked BatchNorm."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        """[B, H, W, 1] -> [B, 4]."""
        where = None if mask is None else (mask != 0)[:, None, None, None]
        x = nn.Conv(6, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x, mask=where))
        return nn.Dense(4)(x.reshape(len(x), -1))


class Modern(nnx.Module):
    """NNX, with a list, a norm and dropout."""

    def __init__(self, *, rngs):
        """Build the layers."""
        self.layers = nnx.List(
            [
                nnx.Conv(1, 6, (3, 3), rngs=rngs),
                nnx.BatchNorm(6, momentum=0.8, rngs=rngs),
            ]
        )
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(6 * 36, 4, rngs=rngs)

    def __call__(self, x):
        """[B, H, W, 1] -> [B, 4]."""
        for layer in self.layers:
            x = layer(x)
        return self.head(self.dropout(jax.nn.relu(x.reshape(len(x), -1))))


def linear(variables, images):
    """A pure function."""
    params = variables["params"]
    return images.reshape(len(images), -1) @ params["kernel"] + params["bias"]


def linear_init(key, images):
    """Its variables."""
    kernel = 0.1 * jax.random.normal(key, (images[0].size, 4))
    return {"params": {"kernel": kernel, "bias": jnp.zeros(4)}}


class Careful(nnx.Module):
    """NNX: a constructor that computes numbers, and a call that asks for its keys."""

    def __init__(self, rngs):
        """Build the layers."""
        self.rates = tuple(jnp.linspace(0, 0.1, 3).tolist())
        self.head = nnx.Linear(36, 4, rngs=rngs)

    def __call__(self, x, *, rngs):
        """[B, H, W, 1] -> [B, 4]."""
        del rngs
        return self.head(x.reshape(len(x), -1)) + self.rates[0]


class Others(nn.Module):
    """Others' habits: a mode that is field and argument, another stream, an axis."""

    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x, deterministic=None):
        """[B, H, W, 1] -> [B, 4] and features."""
        off = nn.merge_param("deterministic", self.deterministic, deterministic)
        x = nn.Conv(6, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(off, momentum=0.8, axis_name="batch")(x))
        if not off:
            x = x * (0.5 + jax.random.uniform(self.make_rng("drop_path")))
        x = nn.Dropout(0.1, deterministic=off)(x.mean((1, 2)))
        return nn.Dense(4)(x), {"features": x}


NETWORKS = {
    "nnx_careful": lambda: adapt(Careful),
    "others": lambda: adapt(Others()),
    "deterministic": lambda: adapt(Deterministic()),
    "masked": lambda: adapt(Masked()),
    "nnx": lambda: adapt(Modern),
    "function": lambda: adapt(linear, init=linear_init),
    "zoo": lambda: adapt(TinyNet()),
}


def start(network, seed=0):
    """Initial variables."""
    return network.init(jax.random.key(seed), IMAGES)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_convention_trains_and_is_evaluated(name):
    """FedAvg learns the tiny data, and the evaluator sees it."""
    network = NETWORKS[name]()
    dataset = tiny_dataset(64)
    data = federate(dataset, [np.arange(0, 21), np.arange(21, 64)])
    algorithm = fed_avg(
        network,
        client_optimizer=optax.adam(0.03),
        local_epochs=3,
        batch_size=8,
        backend="map",
    )
    variables = start(network)
    state = algorithm.init(variables)
    evaluate = make_evaluator(network, dataset, num_classes=4)
    before = evaluate(variables).loss
    for number in range(3):
        state, info = algorithm.round(state, whole_cohort(data), jax.random.key(number))
    chex.assert_trees_all_equal_shapes(state.variables, variables)
    assert int(info.participants) == 2
    assert evaluate(state.variables).loss < before
    logits, new = network.apply(
        variables,
        IMAGES,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(0)},
    )
    assert logits.shape == (len(IMAGES), 4)
    # As Flax does: also if there are none to name.
    assert set(new) == {"batch_stats"} & set(variables)
    for collection, old in variables.items():
        moved = jax.tree.map(
            lambda a, b: np.any(a != b), state.variables[collection], old
        )
        assert any(jax.tree.leaves(moved)), collection


@pytest.mark.parametrize("name", NETWORKS)
def test_an_adapted_network_is_static_and_equal_to_its_equal(name):
    """So that a second adaptation compiles nothing anew."""
    first, second = NETWORKS[name](), NETWORKS[name]()
    assert hash(first) == hash(second) and first == second
    assert adapt(first) is first
    run = jax.jit(lambda net, v, x: net.apply(v, x, train=False), static_argnums=0)
    variables = start(first)
    run(first, variables, IMAGES)
    run(second, variables, IMAGES)
    assert run._cache_size() == 1


def test_an_nnx_module_comes_out_as_it_went_in():
    """Its arrays by name, and the same function from them."""
    module = Modern(rngs=nnx.Rngs(3))
    network, variables = adapt(module), variables_of(module)
    assert set(variables) == {"params", "batch_stats"}
    assert set(variables["params"]["layers"]) == {"0", "1"}
    module.eval()
    expected = module(IMAGES)
    np.testing.assert_allclose(
        network.apply(variables, IMAGES, train=False), expected, rtol=1e-6
    )
    again = network.module(variables)
    assert isinstance(again, Modern)
    again.eval()
    np.testing.assert_allclose(again(IMAGES), expected, rtol=1e-6)
    fresh = network.init(jax.random.key(0), IMAGES)
    chex.assert_trees_all_equal_shapes_and_dtypes(fresh, variables)
    assert np.any(fresh["params"]["head"]["kernel"] != module.head.kernel[...])


@pytest.mark.parametrize("name", ["others", "deterministic", "nnx"])
def test_dropout_draws_from_the_key_in_training_and_not_in_evaluation(name):
    network = NETWORKS[name]()
    variables = start(network)

    def logits(seed, train=True):
        options = dict(mutable=["batch_stats"]) if train else {}
        found = network.apply(
            variables,
            IMAGES,
            train=train,
            rngs={"dropout": jax.random.key(seed)},
            **options,
        )
        return np.asarray(found[0] if train else found)

    np.testing.assert_array_equal(logits(0), logits(0))
    assert np.any(logits(0) != logits(1))
    np.testing.assert_array_equal(logits(0, train=False), logits(1, train=False))


@pytest.mark.parametrize("name", ["deterministic", "nnx"])
@pytest.mark.parametrize("make", [fed_avg, fed_sgd])
def test_a_norm_that_takes_no_mask_never_sees_another_clients_images(name, make):
    """Not as padding of a last batch, nor in place of images not drawn."""
    network, optimizer = NETWORKS[name](), optax.sgd(0.1)
    options = dict(client_optimizer=optimizer, batch_size=4)
    if make is fed_sgd:
        options = dict(server_optimizer=optimizer, microbatch=4)
    algorithm = make(network, backend="vmap", **options)
    dataset = tiny_dataset(40)
    ends = []
    for value in (0, 255):
        images = dataset.images.copy()
        # Only the client of the second row takes part; the first image is what an
        # index of zero, the usual padding, would show.
        images[:6] = value
        data = federate(
            dataset._replace(images=images), [np.arange(6), np.arange(6, 40)[:11]]
        )
        cohort = whole_cohort(data)
        cohort = cohort._replace(lengths=cohort.lengths.at[0].set(0))
        state = algorithm.init(start(network))
        ends.append(algorithm.round(state, cohort, jax.random.key(1))[0].variables)
    chex.assert_trees_all_equal(*ends)


def test_fresh_variables_are_made_inside_other_programs_too():
    model, key, images = Masked(), jax.random.key(0), jnp.asarray(IMAGES)
    make = functools.partial(init_variables, model)
    made = make(key, images)
    chex.assert_trees_all_equal_shapes_and_dtypes(
        made, jax.eval_shape(make, key, images), jax.jit(make)(key, images)
    )
    chex.assert_trees_all_close(made, jax.jit(make)(key, images), rtol=1e-6)


def test_what_is_no_network_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="is 3, which is no network"):
        adapt(3)
    with pytest.raises(ValueError, match="Dense.*, which is no network"):
        adapt(nn.Dense)
    with pytest.raises(ValueError, match="no init; give it one"):
        adapt(linear).init(jax.random.key(0), IMAGES)
