"""The rate that is found by asking: halving, counting, its price, its protection."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from fuprune.data.federated import take_clients
from fuprune.errors import InputError, UnlearnError
from fuprune.models.adapt import adapt
from fuprune.unlearning.activations import ClassActivations, ask
from fuprune.unlearning.auto_rate import (
    RATES,
    Tried,
    answers_program,
    judged,
    smallest_rate,
)
from tests.unlearning.small import SmallNet, forget_by, initial, small_data

MODEL = SmallNet(width=24)


@pytest.fixture(scope="module")
def trained():
    return small_data(), initial(MODEL)


@hypothesis.given(st.floats(0, 1), st.sampled_from([0.0, 0.02, 0.1]))
def test_the_smallest_rate_that_forgets_is_found_in_at_most_eight_cuts(edge, level):
    """For any rate from which on the class is unknown, and never in more tries."""
    tried = smallest_rate(
        lambda rate: Tried(rate, 1.0 if rate < edge else level, 0.5), level
    )
    assert len(tried) <= 8
    enough = [rate for rate in RATES if rate >= edge]
    assert tried[-1].rate == (enough[0] if enough else RATES[-1])
    assert len({row.rate for row in tried}) == len(tried)


def test_counts_are_those_of_the_clients_own_images(trained):
    """Every image asked about, both kinds: the twin applies the network to each."""
    data, variables = trained
    cohort = take_clients(data, (0, 1, 2, 3))
    asked = dict(classes=(3,), leaving=(3, 1), images=10)
    seen = ask(answers_program, adapt(MODEL), variables, cohort, bound=1.0, **asked)
    images = np.asarray(data.images, np.float32) / 255
    right = np.argmax(MODEL.apply(variables, images, train=False), -1)
    labels = np.asarray(data.labels)
    for k, upload in zip(seen.clients, seen.uploads, strict=True):
        own = np.asarray(data.rows)[k, : int(data.lengths[k])]
        for kind, members in enumerate(([3], [0, 2])):
            asked = own[np.isin(labels[own], members)]
            assert upload.num_examples[kind] == len(asked)
            hits = np.sum(right[asked] == labels[asked])
            assert upload.total["right"][kind, 0] == hits


def test_auto_goes_through_the_method_and_says_what_it_tried(trained):
    data, variables = trained
    options = dict(rate="auto", num_classes=4, score="contrast")
    result = forget_by("class_pruning", MODEL, variables, data, (3, 1), **options)
    tried = result.notes["auto_rate"]
    assert set(tried) == {"3", "1"} and all(len(rows) <= 8 for rows in tried.values())
    assert tried["3"][-1]["forgotten"] <= 0.02
    cut = result.notes["cuts"][0]["plan"][-1]
    gone = cut["channels_before"] - cut["channels_after"]
    assert gone == int(tried["3"][-1]["rate"] * cut["channels_before"])


def test_auto_under_noise_is_refused_before_anything_is_read(trained):
    data, variables = trained
    with pytest.raises(InputError, match="privacy.epsilon"):
        options = dict(rate="auto", epsilon=1.0)
        forget_by("class_pruning", MODEL, variables, data, (3,), **options)


def test_a_sum_is_judged_like_its_parts_and_no_answers_are_no_verdict():
    one = ClassActivations({"right": np.array([[1.0], [3.0]])}, np.array([4.0, 6.0]))
    two = ClassActivations({"right": np.array([[0.0], [6.0]])}, np.array([6.0, 6.0]))
    both = jax.tree.map(np.add, one, two)
    assert judged(0.1, [one, two]) == judged(0.1, both) == Tried(0.1, 0.1, 0.75)
    with pytest.raises(UnlearnError, match="set prune.rate to a number"):
        judged(0.1, [])
