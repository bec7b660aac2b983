import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.audit import AuditData, AuditOptions, audit
from fuprune.audit.training import sgd_step
from fuprune.data.preprocess import normalise
from fuprune.data.sources import load
from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.surgery import compact, make_plan
from tests.audit.conftest import Perceptron

# What the quickstart asks for; all else is the default.
OPTIONS = AuditOptions(max_examples=1000)


def preprocess(images):
    return normalise(jnp.asarray(images), (0.3,), (0.4,))


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
        options=OPTIONS,
    )


def draw_nets(model, number=7, first=0):
    sample = preprocess(load("digits", split="train").images[:1])
    keys = [jax.random.key(seed) for seed in range(first, first + number)]
    return [init_variables(model, key, sample) for key in keys]


def test_default_options_compile_one_step_per_shape_and_stay_cheap():
    model, narrow = Perceptron(32, 10), Perceptron(24, 10)
    nets, (slim,) = draw_nets(model), draw_nets(narrow, 1, first=7)
    compiled = sgd_step._cache_size()
    begin = time.process_time()
    report = audit_digits(model, nets, (narrow, slim))
    assert time.process_time() - begin < 60
    assert sgd_step._cache_size() - compiled == 2
    # What a net that costs more pays for, besides one forward pass over all images.
    runs = report.detail["relearn"]["runs"]
    steps = sum(run["steps"][-1] for run in runs) + (
        report.settings["shadow_models"]
        * (report.settings["shadow_steps"] + report.settings["shadow_fine_tune_steps"])
    )
    assert steps <= 1400
    assert report.settings["train_batch_size"] <= 32


@pytest.mark.slow
def test_whole_audit_of_residual_nets_on_digits_stays_in_its_budget():
    model = zoo.create("resnet20", num_classes=10, input_shape=(8, 8, 1))
    # Nets that know nothing: relearning takes as long as it may.
    nets = draw_nets(model)
    generator = np.random.default_rng(0)
    scores = {
        layer: generator.random(nets[0]["params"][layer]["conv"]["kernel"].shape[-1])
        for layer in zoo.layer_names(model)
    }
    begin = time.process_time()
    slim = compact(model, nets[0], make_plan(scores, 0.05))
    report = audit_digits(model, nets, slim)
    # Processor time, all threads: what others do on the machine meanwhile is left out.
    assert time.process_time() - begin < 180
    assert report.detail["cka"]["slim"].keys() == set(zoo.layer_names(model))
