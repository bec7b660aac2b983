"""Known answers on the digits: what an audit must say of models whose past is known.

The settings were chosen before the first run: small grids, so that ten whole audits fit
in a few minutes. At first relearning was taught at one rate and did not tell a masked
logit from retraining. At three rates the masked model lies outside the interval of
retraining; counting the whole headline, relearning alone fails it in about two draws of
seeds in three (docs/audit.md), so the headline is held to failing it by any test.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fuprune.audit import (
    AuditData,
    AuditOptions,
    ProbeOptions,
    RelearnOptions,
    ShadowOptions,
    audit,
)
from fuprune.audit.shadow import train_models_in_parallel
from fuprune.audit.training import batch_rows, init_state, rate, sgd_step
from fuprune.data.dataset import Dataset
from fuprune.data.preprocess import normalise
from fuprune.data.sources import load
from fuprune.models.fresh import init_variables
from tests.audit.conftest import mask_logit

FORGOTTEN = 9
SEEDS = 10
HEADLINE_KINDS = (
    *("accuracy", "likelihood_ratio", "difference", "probe", "relearn", "distance"),
)
OPTIONS = AuditOptions(
    kinds=HEADLINE_KINDS,
    max_examples=1000,
    shadow=ShadowOptions(models=0),
    relearn=RelearnOptions(
        images=("all", "forgotten"), images_per_class=(10,), steps=8
    ),
    probe=ProbeOptions(classifiers=("linear", "neighbours"), depths=1, draws=5),
)


class SmallNet(nn.Module):
    """Two convolutions and a hidden layer."""

    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(16, (3, 3), name="first")(images))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(32, (3, 3), name="second")(x))
        x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        x = nn.relu(nn.Dense(32, name="hidden")(x))
        return nn.Dense(10, name="head")(x)


class Digits(NamedTuple):
    data: AuditData
    raw: dict
    retrained: list


def preprocess(images):
    return normalise(jnp.asarray(images), (0.3,), (0.4,))


def trained(data: Dataset, members, key):
    return train_models_in_parallel(
        SmallNet(),
        key,
        *data,
        members,
        preprocess,
        steps=250,
        batch_size=32,
        backend="loop",
    )


@pytest.fixture(scope="module")
def digits() -> Digits:
    train, test = load("digits", split="train"), load("digits", split="test")
    members = np.tile(train.labels != FORGOTTEN, (SEEDS + 1, 1))
    members[0] = True
    raw, *retrained = trained(train, members, jax.random.key(0))
    return Digits(AuditData(train, test, preprocess), raw, retrained)


def judge(digits, candidates, retrained, key=0):
    return audit(
        {name: (SmallNet(), variables) for name, variables in candidates.items()},
        [(SmallNet(), variables) for variables in retrained],
        (SmallNet(), digits.raw),
        digits.data,
        (FORGOTTEN,),
        jax.random.key(key),
        options=OPTIONS,
    )


@pytest.mark.slow
def test_a_retrained_model_seldom_fails_against_nine_others(digits):
    failed = {}
    for i, honest in enumerate(digits.retrained):
        others = [v for v in digits.retrained if v is not honest]
        found = judge(digits, {"honest": honest}, others, key=i)
        assert found.headlines["honest"].tests == 8
        assert found.headlines["raw"].verdict == "fail"
        if found.headlines["honest"].verdict == "fail":
            failed[i] = found.headlines["honest"].failed
    # More failures than this happen once in a hundred if one model in twenty fails.
    assert len(failed) <= stats.binom.ppf(0.99, SEEDS, 0.05), failed


@pytest.mark.slow
def test_known_pretenders_fail_where_they_should(digits):
    train = digits.data.train
    rest = Dataset(*(part[train.labels != FORGOTTEN] for part in train))
    fine_tuned = fine_tune(digits.raw, rest, steps=30)
    random = init_variables(SmallNet(), jax.random.key(2), preprocess(rest.images[:1]))
    found = judge(
        digits,
        {
            "mask_logit": mask_logit(digits.raw, FORGOTTEN),
            "fine_tune_only": fine_tuned,
            "random": random,
            "over_erased": over_erased(digits.retrained[0]),
        },
        digits.retrained,
    )
    headlines = found.headlines
    tests = {test.name: test for test in found.tests}
    assert {h.verdict for h in headlines.values()} == {"fail"}
    assert tests["u_accuracy"].verdicts["mask_logit"] != "fail"
    assert "jensen_shannon" in headlines["mask_logit"].failed
    # Relearning starts from a column at zero, so the mask is no hiding place.
    relearned = tests["relearn_area"].values
    assert relearned["mask_logit"] == relearned["raw"]
    assert relearned["mask_logit"] > tests["relearn_area"].interval[1]
    assert {"u_accuracy", "jensen_shannon"} & set(headlines["fine_tune_only"].failed)
    assert {"r_accuracy", "jensen_shannon"} <= set(headlines["random"].failed)
    assert "probe_auc" in headlines["over_erased"].failed
    probe = tests["probe_auc"]
    assert probe.values["over_erased"] < probe.interval[0] < min(probe.retrained)


def fine_tune(variables, data: Dataset, steps):
    """Fine-tuning without the class, and nothing else."""
    rows = batch_rows(np.random.default_rng(0), np.arange(len(data.labels)), steps, 32)
    state = init_state(variables)
    for step, batch in enumerate(rows):
        images, labels = preprocess(data.images[batch]), data.labels[batch]
        key = jax.random.key(step)
        state = sgd_step(
            SmallNet(), ("head",), state, images, jnp.asarray(labels), key, rate(0.01)
        )
    return state.variables


def over_erased(variables):
    """A retrained model whose hidden layer answers to one direction of its input."""
    params = dict(variables["params"])
    kernel = np.asarray(params["hidden"]["kernel"])
    left, sizes, right = np.linalg.svd(kernel, full_matrices=False)
    one = sizes[0] * np.outer(left[:, 0], right[0])
    params["hidden"] = {**params["hidden"], "kernel": jnp.asarray(one)}
    return {**variables, "params": params}
