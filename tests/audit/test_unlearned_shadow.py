"""Shadow models that are unlearned, by methods whose trace is known."""

import chex
import jax
import numpy as np
import pytest

from fuprune.audit import AuditOptions, ShadowOptions
from fuprune.audit.unlearned_shadow import fine_tune
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError
from tests.audit.conftest import FORGOTTEN, preprocess, run_audit


def turned_down(variables):
    """Hides the class: its logit is ten lower, and orders images as before."""
    head = variables["params"]["head"]
    lower = {**head, "bias": head["bias"].at[FORGOTTEN].add(-10.0)}
    return {**variables, "params": {**variables["params"], "head": lower}}


def test_a_method_that_hides_is_caught_by_shadows_that_hide_as_well(memorised):
    asked = []

    def hide(module, variables, key, trained_on):
        asked.append(trained_on)
        return module, turned_down(variables)

    report = run_audit(
        memorised,
        # The second is of the same method, as another seed would be.
        candidates={
            "hidden": turned_down(memorised.raw),
            "hidden_seed2": turned_down(memorised.honest),
        },
        kinds=("unlearned_shadow",),
        shadow=ShadowOptions(
            models=4,
            steps=200,
            backend="vmap",
            unlearn={"hidden": hide, "hidden_seed2": hide},
            fine_tune_steps=20,
        ),
    )
    own = next(t for t in report.tests if t.name == "unlearned_shadow_hidden_auc")
    assert own.values["hidden"] > 0.8
    assert own.verdicts["hidden"] == "fail"
    # One attack for both, in which the one that never saw the class passes.
    assert set(own.values) == {"hidden", "hidden_seed2", "raw"}
    assert own.verdicts["hidden_seed2"] != "fail"
    assert np.mean(own.retrained) < 0.65
    assert own.family == "headline"
    assert "unlearned by the method itself" in own.notes[0]
    # A shadow's method is told what that shadow was trained on, and no more.
    assert len(asked) == 4
    assert all(isinstance(one, Dataset) for one in asked)
    other = next(t for t in report.tests if t.name == "unlearned_shadow_auc")
    assert set(other.values) == {"honest", "raw"}
    assert other.verdicts["honest"] != "fail"
    assert other.family == "further"
    assert "fine-tuning without the class" in other.notes[0]


def test_a_method_that_fails_on_shadows_is_noted_where_it_is_judged(memorised):
    def refuse(module, variables, key, trained_on):
        raise InputError("nothing to cut")

    def keep(module, variables, key, trained_on):
        return module, variables

    report = run_audit(
        memorised,
        candidates={"failing": memorised.raw, "working": memorised.raw},
        kinds=("unlearned_shadow",),
        shadow=ShadowOptions(
            models=2,
            steps=2,
            backend="vmap",
            unlearn={"failing": refuse, "working": keep},
            fine_tune_steps=1,
        ),
    )
    notes = {test.name: test.notes for test in report.tests}
    told = "failing could not be run on shadow models: nothing to cut"
    assert told in notes["unlearned_shadow_auc"]
    assert told not in notes["unlearned_shadow_working_auc"]


def test_a_method_that_makes_shadows_diverge_is_noted_too(memorised):
    def diverge(module, variables, key, trained_on):
        return module, jax.tree.map(lambda leaf: leaf * np.nan, variables)

    shadow = ShadowOptions(
        models=2, steps=2, backend="vmap", fine_tune_steps=1, unlearn={"bad": diverge}
    )
    report = run_audit(
        memorised,
        candidates={"bad": memorised.raw},
        kinds=("unlearned_shadow",),
        shadow=shadow,
    )
    told = "bad could not be run on shadow models: shadow model 1 answers with NaN"
    notes = {test.name: test.notes for test in report.tests}
    assert any(note.startswith(told) for note in notes["unlearned_shadow_auc"])


def test_shadow_models_that_diverge_are_refused_in_one_line(memorised):
    shadow = ShadowOptions(models=2, steps=4, backend="vmap", learning_rate=1e30)
    with pytest.raises(InputError, match="learning rate smaller than 1e[+]30"):
        run_audit(memorised, kinds=("shadow",), shadow=shadow)


def test_a_shadow_without_an_image_to_keep_stays_as_it_was(memorised):
    """Of two images per class, a half may hold the forgotten class alone."""
    train, _, _ = memorised.data
    nothing = Dataset(train.images[:0], train.labels[:0])
    found = fine_tune(
        memorised.model,
        memorised.raw,
        jax.random.key(0),
        nothing,
        preprocess,
        AuditOptions(),
    )
    chex.assert_trees_all_equal(found, memorised.raw)
