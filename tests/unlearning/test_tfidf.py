import functools

import chex
import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.unlearning import tfidf
from tests import reference_unlearning as reference

# Whole numbers, so that sums are exact and ties at the mean are real ties.
activations = st.sampled_from([(1, 1), (1, 4), (3, 1), (5, 7), (10, 3)]).flatmap(
    lambda shape: hypothesis.extra.numpy.arrays(
        np.float32, shape, elements=st.integers(0, 12)
    )
)


@hypothesis.given(activations, st.integers(0, 8), st.sampled_from(tfidf.VARIANTS))
def test_scores_equal_the_loops_of_the_paper(a, target, variant):
    target %= a.shape[0]
    np.testing.assert_allclose(
        tfidf.term_frequency(a, target), reference.term_frequency(a, target), rtol=1e-6
    )
    np.testing.assert_allclose(
        tfidf.inverse_document_frequency(a, variant=variant),
        reference.inverse_document_frequency(a, variant),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        tfidf.tf_idf(a, target, variant=variant),
        reference.tf_idf(a, target, variant),
        rtol=1e-5,
        atol=1e-6,
    )


def test_hand_computed_example():
    a = np.array([[4.0, 0.0, 2.0], [0.0, 3.0, 3.0]])  # means 2 and 2
    np.testing.assert_allclose(tfidf.term_frequency(a, 0), [2 / 3, 0, 1 / 3], rtol=1e-6)
    rarity = np.log([3 / 2, 3 / 2, 3 / 3])
    np.testing.assert_allclose(
        tfidf.inverse_document_frequency(a), rarity, rtol=1e-6, atol=1e-7
    )
    # Means over classes are 2, 1.5 and 2.5: one class is at or above each.
    np.testing.assert_allclose(
        tfidf.inverse_document_frequency(a, variant="released"),
        np.log([2 / 2, 2 / 2, 2 / 2]),
        atol=1e-7,
    )


@pytest.mark.parametrize("variant", tfidf.VARIANTS)
def test_layer_that_activates_nothing_scores_zero(variant):
    scores = tfidf.tf_idf(jnp.zeros((4, 6)), 1, variant=variant)
    chex.assert_tree_all_finite(scores)
    np.testing.assert_array_equal(scores, np.zeros(6))


@pytest.mark.parametrize("variant", tfidf.VARIANTS)
def test_jit_and_vmap_over_targets_and_layers_agree_with_plain_calls(variant):
    a = np.random.default_rng(0).integers(0, 9, (3, 4, 7)).astype(np.float32)
    score = functools.partial(tfidf.tf_idf, variant=variant)
    over_targets = jax.vmap(score, in_axes=(None, 0))
    batched = jax.jit(jax.vmap(over_targets, in_axes=(0, None)))(a, jnp.arange(4))
    plain = [[score(layer, target) for target in range(4)] for layer in a]
    np.testing.assert_allclose(batched, plain, rtol=1e-6, atol=1e-7)
