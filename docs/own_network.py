"""A network and data that are not ours, from training to audit.

Run it as it is: `python docs/own_network.py`. The network knows nothing of fuprune.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fuprune
from fuprune.audit import AuditData, AuditOptions, audit
from fuprune.data.preprocess import to_float
from fuprune.models.adapt import adapt


class Net(nn.Module):
    """Any Flax network: here with group norm, swish and a depthwise convolution."""

    @nn.compact
    def __call__(self, x):
        """Maps images [B, 8, 8, 1] to logits [B, 4]."""
        x = nn.swish(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(x)))
        y = nn.Conv(16, (3, 3), feature_group_count=16)(x)
        x = x + nn.swish(nn.Conv(16, (1, 1))(y))
        return nn.Dense(4)(jnp.mean(x, axis=(1, 2)))


def make_images(number: int, seed: int) -> fuprune.Dataset:
    """Stripes of four directions in noise: uint8 [N, 8, 8, 1], and their labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, number)
    rows, columns = np.mgrid[:8, :8]
    waves = np.stack([rows, columns, rows + columns, rows - columns]) % 4 < 2
    noise = generator.normal(0, 40, (number, 8, 8))
    pixels = np.clip(128 * waves[labels] + 64 + noise, 0, 255)
    return fuprune.Dataset(pixels[..., None].astype(np.uint8), labels.astype(np.int32))


def main(rounds: int = 6, forgotten: int = 3):
    """Train, forget a class, audit; returns the report."""
    train, test, model = make_images(400, 0), make_images(200, 1), adapt(Net())
    parts = fuprune.iid_partition(train.labels, num_clients=4, seed=0)
    data = fuprune.federate(train, parts)
    remaining = fuprune.drop_classes(data, (forgotten,))

    def fit(model, variables, data, key):
        optimizer = optax.adam(0.02)
        trainer = fuprune.fed_avg(model, client_optimizer=optimizer, batch_size=16)
        start = trainer.init(variables)
        return fuprune.fit(trainer, start, data, key=key, cohort_size=4, rounds=rounds)

    def fresh(seed):
        return jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, 8, 8, 1)))

    raw = fit(model, fresh(0), data, jax.random.key(1)).state.variables
    result = fuprune.class_pruning(
        model, raw, data, (forgotten,), key=jax.random.key(2), fine_tune=fit,
        num_classes=4, rate=0.2,
    )  # fmt: skip
    retrained = [
        (model, fit(model, fresh(s), remaining, jax.random.key(s)).state.variables)
        for s in (11, 12, 13)
    ]
    images = AuditData(train, test, lambda batch: to_float(None, batch))
    report = audit(
        {"class_pruning": (result.model, result.variables)}, retrained, (model, raw),
        images, (forgotten,), jax.random.key(3),
        options=AuditOptions(tests="accuracy"),
    )  # fmt: skip
    for row in result.notes["cuts"][0]["plan"]:
        print(row["layer"], row["channels_before"], "->", row["channels_after"])
    for row in report.headline():
        found = {name: judged.values for name, judged in row.models.items()}
        print(row.name, found, "retrained", row.retrained)
    return report


if __name__ == "__main__":
    main()
