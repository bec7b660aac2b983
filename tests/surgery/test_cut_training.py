"""Masked and compacted networks train alike, and their optimisers are cut with them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune import surgery
from tests.models import drawing
from tests.models.drawing import small_model


def make_step(model, optimizer, images, labels, mask):
    def step(variables, opt_state):
        def loss_of(params):
            logits, update = drawing.apply_in_training(
                model, variables, params, images, mask
            )
            losses = optax.softmax_cross_entropy(logits, np.eye(5)[labels])
            return jnp.sum(losses * mask) / jnp.sum(mask), update

        (loss, update), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            variables["params"]
        )
        change, opt_state = optimizer.update(gradient, opt_state, variables["params"])
        params = optax.apply_updates(variables["params"], change)
        return {**variables, **update, "params": params}, opt_state, loss

    return step


def train(model, variables, opt_state, optimizer, steps=10):
    images = drawing.images_for(model, 12, 1)
    labels = np.arange(12) % 5
    mask = jnp.ones(12).at[-1].set(0.0)
    step = make_step(model, optimizer, images, labels, mask)
    losses = []
    for _ in range(steps):
        variables, opt_state, loss = drawing.run_quick(step, variables, opt_state)
        losses.append(float(loss))
    return variables, opt_state, losses


SGD = optax.chain(
    optax.add_decayed_weights(5e-4), optax.sgd(0.02, momentum=0.9, nesterov=True)
)


def test_compacted_resnet_trains_like_the_masked_one():
    model = small_model()
    variables = drawing.variables_of(model)
    plan = drawing.plan_for(model, 1)
    # A momentum from before the cut: it must be cut as the parameters are.
    moments = jax.tree.map(lambda x: 0.01 * jnp.sign(x), variables["params"])
    opt_state = optax.tree.set(SGD.init(variables["params"]), trace=moments)

    masked, _, losses_masked = train(
        model,
        surgery.mask(model, variables, plan),
        surgery.cut_optimizer_state(model, plan, opt_state, "mask"),
        SGD,
    )
    small, compacted = surgery.compact(model, variables, plan)
    compacted, _, losses_compacted = train(
        small,
        compacted,
        surgery.cut_optimizer_state(model, plan, opt_state, "compact"),
        SGD,
    )
    assert losses_masked[-1] < 0.8 * losses_masked[0]
    np.testing.assert_allclose(losses_compacted, losses_masked, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(losses_compacted[:3], losses_masked[:3], rtol=1e-4)
    chex.assert_trees_all_close(
        surgery.compact(model, masked, plan)[1]["params"],
        compacted["params"],
        atol=2e-3,
    )
    # The masked parameters hold nothing else: what was cut is still exactly zero.
    chex.assert_trees_all_equal(
        surgery.mask(model, masked, plan)["params"], masked["params"]
    )


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9)),
        optax.adamw(0.01, weight_decay=0.1),
    ],
    ids=["sgd", "adamw"],
)
def test_dead_channels_stay_dead(optimizer, norm):
    model = small_model(norm)
    variables = drawing.variables_of(model)
    plan = drawing.plan_for(model, 7)
    masked = surgery.mask(model, variables, plan)
    full_state = optimizer.init(variables["params"])
    moving = jax.tree.map(lambda x: jnp.ones_like(x) if x.ndim else x, full_state)
    state = surgery.cut_optimizer_state(model, plan, moving)
    trained, state, losses = train(model, masked, state, optimizer, steps=3)
    assert np.all(np.isfinite(losses))
    chex.assert_trees_all_equal(
        surgery.mask(model, trained, plan)["params"], trained["params"]
    )
    chex.assert_trees_all_equal(surgery.cut_optimizer_state(model, plan, state), state)
    assert not np.array_equal(
        trained["params"]["head"]["kernel"], masked["params"]["head"]["kernel"]
    )


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "clipped, scheduled": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(1, 0, 9))
    ),
    "several": optax.partition(
        {"kernel": optax.adam(1e-3), "other": optax.sgd(0.1, momentum=0.9)},
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: "kernel" if path[-1].key == "kernel" else "other", params
        ),
    ),
    "accumulating": optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation(),
    "lbfgs": optax.scale_by_lbfgs(memory_size=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_of_any_shape_is_cut_like_the_parameters(name):
    model = small_model()
    variables = drawing.variables_of(model)
    params, plan = variables["params"], drawing.plan_for(model, 8)
    _, compacted = surgery.compact(model, variables, plan)
    compact = surgery.cut_optimizer_state(
        model, plan, OPTIMIZERS[name].init(params), how="compact"
    )
    fresh = OPTIMIZERS[name].init(compacted["params"])
    assert jax.tree.structure(compact) == jax.tree.structure(fresh)
    chex.assert_trees_all_equal_shapes_and_dtypes(compact, fresh)
    masked = surgery.cut_optimizer_state(model, plan, OPTIMIZERS[name].init(params))
    chex.assert_trees_all_equal_shapes(masked, OPTIMIZERS[name].init(params))


def test_optimizer_state_that_cannot_be_cut_is_refused():
    model = small_model()
    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=8)
    state = optimizer.init(drawing.variables_of(model)["params"])
    with pytest.raises(ValueError, match="start that state afresh"):
        surgery.cut_optimizer_state(model, drawing.plan_for(model, 0), state)
