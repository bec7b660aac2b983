"""A whole audit of models whose past is known, and what it refuses."""

import dataclasses

import jax
import numpy as np
import pytest

from fuprune.audit import AuditOptions
from fuprune.audit.reading import read
from fuprune.audit.record import DIFFERENT, HIDDEN, KINDS, NO_DIFFERENCE
from fuprune.data.dataset import Dataset
from tests.audit.conftest import OPTIONS, Perceptron, audit_of, preprocess


def some(**changes) -> AuditOptions:
    return dataclasses.replace(OPTIONS, **changes)


CHEAP = some(tests="accuracy,distance")


def test_hiding_is_told_from_forgetting_and_an_honest_model_is_not(report):
    assert report.verdict("raw") == DIFFERENT
    assert report.verdict("honest") != DIFFERENT
    assert report.verdict("masked") == report.verdict(HIDDEN) == DIFFERENT
    found = {row.name for row in report.differences("masked")}
    assert {"relearn", "answer_distance"} <= found and "u_accuracy" not in found
    assert [row.name for row in report.headline()] == [
        *("u_accuracy", "r_accuracy", "answer_distance", "relearn"),
        *("probe_early", "probe_middle", "probe_last"),
    ]


def test_hidden_logits_need_no_model_of_their_own(report):
    """What the audit makes of raw's answers is what masking the network gives."""
    for row in report.rows:
        own, made = row.models["masked"].values, row.models[HIDDEN].values
        if row.kind != "weights":
            np.testing.assert_allclose(own, made, rtol=1e-5, err_msg=row.name)


def test_record_is_whole_and_survives_its_file(report, world):
    assert read(report.to_json()) == report
    assert {row.kind for row in report.rows} == set(KINDS)
    for row in report.rows:
        assert list(row.models) == ["masked", "honest", HIDDEN, "raw"]
        assert len(row.retrained) == len(world.retrained) == report.retrained
        assert row.headline == (row.models["honest"].difference is not None)
    assert set(report.curves) == {"masked", "honest", HIDDEN, "raw", "retrained"}
    assert report.class_accuracies["raw"][3] > 0.8
    assert report.class_accuracies["masked"][3] == 0 == report.left_out.get("x", 0)
    assert report.settings["test_images"] == 240
    assert report.settings["forgotten_training_images"] == 150


def test_seeds_of_a_method_are_judged_together(world):
    found = audit_of(
        world,
        {"mine": world.honest, "mine_seed2": world.retrained[0], "other": world.raw},
        retrained=world.retrained[1:],
        options=CHEAP,
    )
    assert found.candidates == ["mine", "other"]
    accuracy = found.row("r_accuracy").models
    assert len(accuracy["mine"].values) == 2 and len(accuracy["other"].values) == 1
    width = {m: accuracy[m].high - accuracy[m].low for m in ("mine", "other")}
    assert width["mine"] < width["other"]


def test_accuracy_is_that_of_the_whole_test_set(world):
    found = audit_of(world, options=some(tests="accuracy", max_examples=10))
    model, test = world.model, world.data.test
    answers = model.apply(world.raw, preprocess(test.images)).argmax(axis=-1)
    right = np.asarray(answers) == test.labels
    values = {row.name: row.models["raw"].values for row in found.headline()}
    assert values["u_accuracy"] == [pytest.approx(right[test.labels == 3].mean())]
    assert values["r_accuracy"] == [pytest.approx(right[test.labels != 3].mean())]
    assert found.settings["forgotten_training_images"] == 10


def test_diverged_candidate_is_left_out_by_name_and_the_rest_is_judged(world):
    diverged = jax.tree.map(lambda leaf: leaf * np.nan, world.raw)
    found = audit_of(
        world, {"diverged": diverged, "honest": world.honest}, options=CHEAP
    )
    assert found.candidates == ["honest"]
    assert found.left_out == {"diverged": "it answers with NaN"}
    with pytest.raises(ValueError, match="no reference"):
        audit_of(world, retrained=[diverged])
    with pytest.raises(ValueError, match="raw model answers with NaN"):
        audit_of(world, raw=(world.model, diverged))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_too_few_retrained_models_are_described_and_not_judged(world, number):
    found = audit_of(
        world,
        {"honest": world.honest},
        retrained=world.retrained[:number],
        options=some(tests="accuracy,distance,probe,membership,weights"),
    )
    assert read(found.to_json()) == found
    judged = {
        row.name
        for row in found.rows
        if "raw" in row.models and row.models["raw"].difference is not None
    }
    assert judged == (
        {r.name for r in found.headline()} - {"answer_distance"}
        if number == 2
        else set()
    )
    assert found.verdict("honest") == ("" if number < 2 else NO_DIFFERENCE)


def test_candidates_may_be_of_another_width(world):
    narrow = Perceptron(width=6)
    variables = narrow.init(jax.random.key(0), preprocess(world.data.test.images[:1]))
    found = audit_of(world, {"narrow": (narrow, variables)})
    assert 0 < found.row("cka_distance").models["narrow"].values[0] < 1
    assert found.row("weight_distance_to_raw").models["narrow"].values == [None]
    assert found.row("weight_distance_to_raw").models["raw"].values == [0.0]
    assert found.row("relearn").models["narrow"].difference is not None


def test_wrong_arguments_are_named(world):
    def refuses(message, candidates=(), **changes):
        told = []
        with pytest.raises(ValueError, match=message):
            audit_of(world, candidates, on_step=told.append, **changes)
        return told

    small = Perceptron(num_classes=3)
    variables = small.init(jax.random.key(0), preprocess(world.data.test.images[:1]))
    labels = np.where(world.data.train.labels == 2, 7, world.data.train.labels)
    beyond = world.data._replace(train=Dataset(world.data.train.images, labels))
    for classes, message in (
        ((), "name one or more"),
        ((7,), r"\(7,\)"),
        ((0, 1, 2, 3), "leave at least one out"),
    ):
        assert not refuses(message, classes=classes)
    for name in ("raw", "retrained", "retrained_0"):
        assert not refuses("name them otherwise", {name: world.raw})
    refuses("'small' has 3 logits", {"small": (small, variables)})
    refuses("labels go up to 7", data=beyond)
