"""The audit of clients and examples: known answers on data that must be memorised."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.audit.evidence import CANNOT_TELL, FAIL, PASS
from fuprune.audit.options import AuditOptions
from fuprune.audit.outputs import compute_outputs
from fuprune.audit.request_audit import (
    RequestData,
    audit_request,
    kolmogorov_smirnov,
    matched,
)
from fuprune.data.backdoor import TARGET, plant, stamp, triggered
from fuprune.data.dataset import Dataset
from fuprune.models.ensemble import Ensemble

SIDE, CLASSES, SIZE = 8, 3, 60


class Memory(nn.Module):
    """Wide enough to learn random labels by heart."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        del train, mask
        hidden = nn.relu(nn.Dense(64)(images.reshape(images.shape[0], -1)))
        return nn.Dense(CLASSES)(hidden)


MODEL = Memory()


def prepare(images):
    return jnp.asarray(images, jnp.float32) / 128.0 - 1.0


@functools.partial(jax.jit, static_argnames="steps")
def fitted(key, images, labels, steps=300):
    """Full-batch Adam from a fresh start."""
    variables = MODEL.init(key, images[:1])
    optimizer = optax.adam(3e-3)

    def loss(variables):
        logits = MODEL.apply(variables, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(_, carry):
        variables, state = carry
        updates, state = optimizer.update(jax.grad(loss)(variables), state)
        return optax.apply_updates(variables, updates), state

    start = (variables, optimizer.init(variables))
    return jax.lax.fori_loop(0, steps, step, start)[0]


@pytest.fixture(scope="module")
def case():
    """Random images and labels; the first half is forgotten, half of it triggered."""
    rng = np.random.default_rng(0)

    def draw(number):
        images = rng.integers(0, 256, (number, SIDE, SIDE, 1), np.uint8)
        return Dataset(images, rng.integers(0, CLASSES, number).astype(np.int32))

    train, test = draw(2 * SIZE), draw(4 * SIZE)
    train = plant(train, np.arange(SIZE), 0.5, seed=1)
    images, labels = prepare(train.images), jnp.asarray(train.labels)

    def model(seed, start):
        # Retraining has as many images, so that one program serves all.
        rows = np.arange(start, 2 * SIZE)
        rows = np.resize(rows, 2 * SIZE)
        return MODEL, fitted(jax.random.key(seed), images[rows], labels[rows])

    data = RequestData(
        Dataset(train.images[:SIZE], train.labels[:SIZE]),
        test,
        prepare,
        triggered(test),
        TARGET,
    )
    return data, model(0, 0), [model(seed, SIZE) for seed in range(1, 8)]


@pytest.fixture(scope="module")
def report(case):
    data, raw, retrained = case
    candidates = {"nothing": raw, "retraining": retrained[0]}
    return audit_request(
        candidates, retrained[1:], raw, data, jax.random.key(3),
        options=AuditOptions(max_examples=500),
    )  # fmt: skip


def test_what_was_memorised_is_found_by_every_kind(report):
    """A model that forgot nothing fails at least one test of each kind."""
    failed = {test.kind for test in report.tests if test.verdicts["nothing"] == FAIL}
    wanted = {"membership", "accuracy", "losses", "influence", "backdoor", "distance"}
    assert wanted <= failed
    assert report.headlines["nothing"].verdict == FAIL


def test_a_retrained_model_fails_nothing(report):
    assert report.headlines["retraining"].verdict != FAIL
    failed = [t.name for t in report.tests if t.verdicts["retraining"] == FAIL]
    assert not failed


def test_backdoor_succeeds_before_and_not_in_retrained_models(report):
    (test,) = (test for test in report.tests if test.name == "backdoor_success")
    assert test.values["raw"] > 0.9
    assert max(test.retrained) < 0.8  # by chance
    assert type(report).from_json(report.to_json()) == report


class Table(nn.Module):
    """Answers every picture of a single bright pixel with a row of its own."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        del train, mask
        return nn.Dense(CLASSES, name="head")(images.reshape(images.shape[0], -1))


FORGOTTEN = 40  # of the 8 x 8 pictures; the other 24 are test images


@pytest.fixture(scope="module")
def tables():
    """Models whose confidence in class 0, on every image, is what one writes down."""
    pictures = np.eye(SIDE * SIDE, dtype=np.uint8).reshape(-1, SIDE, SIDE, 1)
    labels = np.zeros(SIDE * SIDE, np.int32)
    rng = np.random.default_rng(1)
    trained_on = np.arange(SIDE * SIDE) < FORGOTTEN

    def model(confidence):
        kernel = np.zeros((SIDE * SIDE, CLASSES), np.float32)
        kernel[:, 0] = confidence
        params = {"head": {"kernel": kernel, "bias": np.zeros(CLASSES, np.float32)}}
        return Table(), {"params": params}

    def retrained():
        return rng.normal(0, 4, SIDE * SIDE)

    raw = 6.0 * trained_on + rng.normal(0, 4, SIDE * SIDE)
    others = [retrained() for _ in range(6)]
    candidates = {
        "one_more": retrained(),
        "overdone": np.where(trained_on, -40.0, 0.0),  # forgets more than all
        "half": (raw + np.mean(others, axis=0)) / 2,
    }
    return audit_request(
        {name: model(values) for name, values in candidates.items()},
        [model(values) for values in others],
        model(raw),
        RequestData(
            Dataset(pictures[:FORGOTTEN], labels[:FORGOTTEN]),
            Dataset(pictures[FORGOTTEN:], labels[FORGOTTEN:]),
            lambda images: jnp.asarray(images, jnp.float32),
        ),
        jax.random.key(0),
    )


def one_test(report, name):
    (test,) = (test for test in report.tests if test.name == name)
    return test


def test_what_fell_more_than_in_retraining_is_seen_with_the_model_before(tables):
    test = one_test(tables, "difference_auc")
    assert test.values["overdone"] > 0.99 > max(test.retrained)
    assert test.verdicts["overdone"] == FAIL
    assert test.verdicts["one_more"] != FAIL
    assert test.values["raw"] is None  # it does not differ from itself


def test_the_interpolated_share_of_known_mixtures(tables):
    test = one_test(tables, "interpolated_share")
    assert test.values["raw"] == pytest.approx(1)
    # By least squares against retrained models, whose noise of variance 16 is in the
    # span, 36 + 2 * 16, as well as in what is left of one more of them.
    one_more = 16 / 68
    half = (1 + 5 / 6 * one_more) / 2  # half of it is the mean of six
    assert test.values["one_more"] == pytest.approx(one_more, abs=0.25)
    assert test.values["half"] == pytest.approx(half, abs=0.1)
    assert test.verdicts["raw"] == test.verdicts["half"] == FAIL
    assert test.values["overdone"] < 0 and test.verdicts["overdone"] == FAIL
    assert test.verdicts["one_more"] != FAIL


def test_weights_farther_than_retrainings_are_seen(tables):
    test = one_test(tables, "weight_distance_to_retrained")
    assert test.verdicts["overdone"] == test.verdicts["raw"] == FAIL
    assert test.verdicts["one_more"] != FAIL
    assert test.values["half"] < min(test.retrained)  # nearer, which proves nothing
    assert test.verdicts["half"] != FAIL


def test_nothing_speaks_of_a_class(report):
    assert not any("forgotten class" in test.question for test in report.tests)
    assert report.classes == []
    assert report.settings["forgotten_training_images"] == SIZE


def test_an_ensemble_is_audited_as_one_model(case):
    data, raw, _ = case
    ensemble = Ensemble(MODEL, 2)
    both = {"params": {f"shard_{i}": raw[1]["params"] for i in range(2)}}
    single, double = (
        compute_outputs(model, variables, data.test.images, prepare, activations=True)
        for model, variables in ((MODEL, raw[1]), (ensemble, both))
    )
    np.testing.assert_allclose(
        jax.nn.log_softmax(single.logits), double.logits, atol=1e-4
    )
    assert double.features.shape[1] == 2 * single.features.shape[1]


def test_without_retrained_models_nothing_is_judged_and_nothing_breaks(case):
    data, raw, _ = case
    found = audit_request({"nothing": raw}, [], raw, data, jax.random.key(0))
    assert type(found).from_json(found.to_json()) == found
    assert {test.kind for test in found.tests} >= {"membership", "accuracy"}
    assert found.headlines["nothing"].verdict == CANNOT_TELL


def test_a_candidate_must_not_have_a_reference_s_name(case):
    data, raw, retrained = case
    with pytest.raises(ValueError, match="retrained_0.*name them otherwise"):
        audit_request({"retrained_0": raw}, retrained, raw, data, jax.random.key(0))


def test_the_margin_of_a_pass_is_the_one_asked_for(case):
    data, raw, retrained = case
    passed = {
        margin: sum(
            test.verdicts["retraining"] == PASS
            for test in audit_request(
                {"retraining": retrained[0]},
                retrained[1:],
                raw,
                data,
                jax.random.key(3),
                options=AuditOptions(max_examples=500, margin=margin),
            ).tests
        )
        for margin in (0.01, 0.99)
    }
    assert passed[0.01] < passed[0.99]


def test_kolmogorov_smirnov_of_shifted_samples():
    assert kolmogorov_smirnov([0, 1, 2, 3], [0, 1, 2, 3]) == 0
    assert kolmogorov_smirnov([0, 1, 2, 3], [10, 11]) == 1
    assert kolmogorov_smirnov([0, 1, 2, 3], [2, 3, 4, 5]) == 0.5


def test_held_out_images_have_the_forgotten_ones_proportions():
    labels = np.repeat([0, 1, 2], [30, 10, 0])
    test = Dataset(np.zeros((90, 2, 2, 1), np.uint8), np.repeat([0, 1, 2], 30))
    found = matched(test, labels, 1000, np.random.default_rng(0))
    assert np.bincount(found.labels, minlength=3).tolist() == [30, 10, 0]
    with pytest.raises(ValueError, match="no test image is of a class"):
        matched(test, np.asarray([5]), 10, np.random.default_rng(0))


def test_the_trigger_changes_a_corner_and_nothing_else():
    images = np.full((2, 8, 8, 3), 7, np.uint8)
    stamped = stamp(images)
    assert (images == 7).all()
    assert (stamped[:, :6] == 7).all() and (stamped[:, :, :6] == 7).all()
    assert set(np.unique(stamped[:, 6:, 6:])) == {0, 255}
    assert (triggered(Dataset(images, np.asarray([TARGET, 1]))).labels == [1]).all()
