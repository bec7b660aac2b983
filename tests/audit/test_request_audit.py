"""Audits of clients and examples: known answers on images that must be memorised."""

import dataclasses

import jax
import numpy as np
import pytest

from fuprune.audit import AuditData, AuditOptions, RequestData, audit_request
from fuprune.audit.audit import matched
from fuprune.audit.backdoor import TARGET, plant, triggered
from fuprune.audit.reading import read
from fuprune.audit.record import DIFFERENT
from fuprune.data.dataset import Dataset
from tests.audit.conftest import (
    Perceptron,
    World,
    audit_of,
    preprocess,
    trained,
    without,
)

CLASSES, SIZE = 3, 60
MODEL = Perceptron(64, CLASSES)
OPTIONS = AuditOptions(max_examples=500)


@pytest.fixture(scope="module")
def case():
    """Random images and labels; the first half is forgotten, half of it triggered."""
    generator = np.random.default_rng(0)

    def draw(number):
        images = generator.integers(0, 256, (number, 8, 8, 1), np.uint8)
        return Dataset(images, generator.integers(0, CLASSES, number).astype(np.int32))

    train, test = plant(draw(2 * SIZE), np.arange(SIZE), 0.5, seed=1), draw(4 * SIZE)
    forgotten, retained = (
        Dataset(*(part[rows] for part in train))
        for rows in (slice(0, SIZE), slice(SIZE, None))
    )

    def model(seed, data):
        return MODEL, trained(MODEL, data, preprocess, seed=seed, steps=300)

    data = RequestData(forgotten, test, preprocess, triggered(test), TARGET, retained)
    return data, model(0, train), [model(seed, retained) for seed in range(1, 10)]


def audited(case, candidates, **changes):
    data, raw, retrained = case
    return audit_request(
        candidates,
        retrained[1:],
        raw,
        data,
        jax.random.key(3),
        options=dataclasses.replace(OPTIONS, **changes),
    )


@pytest.fixture(scope="module")
def report(case):
    _, raw, retrained = case
    return audited(case, {"nothing": raw, "honest": retrained[0]})


def test_what_was_memorised_is_seen_and_a_retrained_model_is_not(report):
    assert {row.name for row in report.differences("nothing")} == {
        *("forgotten_accuracy", "answer_distance", "membership_loss"),
        "backdoor_success",
    }
    assert not report.differences("honest")
    assert [row.name for row in report.headline()] == [
        *("forgotten_accuracy", "r_accuracy", "answer_distance", "membership_loss"),
        "backdoor_success",
    ]


def test_numbers_are_those_of_models_that_learned_by_heart(report):
    def values(name, model="raw"):
        row = report.row(name)
        return row.models[model].values[0], row.retrained

    assert values("forgotten_accuracy")[0] > 0.95
    assert values("membership_loss")[0] > 0.9
    assert abs(np.mean(values("membership_loss")[1]) - 0.5) < 0.1
    assert values("backdoor_success")[0] > 0.9 > max(values("backdoor_success")[1])
    assert values("loss_distribution")[0] > 2 * max(values("loss_distribution")[1])
    assert values("klom_forgotten")[0] > 2 > max(values("klom_forgotten")[1])
    assert values("forgetting_quality")[0] < min(values("forgetting_quality")[1])
    assert values("tug_of_war")[0] < min(values("tug_of_war")[1])


def test_record_is_whole_and_speaks_of_no_class(report):
    assert read(report.to_json()) == report
    assert report.request == "images" and report.classes == []
    assert not any("the class" in row.question for row in report.rows)
    assert not {"relearn", "probe"} & {row.kind for row in report.rows}
    assert list(report.rows[0].models) == ["nothing", "honest", "raw"]
    assert report.settings["forgotten_training_images"] == SIZE


def test_shadow_models_tell_members_of_an_overfitted_model(case):
    _, raw, retrained = case
    found = audited(
        case,
        {"nothing": raw, "honest": retrained[0]},
        tests="membership",
        shadows=8,
        shadow_steps=150,
    )
    row = found.row("membership_rmia")
    assert row.headline and row.verdict("nothing") == DIFFERENT
    assert row.models["raw"].values[0] > 0.8
    assert row.verdict("honest") != DIFFERENT
    assert abs(np.mean(row.retrained) - 0.5) < 0.12
    with pytest.raises(ValueError, match="1 shadow models on"):
        audited(case, {}, tests="membership", shadows=1)


def test_unseen_images_have_the_forgotten_ones_proportions():
    labels = np.repeat([0, 1, 2], [30, 10, 0])
    test = np.repeat([0, 1, 2], 30)
    rows = matched(test, labels, 1000, np.random.default_rng(0))
    assert np.bincount(test[rows], minlength=3).tolist() == [30, 10, 0]
    rows = matched(test, labels, 20, np.random.default_rng(0))
    assert np.bincount(test[rows], minlength=3).tolist() == [15, 5, 0]
    with pytest.raises(ValueError, match="no test image is of a class"):
        matched(test, np.asarray([5]), 10, np.random.default_rng(0))


def test_attack_of_table_4_calls_members_what_a_model_is_as_sure_of():
    """Trained on a class by heart, the raw model is as sure of it as of the others."""
    generator = np.random.default_rng(1)

    def draw(number):
        images = generator.integers(0, 256, (number, 8, 8, 1), np.uint8)
        labels = np.arange(number, dtype=np.int32) % 4
        return Dataset(images, labels)

    train, test = draw(160), draw(240)
    model = Perceptron(64)
    raw = trained(model, train, preprocess, seed=0, steps=300)
    honest, *retrained = [
        trained(model, without(train), preprocess, seed=seed, steps=300)
        for seed in range(1, 6)
    ]
    found = audit_of(
        World(AuditData(train, test, preprocess), model, raw, retrained, honest, {}),
        {"honest": honest},
        options=dataclasses.replace(OPTIONS, tests="membership"),
    )
    row = found.row("membership_paper")
    assert not row.headline
    assert row.models["raw"].values[0] > 0.9
    assert row.models["honest"].values[0] < 0.6 and max(row.retrained) < 0.6
