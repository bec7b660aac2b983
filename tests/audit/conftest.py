"""A small world in which what a model knows of the forgotten class is known.

Class 3 is class 0 plus a faint pattern: a net trained with it must encode the pattern,
a net trained without it has no reason to.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from fuprune.audit import (
    AuditData,
    AuditOptions,
    ProbeOptions,
    RelearnOptions,
    ShadowOptions,
    audit,
)
from fuprune.audit.shadow import train_models_in_parallel
from fuprune.data.dataset import Dataset

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
    return make_world(train, test, Perceptron(), seed=1, steps=200)


@pytest.fixture(scope="session")
def memorised() -> World:
    """Labels that no image explains, so that knowing one is having seen it."""
    generator = np.random.default_rng(0)

    def draw(per_class):
        images = generator.integers(0, 256, (4 * per_class, 6, 6, 1)).astype(np.uint8)
        return Dataset(images, np.tile(np.arange(4), per_class).astype(np.int32))

    return make_world(draw(60), draw(60), Perceptron(width=64), seed=5, steps=250)


def make_world(train: Dataset, test: Dataset, model: nn.Module, seed, steps) -> World:
    """A raw and six retrained models on these images."""
    members = np.tile(train.labels != FORGOTTEN, (7, 1))
    members[0] = True
    raw, honest, *retrained = train_models_in_parallel(
        model,
        jax.random.key(seed),
        *train,
        members,
        preprocess,
        steps=steps,
        batch_size=32,
        backend="vmap",
    )
    return World(
        data=AuditData(train, test, preprocess),
        model=model,
        raw=raw,
        retrained=retrained,
        honest=honest,
        masked=mask_logit(raw, FORGOTTEN),
    )


@pytest.fixture(scope="session")
def report(world):
    """One whole audit, shared by the tests that read it."""
    return run_audit(world)


OPTIONS = AuditOptions(
    train_batch_size=32,
    batch_size=128,
    shadow=ShadowOptions(models=2, steps=60, fine_tune_steps=10),
    relearn=RelearnOptions(
        images=("all",),
        images_per_class=(100,),
        learning_rates=(0.002,),
        steps=40,
        every=4,
    ),
    probe=ProbeOptions(depths=1, draws=5, companions=20),
)


def audit_of(world, candidates=(), **changes):
    """The audit of `candidates`, name -> variables of the world's network, or a model.

    `changes` are arguments of `audit`, in place of no retrained models and the world's
    raw model, data and class.
    """
    models = {
        name: given if isinstance(given, tuple) else (world.model, given)
        for name, given in dict(candidates).items()
    }
    retrained = [(world.model, v) for v in changes.pop("retrained", ())]
    arguments = {
        "raw": (world.model, world.raw),
        "data": world.data,
        "classes": (FORGOTTEN,),
        "key": jax.random.key(0),
        **changes,
    }
    return audit(models, retrained, **arguments)


def run_audit(
    world, retrained=None, on_step=None, options=OPTIONS, candidates=None, **changes
):
    """The audit of `candidates`, by default a masked model, and of the honest one.

    `changes` are options.
    """
    return audit_of(
        world,
        {**(candidates or {"mask_logit": world.masked}), "honest": world.honest},
        retrained=world.retrained if retrained is None else retrained,
        options=options._replace(**changes),
        on_step=on_step,
    )
