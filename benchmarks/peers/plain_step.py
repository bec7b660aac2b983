"""The SGD step that somebody would write by hand in JAX, for those that compare."""

import jax
import jax.numpy as jnp
import optax


def make_step(model, optimizer):
    """A compiled `step(variables, opt_state, images, labels)` of one whole batch."""

    @jax.jit
    def step(variables, opt_state, images, labels):
        def loss(params):
            logits, updated = model.apply(
                {**variables, "params": params},
                images.astype(jnp.float32) / 255.0,
                train=True,
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.mean(losses), updated

        gradient, updated = jax.grad(loss, has_aux=True)(variables["params"])
        change, opt_state = optimizer.update(gradient, opt_state)
        params = optax.apply_updates(variables["params"], change)
        return {**updated, "params": params}, opt_state

    return step
