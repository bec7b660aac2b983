"""The optimisers that a config names; apart, because a client needs nothing else."""

import functools

import optax


def optimizer(train, learning_rate) -> optax.GradientTransformation:
    """The optimiser of the config's section `train`, the same one for the same rate."""
    return _make(
        train.optimizer,
        learning_rate,
        train.momentum or None,
        train.nesterov,
        train.weight_decay,
    )


# Equal ones are one, so that algorithms which have them share their programs.
plain_sgd = functools.lru_cache(maxsize=8)(optax.sgd)


@functools.lru_cache(maxsize=8)
def _make(kind, learning_rate, momentum, nesterov, weight_decay):
    if kind == "adam":
        return optax.adamw(learning_rate, weight_decay=weight_decay)
    return optax.chain(
        optax.add_decayed_weights(weight_decay),
        optax.sgd(learning_rate, momentum=momentum, nesterov=nesterov),
    )
