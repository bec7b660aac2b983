"""Relabelling: forgotten images get the nearest other answer, remaining ones stay."""

import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.preprocess import to_float
from tests.unlearning.small import (
    SmallNet,
    forget_by,
    initial,
    make_fine_tune,
    small_data,
)

MODEL = SmallNet()
CLASSES = (1, 3)


def taught_by(data, variables, method="relabel", **options):
    """The data that fine-tuning was given, and the notes."""
    seen = []
    fine_tune = make_fine_tune()

    def watch(model, variables, given, key):
        seen.append(given)
        return fine_tune(model, variables, given, key)

    options |= {"seed": 3, "fine_tune": watch}
    result = forget_by(method, MODEL, variables, data, CLASSES, **options)
    return seen[0], result.notes


@pytest.mark.parametrize("backend", ["loop", "map", "vmap"])
def test_forgotten_images_get_the_best_answer_among_the_others(backend, monkeypatch):
    monkeypatch.setattr("fuprune.unlearning.relabel.BATCH_SIZE", 3)
    data, variables = small_data(), initial(MODEL)
    given, notes = taught_by(data, variables, backend=backend)
    old, new = np.asarray(data.labels), np.asarray(given.labels)
    logits = MODEL.apply(variables, to_float(None, data.images))
    nearest = np.asarray([0, 2])[np.argmax(np.asarray(logits)[:, [0, 2]], axis=1)]
    forgotten = np.isin(old, CLASSES)
    np.testing.assert_array_equal(new, np.where(forgotten, nearest, old))
    assert forgotten.any() and sum(notes["new_labels"]) == forgotten.sum()
    np.testing.assert_array_equal(given.rows, data.rows)


def test_random_answers_are_other_classes_and_follow_the_key():
    data, variables = small_data(), initial(MODEL)
    first, _ = taught_by(data, variables, answer="random")
    again, _ = taught_by(data, variables, answer="random")
    np.testing.assert_array_equal(first.labels, again.labels)
    forgotten = jnp.isin(data.labels, jnp.asarray(CLASSES))
    assert set(np.asarray(first.labels)[np.asarray(forgotten)].tolist()) == {0, 2}


def test_after_the_papers_cut_labels_are_those_of_the_uncut_network():
    data, variables = small_data(), initial(MODEL)
    plain, notes = taught_by(data, variables)
    given, both = taught_by(data, variables, "prune_relabel", rate=0.3)
    np.testing.assert_array_equal(plain.labels, given.labels)
    assert both["new_labels"] == notes["new_labels"]
    _, cut = taught_by(data, variables, "class_pruning", rate=0.3, num_classes=4)
    assert both["cuts"] == cut["cuts"] and both["cuts"]
