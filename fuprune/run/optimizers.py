"""The optimisers that a config names; apart, because a client needs nothing else."""

import optax


def optimizer(train, learning_rate) -> optax.GradientTransformation:
    """The optimiser of the config's section `train`."""
    if train.optimizer == "adam":
        return optax.adamw(learning_rate, weight_decay=train.weight_decay)
    return optax.chain(
        optax.add_decayed_weights(train.weight_decay),
        optax.sgd(
            learning_rate, momentum=train.momentum or None, nesterov=train.nesterov
        ),
    )
