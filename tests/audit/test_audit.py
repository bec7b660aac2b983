import flax.linen as nn
import jax
import numpy as np
import pytest

import fuprune.audit
from fuprune.audit import (
    KINDS,
    AuditData,
    AuditOptions,
    RelearnOptions,
    ShadowOptions,
    audit,
)
from fuprune.audit.evidence import AuditReport
from fuprune.data.dataset import Dataset
from tests.audit.conftest import Perceptron, audit_of, preprocess, run_audit


def test_of(report, name):
    (found,) = [test for test in report.tests if test.name == name]
    return found


test_of.__test__ = False


APART = "not told apart at this power"


def test_masked_logit_passes_accuracy_but_fails_relearning_and_distance(report):
    assert test_of(report, "u_accuracy").verdicts["mask_logit"] == "pass"
    assert test_of(report, "relearn_area").verdicts["mask_logit"] == "fail"
    assert test_of(report, "jensen_shannon").verdicts["mask_logit"] == "fail"
    found = report.headlines["mask_logit"]
    assert found.verdict == "fail"
    assert {"relearn_area", "jensen_shannon"} <= set(found.failed)


def test_raw_model_fails_where_remembering_shows(report):
    for name in (
        "u_accuracy",
        "class_accuracy_kl",
        "class_accuracy_difference",
        "relearn_area",
        "interpolated_share",
        "jensen_shannon",
        "total_variation",
        "activation_distance",
    ):
        assert test_of(report, name).verdicts["raw"] == "fail", name
    assert report.headlines["raw"].verdict == "fail"


def test_one_more_retrained_model_fails_nothing(report):
    failed = [t.name for t in report.tests if t.verdicts["honest"] == "fail"]
    assert not failed
    assert report.headlines["honest"].verdict == APART
    for name in ("u_accuracy", "jensen_shannon"):
        assert test_of(report, name).verdicts["honest"] == "pass", name


def test_a_test_that_the_raw_model_does_not_fail_cannot_tell(report):
    blunt = [
        test
        for test in report.tests
        if test.verdicts["raw"] == "cannot tell" and test.values["raw"] is not None
    ]
    assert {"shadow_auc", "likelihood_ratio_offline_auc"} <= {t.name for t in blunt}
    for test in blunt:
        assert not {"pass", APART} & set(test.verdicts.values()), test.name
        assert test.notes, test.name


def test_a_masked_logit_gives_likelihood_attacks_no_result(report):
    """Its confidence is the same for every image: 50% would be no finding."""
    for name in ("likelihood_ratio_offline_auc", "difference_auc"):
        found = test_of(report, name)
        assert found.values["mask_logit"] is None
        assert found.verdicts["mask_logit"] == "cannot tell"
        assert any("no result for" in note for note in found.notes)


def test_the_headline_counts_a_few_tests_that_no_run_chooses(report):
    family = {test.name for test in report.tests if test.family == "headline"}
    assert family == {
        *("u_accuracy", "r_accuracy", "likelihood_ratio_offline_auc"),
        *("difference_auc", "probe_auc", "probe_few_shot_accuracy"),
        *("relearn_area", "jensen_shannon"),
    }
    assert report.headlines["honest"].tests == len(family)


def test_every_test_says_what_it_can_see(report):
    for test in report.tests:
        decided = any(p is not None for p in test.p_values.values())
        silent = any("no possible difference" in note for note in test.notes)
        assert (test.smallest_difference is not None or silent) == decided, test.name
    # Seeds that agree on all images still have the images' own error.
    for name in ("u_accuracy", "r_accuracy", "probe_auc", "jensen_shannon"):
        assert test_of(report, name).sampling_error > 0, name


def test_low_false_positive_rates_are_called_unresolved_on_a_small_sample(report):
    for variant in ("online", "offline"):
        low = test_of(report, f"likelihood_ratio_{variant}_tpr_at_0.1_percent")
        assert set(low.verdicts.values()) == {"cannot tell"}
        assert any("60 non-members cannot resolve" in note for note in low.notes)


def test_every_figure_is_there_for_every_model(report):
    assert {test.kind for test in report.tests} == set(KINDS)
    for test in report.tests:
        assert {"mask_logit", "honest", "raw"} <= set(test.values)
        assert len(test.retrained) == 5
        assert set(test.verdicts) == set(test.values)
    assert "random_init" in test_of(report, "probe_auc").values


def test_report_survives_json_and_holds_what_is_drawn(report):
    assert AuditReport.from_json(report.to_json()) == report
    models = {"mask_logit", "honest", "raw", *(f"retrained_{i}" for i in range(5))}
    assert set(report.detail["class_accuracies"]) == models
    assert set(report.detail["confusions"]) == models
    assert np.sum(report.detail["confusions"]["raw"]) == 240
    assert set(report.detail["relearn"]["curves"]) == models
    (run, *_) = report.detail["relearn"]["runs"]
    assert (run["model"], run["images"]) == ("mask_logit", "all")
    assert len(run["steps"]) == len(run["accuracy"])
    probe = report.detail["probe"]
    assert probe["layers"] == ["first", "features"]
    assert np.shape(probe["areas"]["random_init"]["linear"]) == (2,)
    assert set(report.detail["cka"]["honest"]) == {"first", "second"}
    # An attack without a result on a model has no curve there.
    for attack, curves in report.detail["roc"].items():
        assert set(curves) >= models - {"mask_logit", "raw"}, attack
    assert set(report.detail["roc"]) == {
        *("loss", "confidence", "entropy", "modified_entropy"),
        *("shadow", "likelihood_ratio_online", "likelihood_ratio_offline"),
        *("unlearned_shadow", "difference"),
    }
    assert len(report.detail["shadow_models"]) == 2


def test_audit_is_a_function_of_the_key(world, report):
    """A kind's numbers do not hang on which others were asked for."""
    kinds = ("shadow", "probe", "relearn")
    again = {test.name: test for test in run_audit(world, kinds=kinds).tests}
    whole = {test.name: test for test in report.tests if test.kind in kinds}
    assert again.keys() == whole.keys()
    for name, test in again.items():
        assert test.values == whole[name].values
        assert test.retrained == whole[name].retrained


def test_identical_models_have_no_distance_to_retraining(world):
    found = run_audit(
        world, retrained=[world.honest] * 3, kinds=("accuracy", "distance")
    )
    for name in ("jensen_shannon", "total_variation", "activation_distance"):
        assert test_of(found, name).values["honest"] == 0
    assert test_of(found, "class_accuracy_kl").values["honest"] == 0
    assert test_of(found, "cka_distance").values["honest"] == pytest.approx(0, abs=1e-9)
    assert found.detail["cka"]["honest"] == {
        "first": pytest.approx(1.0),
        "second": pytest.approx(1.0),
    }


@pytest.mark.parametrize("number", [0, 1])
def test_too_few_retrained_models_cannot_tell(world, number):
    kinds = ("accuracy", "membership", "distance")
    found = run_audit(world, retrained=world.retrained[:number], kinds=kinds)
    assert found.tests
    verdicts = {v for test in found.tests for v in test.verdicts.values()}
    assert verdicts == {"cannot tell"}
    assert AuditReport.from_json(found.to_json()) == found


def test_model_that_memorised_is_caught_and_a_retrained_one_is_not(memorised):
    found = run_audit(
        memorised,
        candidates={"still_there": memorised.raw},
        kinds=("membership", "shadow", "likelihood_ratio"),
        shadow=ShadowOptions(models=4, steps=250, backend="vmap"),
    )
    for name in (
        "threshold_loss_auc",
        "threshold_modified_entropy_auc",
        "shadow_auc",
        "shadow_success_rate",
        "likelihood_ratio_online_auc",
        "likelihood_ratio_offline_auc",
    ):
        attack = test_of(found, name)
        assert attack.values["still_there"] > 0.8, name
        # That attacker says "no" to every image of a class the model never saw.
        if name != "shadow_success_rate":
            assert attack.p_values["still_there"] < 0.05, name
        assert attack.verdicts["honest"] != "fail", name
        if attack.values["honest"] is not None:
            assert abs(attack.values["honest"] - 0.5) < 0.15, name
    caught = [t.name for t in found.tests if t.verdicts["still_there"] == "fail"]
    assert "likelihood_ratio_offline_auc" in caught


def test_cap_keeps_forgotten_images_and_takes_the_others_evenly(world):
    found = run_audit(world, kinds=("accuracy",), max_examples=40)
    assert found.settings["test_images"] == 40
    assert found.settings["forgotten_test_images"] == 10
    assert found.settings["forgotten_training_images"] == 10
    assert found.detail["test_images_per_class"] == [10, 10, 10, 10]


@pytest.mark.parametrize("most", [2, 3])
def test_a_cap_of_a_few_images_keeps_one_of_either_kind(world, most):
    kinds = ("accuracy", "membership", "distance", "weights")
    found = run_audit(world, kinds=kinds, max_examples=most)
    assert found.settings["test_images"] == most
    assert found.settings["forgotten_test_images"] == 1
    assert found.settings["forgotten_training_images"] == 1


def test_class_that_no_image_shows_keeps_its_column(world):
    train, test, _ = world.data
    seen = [
        Dataset(d.images[d.labels != 2], d.labels[d.labels != 2]) for d in (train, test)
    ]
    found = audit_of(
        world,
        retrained=world.retrained[:3],
        data=AuditData(*seen, preprocess),
        classes=(0,),
        options=AuditOptions(kinds=("accuracy",)),
    )
    assert np.shape(found.detail["confusions"]["raw"]) == (4, 4)
    assert found.detail["class_accuracies"]["raw"][2] is None
    assert AuditReport.from_json(found.to_json()) == found


def test_several_classes_can_be_forgotten_at_once(world):
    found = audit_of(
        world,
        {"honest": world.honest},
        retrained=world.retrained[:3],
        classes=(3, 1),
        options=AuditOptions(kinds=("accuracy", "membership", "distance")),
    )
    assert found.classes == [1, 3]
    assert found.settings["forgotten_test_images"] == 120


def test_candidates_may_be_of_another_width(world):
    narrow = Perceptron(width=6)
    variables = narrow.init(jax.random.key(0), preprocess(world.data.test.images[:1]))
    found = audit_of(
        world,
        {"narrow": (narrow, variables)},
        retrained=world.retrained[:3],
        options=AuditOptions(kinds=("accuracy", "distance", "weights")),
    )
    assert 0 < test_of(found, "cka_distance").values["narrow"] < 1
    weights = test_of(found, "weight_distance_to_raw")
    assert weights.values["narrow"] is None
    assert any("not comparable: narrow" in note for note in weights.notes)


def test_diverged_candidate_is_left_out_by_name_and_the_rest_is_judged(world):
    diverged = jax.tree.map(lambda leaf: leaf * np.nan, world.raw)
    found = audit_of(
        world,
        {"diverged": diverged, "honest": world.honest},
        retrained=world.retrained[:3],
        options=AuditOptions(
            kinds=("accuracy", "relearn"),
            relearn=RelearnOptions(steps=3, images=("all",), images_per_class=(5,)),
        ),
    )
    assert found.candidates == ["honest"]
    assert set(found.detail["left_out"]) == {"diverged"}
    assert set(test_of(found, "u_accuracy").values) == {"honest", "raw"}
    with pytest.raises(ValueError, match="no reference"):
        audit_of(world, retrained=[diverged])
    with pytest.raises(ValueError, match="raw model answers with NaN"):
        audit_of(world, raw=(world.model, diverged))


def test_progress_is_told(world):
    told = []
    run_audit(world, kinds=("accuracy", "distance"), on_step=told.append)
    assert "outputs of mask_logit" in told and "accuracy" in told


class Listed(nn.Module):
    widths: np.ndarray

    @nn.compact
    def __call__(self, images):
        return nn.Dense(4)(images.reshape(len(images), -1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ()}, "name one or more"),
        ({"classes": (7,)}, r"\(7,\)"),
        ({"classes": (0, 1, 2, 3)}, "leave at least one out"),
        ({"options": AuditOptions(kinds=("acuracy",))}, "acuracy"),
        ({"candidates": {"raw": {}}}, "name them otherwise"),
        ({"options": AuditOptions(shadow=ShadowOptions(models=3))}, "even number"),
        ({"options": AuditOptions(max_examples=1)}, "max_examples is 1"),
        ({"options": AuditOptions(confidence=1.0)}, "confidence is 1.0"),
        ({"options": AuditOptions(margin=2)}, "margin 2"),
        ({"options": AuditOptions(relearn=RelearnOptions(steps=0))}, "0 steps"),
    ],
)
def test_wrong_arguments_are_named(world, changes, message):
    told = []
    with pytest.raises(ValueError, match=message):
        audit_of(world, on_step=told.append, **changes)
    # Before anything is measured, except for shadow models, which know their images.
    assert not told or "even number" in message


def test_module_that_jit_cannot_hold_is_named(world):
    model = Listed(np.ones(3))
    with pytest.raises(ValueError, match="cannot be hashed"):
        audit_of(world, {"listed": (model, {})})


def test_model_with_too_few_logits_is_named(world):
    small = Perceptron(num_classes=3)
    variables = small.init(jax.random.key(0), preprocess(world.data.test.images[:1]))
    with pytest.raises(ValueError, match="'small' has 3 logits"):
        audit_of(world, {"small": (small, variables)})


def test_training_labels_beyond_the_logits_are_named(world):
    train = world.data.train
    beyond = Dataset(train.images, np.where(train.labels == 2, 7, train.labels))
    with pytest.raises(ValueError, match="labels go up to 7"):
        audit_of(
            world,
            data=world.data._replace(train=beyond),
            options=AuditOptions(kinds=("relearn",)),
        )


def test_package_holds_the_public_names_and_is_a_plain_module():
    assert fuprune.audit_models is audit
    assert fuprune.audit.AuditData is AuditData
    assert not callable(fuprune.audit)
