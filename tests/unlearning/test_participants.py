"""Who takes part: the draw, and which classes the drawn clients hold."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune.data.federated import federate, keep_classes
from fuprune.unlearning.request import (
    choose_participants,
    missing_classes,
    participating,
)
from tests.tiny import tiny_dataset
from tests.unlearning.small import SmallNet, forget_by, initial

DATASET = tiny_dataset(40)
ONE_CLASS_EACH = federate(
    DATASET, [np.flatnonzero(DATASET.labels == u % 4) for u in (0, 1, 2, 3, 0, 1)]
)


def test_participants_are_different_clients_and_the_keys_alone():
    drawn = [choose_participants(jax.random.key(i), ONE_CLASS_EACH, 3) for i in (0, 1)]
    assert drawn[0] == choose_participants(jax.random.key(0), ONE_CLASS_EACH, 3)
    assert all(len(set(ids)) == 3 and set(ids) <= set(range(6)) for ids in drawn)
    every = choose_participants(jax.random.key(0), ONE_CLASS_EACH, 6)
    assert sorted(every) == list(range(6))


@settings(max_examples=30, deadline=None)
@given(ids=st.sets(st.integers(0, 5), min_size=1), classes=st.sets(st.integers(0, 5)))
def test_missing_classes_are_those_no_participant_holds(ids, classes):
    held = {k % 4 for k in ids}
    missing = missing_classes(ONE_CLASS_EACH, tuple(ids), sorted(classes))
    assert missing == tuple(u for u in sorted(classes) if u not in held)


def test_everybody_takes_part_by_default_and_removed_images_do_not_count():
    assert missing_classes(ONE_CLASS_EACH, None, range(5)) == (4,)
    left = keep_classes(ONE_CLASS_EACH, (1, 2))
    assert missing_classes(left, None, range(4)) == (0, 3)


def test_others_hold_nothing_and_shapes_stay():
    some = participating(ONE_CLASS_EACH, (5, 0))
    assert np.flatnonzero(np.asarray(some.lengths)).tolist() == [0, 5]
    assert some.rows.shape == ONE_CLASS_EACH.rows.shape
    assert participating(ONE_CLASS_EACH, None) is ONE_CLASS_EACH


@pytest.mark.parametrize("ids", [(), (6,), (-1,)])
def test_ids_that_do_not_exist_are_refused(ids):
    with pytest.raises(ValueError, match="one or more client ids from 0 to 5"):
        participating(ONE_CLASS_EACH, ids)
    with pytest.raises(ValueError, match="one or more client ids from 0 to 5"):
        scores_by(ids)


def scores_by(ids):
    """The scores of the first cut, by statistics of these clients."""
    model = SmallNet()
    given = (model, initial(model), ONE_CLASS_EACH, (1,))
    notes = forget_by("class_pruning", *given, rate=0.3, participants=ids).notes
    return notes["participants"], notes["cuts"][0]["scores"]


def test_who_is_named_twice_takes_part_once():
    assert scores_by((1, 2, 1)) == scores_by((1, 2))
    assert scores_by((1, 2))[0] == 2
