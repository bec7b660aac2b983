"""A small world in which what a model knows of the forgotten class is known.

Class 3 is class 0 plus a faint pattern: a net trained with it must encode the pattern,
a net trained without it has no reason to.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.audit import AuditData, AuditOptions, audit
from fuprune.audit.training import batch_rows, init_state, sgd_step
from fuprune.data.dataset import Dataset
from fuprune.models.adapt import adapt
from fuprune.models.fresh import init_variables

FORGOTTEN = 3


class Perceptron(nn.Module):
    """Two hidden layers; takes no `train` argument, as a foreign model may not."""

    width: int = 32
    num_classes: int = 4

    @nn.compact
    def __call__(self, images):
        x = images.reshape(len(images), -1)
        x = nn.relu(nn.Dense(self.width, name="first")(x))
        x = nn.relu(nn.Dense(self.width, name="second")(x))
        return nn.Dense(self.num_classes, name="head")(x)


class World(NamedTuple):
    data: AuditData
    model: nn.Module
    raw: dict
    retrained: list
    honest: dict  # one more retrained seed, not among `retrained`
    masked: dict  # raw with the logit of the class at minus infinity


def preprocess(images):
    return (images.astype(np.float32) - 128) / 64


def trained(model, data: Dataset, prepare, *, seed, steps, rate=0.05) -> dict:
    """Variables from scratch after some steps on these images."""
    sample = prepare(data.images[:2])
    start = init_variables(model, jax.random.key(seed), sample)
    return fine_tuned(model, start, data, prepare, seed=seed, steps=steps, rate=rate)


def fine_tuned(model, variables, data, prepare, *, seed=0, steps, rate) -> dict:
    generator = np.random.default_rng(seed)
    state = init_state(dict(variables))
    for i, rows in enumerate(
        batch_rows(generator, np.arange(len(data.labels)), steps, 32)
    ):
        state = sgd_step(
            adapt(model),
            state,
            jax.device_put(prepare(data.images[rows])),
            jax.device_put(data.labels[rows]),
            jax.random.key(i),
            jnp.float32(rate * 0.5 * (1 + np.cos(np.pi * i / steps))),
        )
    return state.variables


def without(data: Dataset, label=FORGOTTEN) -> Dataset:
    return Dataset(*(part[data.labels != label] for part in data))


def mask_logit(variables, label):
    params = dict(variables["params"])
    head = params["head"]
    params["head"] = {
        "kernel": head["kernel"].at[:, label].set(0.0),
        "bias": head["bias"].at[label].set(-np.inf),
    }
    return {**variables, "params": params}


@pytest.fixture(scope="session")
def world() -> World:
    generator = np.random.default_rng(0)
    patterns = generator.choice([-40, 40], (3, 36))
    faint = generator.choice([-20, 20], 36)
    patterns = np.concatenate([patterns, patterns[:1] + faint])

    def draw(per_class):
        labels = np.repeat(np.arange(4), per_class).astype(np.int32)
        values = 128 + patterns[labels] + generator.normal(0, 20, (len(labels), 36))
        images = np.clip(values, 0, 255).astype(np.uint8).reshape(-1, 6, 6, 1)
        return Dataset(images, labels)

    train, test = draw(150), draw(60)
    model = Perceptron()
    raw = trained(model, train, preprocess, seed=1, steps=200)
    honest, *retrained = [
        trained(model, without(train), preprocess, seed=seed, steps=200)
        for seed in range(2, 11)
    ]
    return World(
        data=AuditData(train, test, preprocess),
        model=model,
        raw=raw,
        retrained=retrained,
        honest=honest,
        masked=mask_logit(raw, FORGOTTEN),
    )


OPTIONS = AuditOptions(
    relearn_steps=20, relearn_learning_rate=0.005, relearn_draws=2, probe_images=120
)


@pytest.fixture(scope="session")
def report(world):
    """One whole audit, shared by the tests that read it."""
    return audit_of(world, {"masked": world.masked, "honest": world.honest})


def audit_of(world, candidates=(), *, retrained=None, options=OPTIONS, **changes):
    """The audit of `candidates`, name -> variables of the world's network, or a model.

    `changes` are arguments of `audit`, in place of the world's.
    """
    models = {
        name: given if isinstance(given, tuple) else (world.model, given)
        for name, given in dict(candidates).items()
    }
    references = world.retrained if retrained is None else retrained
    arguments = {
        "raw": (world.model, world.raw),
        "data": world.data,
        "classes": (FORGOTTEN,),
        "key": jax.random.key(0),
        **changes,
    }
    pairs = [(world.model, v) for v in references]
    return audit(models, pairs, options=options, **arguments)
