import jax
import numpy as np
import pytest

from fuprune.audit import RelearnOptions
from fuprune.audit.relearn import (
    Curve,
    Setting,
    looks,
    make_lesson,
    make_settings,
    relearn,
)
from fuprune.audit.training import batch_rows, sgd_step
from tests.audit.conftest import FORGOTTEN, OPTIONS, audit_of, run_audit


@pytest.fixture(scope="module")
def relearned(world):
    train, test, preprocess = world.data
    rows = batch_rows(np.random.default_rng(0), np.arange(len(train.labels)), 30, 32)
    chosen = test.labels == FORGOTTEN

    def run(variables, images="all", learning_rate=0.002, rows=rows):
        return relearn(
            (world.model, variables),
            Setting(images, 100, learning_rate),
            make_lesson(train, rows, preprocess),
            (preprocess(test.images[chosen]), test.labels[chosen]),
            classes=(FORGOTTEN,),
            steps=looks(len(rows), 2),
        )

    return run


def area(curve):
    return float(curve.area_by_image().mean())


def test_masked_logit_comes_back_as_the_raw_model_does(world, relearned):
    raw, masked = relearned(world.raw), relearned(world.masked)
    np.testing.assert_array_equal(raw.right, masked.right)


def test_retrained_models_come_back_more_slowly_than_the_raw_one(world, relearned):
    raw = relearned(world.raw)
    for variables in world.retrained[:3]:
        assert area(relearned(variables)) < area(raw) - 0.2


def test_without_images_of_the_class_a_retrained_model_does_not_learn_it(
    world, relearned
):
    labels = world.data.train.labels
    rows = batch_rows(
        np.random.default_rng(0), np.flatnonzero(labels != FORGOTTEN), 10, 32
    )
    assert area(relearned(world.honest, rows=rows, images="retained")) == 0
    assert area(relearned(world.raw, rows=rows, images="retained")) > 0.5


def test_a_model_that_diverges_recognises_nothing(world):
    """Not class 0 either, whose logit comes first where all are NaN."""
    train, test, preprocess = world.data
    chosen = test.labels == 0
    curve = relearn(
        (world.model, world.raw),
        Setting("retained", 8, learning_rate=1e30),
        make_lesson(train, np.arange(32).reshape(2, 16), preprocess),
        (preprocess(test.images[chosen]), test.labels[chosen]),
        classes=(0,),
        steps=[0, 1, 2],
    )
    assert curve.accuracy[0] > 0.9
    assert curve.accuracy[-1] == 0


def test_area_is_the_mean_accuracy_over_the_steps():
    right = np.array([[0, 0], [1, 0], [1, 1]], bool)
    curve = Curve(np.array([0, 2, 4]), right)
    # Trapezia: the first image 1 + 2, the second 0 + 1, over four steps.
    np.testing.assert_allclose(curve.area_by_image(), [0.75, 0.25])
    np.testing.assert_allclose(curve.accuracy, [0, 0.5, 1])
    np.testing.assert_array_equal(curve.at(2), [True, False])


def test_a_level_never_reached_has_no_time():
    curve = Curve(np.array([0, 2, 4]), np.array([[0, 0], [1, 0], [1, 0]], bool))
    assert curve.steps_to(0.5) == 2
    assert curve.steps_to(0.9) is None


def test_grid_has_every_rate_and_every_amount():
    options = RelearnOptions(
        images_per_class=(10, 1, 100), learning_rates=(0.1, 0.01, 0.001)
    )
    settings = make_settings(options)
    for images in ("all", "forgotten"):
        taught = [s[1:] for s in settings if s.images == images]
        assert len(taught) == len(set(taught)) == 5
        # The fewest images at every rate, the others at the middle one.
        assert {rate for amount, rate in taught if amount == 1} == {0.1, 0.01, 0.001}
        assert {rate for amount, rate in taught if amount > 1} == {0.01}
    # How many images of the other classes there are hardly matters.
    assert [s[1:] for s in settings if s.images == "retained"] == [(100, 0.1)]


def test_looks_are_close_at_first_and_end_with_the_last_step():
    assert looks(10, 4) == [0, 1, 2, 4, 8, 10]
    assert looks(3, 5) == [0, 1, 2, 3]
    assert looks(4, 1) == [0, 1, 2, 3, 4]


def test_accuracy_at_a_fixed_step_is_of_that_very_step(world):
    """Every third step is looked at, and those besides that a test names."""
    asked = OPTIONS.relearn._replace(steps=7, every=3, fixed_steps=(4, 7, 9))
    assert looks(7, 3, asked.fixed_steps) == [0, 1, 2, 3, 4, 6, 7]
    found = run_audit(
        world, kinds=("relearn",), options=OPTIONS._replace(relearn=asked)
    )
    named = {t.name: t for t in found.tests if "accuracy_at" in t.name}
    assert set(named) == {"relearn_accuracy_at_4", "relearn_accuracy_at_7"}
    (raw,) = (r for r in found.detail["relearn"]["runs"] if r["model"] == "raw")
    at_four = raw["accuracy"][raw["steps"].index(4)]
    assert named["relearn_accuracy_at_4"].values["raw"] == pytest.approx(at_four)


def test_every_forgotten_class_is_looked_at(world):
    """Test images are stored class by class, and a batch holds those of one class.

    The model knows one of the two classes.
    """
    most = int((world.data.test.labels == 1).sum())
    found = audit_of(
        world,
        raw=(world.model, world.masked),
        classes=(1, FORGOTTEN),
        options=OPTIONS._replace(
            kinds=("relearn",),
            batch_size=most,
            relearn=RelearnOptions(images=("retained",), steps=1),
        ),
    )
    (run,) = found.detail["relearn"]["runs"]
    assert run["accuracy"][0] == 0.5


def test_capped_against_capped_cannot_tell(world):
    """With too few steps nobody is back; the old way gave all of them the cap."""
    found = run_audit(
        world,
        kinds=("relearn",),
        options=OPTIONS._replace(
            relearn=OPTIONS.relearn._replace(steps=2, images=("all",))
        ),
    )
    (steps,) = [test for test in found.tests if test.name == "relearn_steps"]
    assert set(steps.values.values()) == {None}
    assert steps.retrained == [None] * 5
    assert set(steps.verdicts.values()) == {"cannot tell"}


def test_a_candidate_that_is_never_back_is_not_given_the_cap(world):
    found = run_audit(
        world,
        kinds=("relearn",),
        retrained=[world.raw, world.raw, world.raw],
        options=OPTIONS._replace(
            relearn=OPTIONS.relearn._replace(steps=14, images=("all",))
        ),
    )
    (steps,) = [test for test in found.tests if test.name == "relearn_steps"]
    late = [name for name, value in steps.values.items() if value is None]
    assert late == ["honest"]
    assert steps.verdicts["honest"] == "cannot tell"


def test_one_retrained_model_that_is_never_back_leaves_the_steps_open(world):
    """The others' times alone would be those of the quick ones."""
    found = run_audit(
        world,
        kinds=("relearn",),
        retrained=[world.raw, world.raw, world.raw, world.honest],
        options=OPTIONS._replace(
            relearn=OPTIONS.relearn._replace(steps=14, images=("all",))
        ),
    )
    (steps,) = [test for test in found.tests if test.name == "relearn_steps"]
    assert [value is None for value in steps.retrained] == [False] * 3 + [True]
    assert set(steps.verdicts.values()) == {"cannot tell"}
    assert any("not all retrained models are back" in note for note in steps.notes)


@pytest.mark.parametrize(
    "changes", [{"images": ("some",)}, {"steps": 0}, {"images_per_class": (0,)}]
)
def test_wrong_settings_are_named(world, changes):
    options = OPTIONS._replace(relearn=OPTIONS.relearn._replace(**changes))
    with pytest.raises(ValueError, match="relearning has images"):
        run_audit(world, kinds=("relearn",), options=options)


def test_model_under_test_is_left_as_it_was(world, relearned):
    before = jax.tree.map(np.array, world.raw)
    relearned(world.raw)
    jax.tree.map(np.testing.assert_array_equal, before, world.raw)


def test_step_is_compiled_once_for_all_models_and_settings(world, relearned):
    relearned(world.raw)
    before = sgd_step._cache_size()
    relearned(world.masked, learning_rate=0.01)
    relearned(world.honest, images="retained")
    assert sgd_step._cache_size() == before


def test_batches_are_passes_over_all_rows():
    rows = batch_rows(np.random.default_rng(0), np.arange(10, 18), 4, 4)
    assert rows.shape == (4, 4)
    for half in (rows[:2], rows[2:]):
        np.testing.assert_array_equal(np.sort(half.reshape(-1)), np.arange(10, 18))
    assert batch_rows(np.random.default_rng(0), np.arange(3), 2, 8).shape == (2, 8)
