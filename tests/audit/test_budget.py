"""What a whole audit compiles and costs."""

import time

import jax
import numpy as np

from fuprune.audit import AuditData, audit, outputs
from fuprune.audit.training import sgd_step
from fuprune.data.preprocess import normalise
from fuprune.data.sources import load
from fuprune.models.fresh import init_variables
from tests.audit.conftest import Perceptron


def preprocess(images):
    return normalise(images, (0.3,), (0.4,))


def audit_digits(model, nets, slim):
    """Nets that know nothing, the first as the raw one and three as retrained."""
    return audit(
        {"slim": slim, **{f"candidate_{i}": (model, nets[i]) for i in (1, 2, 3)}},
        [(model, variables) for variables in nets[4:]],
        (model, nets[0]),
        AuditData(
            load("digits", split="train"), load("digits", split="test"), preprocess
        ),
        (9,),
        jax.random.key(0),
    )


def draw_nets(model, number=7, first=0):
    sample = preprocess(load("digits", split="train").images[:1])
    keys = [jax.random.key(seed) for seed in range(first, first + number)]
    return [init_variables(model, key, sample) for key in keys]


def test_models_of_one_shape_share_three_programs_and_few_steps():
    model, narrow = Perceptron(32, 10), Perceptron(24, 10)
    nets, (slim,) = draw_nets(model), draw_nets(narrow, 1, first=7)
    programs = (sgd_step, outputs._logits, outputs._depths)
    before = [program._cache_size() for program in programs]
    begin = time.process_time()
    report = audit_digits(model, nets, (narrow, slim))
    assert time.process_time() - begin < 30
    after = [program._cache_size() for program in programs]
    # Two shapes, the wide one and the narrow one.
    assert np.subtract(after, before).tolist() == [2, 2, 2]
    settings = report.settings
    taught = settings["relearn_steps"] * settings["relearn_draws"]
    # A fine-tuning of 175 rounds of 416 images is 72,800.
    assert taught * settings["batch_size"] * 12 < 72_800 / 2
