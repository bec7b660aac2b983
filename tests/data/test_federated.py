import itertools
import re

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from fuprune.data.dataset import Dataset
from fuprune.data.federated import (
    FederatedDataset,
    draw_distinct,
    drop_classes,
    federate,
    keep_classes,
    sample_cohort,
    take_clients,
    whole_cohort,
)

NUM_EXAMPLES, NUM_CLIENTS, LENGTH, NUM_CLASSES = 30, 6, 9, 5


def make_dataset(seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(
        rng.integers(256, size=(NUM_EXAMPLES, 2, 2, 1)).astype(np.uint8),
        rng.integers(NUM_CLASSES, size=NUM_EXAMPLES).astype(np.int32),
    )


def draw_parts(seed):
    """Parts of 0 to LENGTH examples, one of them of exactly LENGTH: one shape."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(LENGTH + 1, size=NUM_CLIENTS)
    sizes[rng.integers(NUM_CLIENTS)] = LENGTH
    return [rng.choice(NUM_EXAMPLES, size, replace=False) for size in sizes]


def members(data: FederatedDataset) -> list[list[int]]:
    """Each client's example indices, in order."""
    return [
        row[:length].tolist()
        for row, length in zip(
            np.asarray(data.rows), np.asarray(data.lengths), strict=True
        )
    ]


def test_federate_gives_each_client_its_part_and_pads_with_zeros():
    dataset = make_dataset()
    data = federate(dataset, [np.array([3, 1, 2]), np.array([], int), np.array([7])])
    assert members(data) == [[3, 1, 2], [], [7]]
    np.testing.assert_array_equal(data.rows, [[3, 1, 2], [0, 0, 0], [7, 0, 0]])
    chex.assert_trees_all_equal(data.images, dataset.images)
    chex.assert_type([data.images, data.labels], [jnp.uint8, jnp.int32])
    chex.assert_type([data.rows, data.lengths], jnp.int32)
    assert (data.num_clients, data.max_length) == (3, 3)


def test_federation_of_empty_clients_is_legal():
    data = federate(make_dataset(), [np.array([], int)] * 2)
    assert data.rows.shape == (2, 1)
    assert members(drop_classes(data, [0])) == [[], []]
    assert members(keep_classes(data, [0])) == [[], []]


@hypothesis.given(
    seed=st.integers(0, 10_000), classes=st.sets(st.integers(0, NUM_CLASSES - 1))
)
def test_dropped_classes_never_appear_and_the_rest_keeps_its_order(seed, classes):
    dataset = make_dataset(seed)
    parts = draw_parts(seed)
    data = federate(dataset, parts)
    retained, forgotten = drop_classes(data, classes), keep_classes(data, classes)
    gone = [[e for e in part if dataset.labels[e] in classes] for part in parts]
    stay = [[e for e in part if dataset.labels[e] not in classes] for part in parts]
    assert members(retained) == stay
    assert members(forgotten) == gone
    for result in (retained, forgotten):
        chex.assert_trees_all_equal_shapes_and_dtypes(result, data)
        # Padding is zero, so that nothing of what was dropped is left behind it.
        padding = np.arange(LENGTH) >= np.asarray(result.lengths)[:, None]
        assert np.all(np.asarray(result.rows)[padding] == 0)


def test_sampling_under_jit_draws_the_same_clients_and_compiles_once():
    data = federate(make_dataset(), draw_parts(0))

    @jax.jit
    @chex.assert_max_traces(n=1)
    def clients(key, data):
        return sample_cohort(key, data, 3).clients

    for seed in range(3):
        key = jax.random.key(seed)
        expected = sample_cohort(key, data, 3)
        chosen = np.asarray(clients(key, data))
        np.testing.assert_array_equal(chosen, expected.clients)
        np.testing.assert_array_equal(expected.rows, np.asarray(data.rows)[chosen])


def test_cohorts_come_in_order_and_copy_no_image():
    data = federate(make_dataset(), draw_parts(0))
    cohort = whole_cohort(data)
    np.testing.assert_array_equal(cohort.clients, np.arange(NUM_CLIENTS))
    chex.assert_trees_all_equal(cohort[:4], data[:4])
    taken = take_clients(data, [4, 0])
    np.testing.assert_array_equal(taken.clients, [4, 0])
    np.testing.assert_array_equal(taken.rows, np.asarray(data.rows)[[4, 0]])
    for other in (cohort, taken, drop_classes(data, (1,))):
        assert other.images is data.images


def frequencies(population, size, draws, seed=0):
    """How often each ordered choice came, by choice, of `draws` independent draws."""
    keys = jax.random.split(jax.random.key(seed), draws)
    draw = jax.jit(jax.vmap(lambda key: draw_distinct(key, population, size)))
    choices, times = np.unique(np.asarray(draw(keys)), axis=0, return_counts=True)
    return {
        tuple(each): int(n) for each, n in zip(choices.tolist(), times, strict=True)
    }


# Permuted (K <= 4M), cohort of everybody, and drawn with replacement (K > 4M).
@pytest.mark.parametrize(
    ("population", "size"), [(4, 2), (3, 3), (5, 1), (9, 2), (13, 2), (13, 3)]
)
def test_every_ordered_choice_is_equally_likely(population, size):
    choices = list(itertools.permutations(range(population), size))
    draws = 40 * len(choices)
    seen = frequencies(population, size, draws)
    assert set(seen) <= set(choices)
    observed = [seen.get(choice, 0) for choice in choices]
    # The key is fixed, so this holds always or never; p > 0.001 for a fair draw.
    assert stats.chisquare(observed).pvalue > 0.001


# Everybody, the last population that is permuted, the first that is not, a large one.
@pytest.mark.parametrize(
    ("population", "size"), [(1, 1), (12, 12), (48, 12), (49, 12), (1_000_000, 300)]
)
def test_no_client_is_drawn_twice(population, size):
    keys = jax.random.split(jax.random.key(1), 300)
    draw = jax.jit(jax.vmap(lambda key: draw_distinct(key, population, size)))
    chosen = np.sort(np.asarray(draw(keys)), axis=1)
    assert chosen.shape == (300, size) and chosen.dtype == np.int32
    assert chosen.min() >= 0 and chosen.max() < population
    assert np.all(np.diff(chosen, axis=1) > 0)


def test_a_small_cohort_never_enumerates_its_population():
    """No array of a draw among 2**30 clients is longer than twice the cohort."""
    program = jax.make_jaxpr(lambda key: draw_distinct(key, 2**30, 10))(
        jax.random.key(0)
    )
    sizes = [int(n) for n in re.findall(r":\w+\[(\d+)", str(program))]
    assert sizes and max(sizes) <= 20
