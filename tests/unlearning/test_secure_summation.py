import itertools
import math
from collections import Counter

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fuprune.errors import TooFewClientsError
from fuprune.unlearning import secure_summation
from fuprune.unlearning.activations import ClassActivations
from fuprune.unlearning.secure_summation import (
    SCALE,
    agree_keys,
    decode,
    encode,
    mask_upload,
    reveal_shares,
    secure_sum,
    unmask,
)
from fuprune.unlearning.summation_keys import PRIME, recover_secret, share_secret


def make_uploads(num_clients, seed=0, size=100.0):
    draws = np.random.default_rng(seed)
    return [
        ClassActivations(
            total={
                "conv1": draws.uniform(0, size, (3, 4)).astype(np.float32),
                "conv2": draws.uniform(-size, size, (3, 2)).astype(np.float32),
            },
            num_examples=draws.integers(0, 50, 3).astype(np.float32),
        )
        for _ in range(num_clients)
    ]


def plain_sum(uploads):
    return jax.tree.map(lambda *leaves: np.sum(np.float64(leaves), axis=0), *uploads)


@pytest.mark.parametrize(
    ("num_clients", "dropped", "threshold"),
    [
        (2, (), None),
        (5, (), 5),
        (5, (0,), None),
        (6, (1, 4), 3),
        (10, range(1, 9), 2),
        (30, range(27), 3),  # nine in ten drop out
    ],
)
def test_sum_is_the_plain_sum_of_those_who_stayed(num_clients, dropped, threshold):
    uploads = make_uploads(num_clients)
    stayed = [u for i, u in enumerate(uploads) if i not in set(dropped)]
    result = secure_sum(
        uploads, key=jax.random.key(3), dropped=dropped, threshold=threshold
    )
    assert isinstance(result, ClassActivations)
    # half a step of rounding from each client, then the sum's own float32 rounding
    chex.assert_trees_all_close(
        jax.tree.map(np.float64, result),
        plain_sum(stayed),
        atol=num_clients / SCALE / 2,
        rtol=2e-7,
    )
    np.testing.assert_array_equal(result.num_examples, plain_sum(stayed).num_examples)


@settings(max_examples=25)
@given(
    values=st.lists(
        st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3),
        min_size=2,
        max_size=5,
    ),
    gone=st.sets(st.integers(0, 4)),
)
def test_masks_cancel_to_the_last_bit_whoever_drops(values, gone):
    uploads = [np.array(row, np.float64) / 8 for row in values]
    gone = {i for i in gone if i < len(uploads)}
    if len(uploads) - len(gone) < 2:
        gone = set()
    result = secure_sum(uploads, key=jax.random.key(0), dropped=gone, threshold=2)
    stayed = [u for i, u in enumerate(uploads) if i not in gone]
    np.testing.assert_array_equal(result, np.float32(np.sum(stayed, axis=0)))


def test_whole_number_leaves_stay_whole():
    uploads = [{"n": np.array([1, 2], np.int32), "x": np.float32([0.1])}] * 3
    result = secure_sum(uploads, key=jax.random.key(0))
    assert result["n"].dtype == np.int32
    np.testing.assert_array_equal(result["n"], [3, 6])


def test_same_key_gives_the_same_protocol_and_another_key_another():
    upload = make_uploads(1)[0]
    sent = []
    for seed in (0, 0, 1):
        setup = agree_keys(jax.random.key(seed), 3)
        sent.append(mask_upload(upload, setup.parties[0]))
    np.testing.assert_array_equal(sent[0], sent[1])
    assert np.mean(sent[0] == sent[2]) < 0.01


def assert_uniform(words):
    """Bytes by chi-square and whole words by Kolmogorov-Smirnov, at 1 in 10^4."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("content", ["zeros", "constant", "ramp"])
def test_a_single_masked_upload_is_uniform_whatever_is_in_it(content):
    size = 20_000
    upload = {
        "zeros": np.zeros(size),
        "constant": np.full(size, 12345.678),
        "ramp": np.arange(size, dtype=np.float64),
    }[content]
    setup = agree_keys(jax.random.key(5), 3)
    for client in range(3):
        sent = mask_upload(upload, setup.parties[client])
        assert_uniform(sent)
        encoded = encode(upload, num_clients=3)
        correlation = np.corrcoef(np.float64(sent), np.arange(size))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(size)
        assert np.mean(sent == encoded) < 0.001


def test_uniformity_check_would_notice_an_unmasked_upload():
    with pytest.raises(AssertionError):
        assert_uniform(encode(np.arange(20_000) * 1.0, num_clients=3))


def test_what_arrived_stays_uniform_until_shares_are_opened():
    uploads = [np.zeros(20_000)] * 4
    setup = agree_keys(jax.random.key(6), 4)
    sent = [mask_upload(u, setup.parties[i]) for i, u in enumerate(uploads)]
    for size in (2, 3, 4):
        for group in itertools.combinations(sent, size):
            assert_uniform(np.sum(group, axis=0, dtype=np.uint64))


def test_colluders_who_take_off_their_masks_still_see_noise():
    size = 20_000
    setup = agree_keys(jax.random.key(7), 4)
    victim = mask_upload(np.ones(size), setup.parties[0])
    for colluder in (2, 3):
        victim = victim + secure_summation._pair_mask(
            colluder,
            0,
            setup.parties[colluder].keys.private_key,
            setup.directory.public_keys,
            size,
        )
    assert_uniform(victim)
    # Even with the own mask opened, the pair with the honest client 1 hides it.
    opened = victim - secure_summation._own_mask(setup.parties[0].keys.self_seed, size)
    assert_uniform(opened)


def test_all_the_others_together_can_bare_a_client_and_nothing_less():
    size = 50
    setup = agree_keys(jax.random.key(8), 3)
    upload = np.arange(size, dtype=np.float64)
    bared = mask_upload(upload, setup.parties[0])
    bared = bared - secure_summation._own_mask(setup.parties[0].keys.self_seed, size)
    for colluder in (1, 2):
        assert not np.array_equal(bared, encode(upload, num_clients=3))
        bared = bared + secure_summation._pair_mask(
            colluder,
            0,
            setup.parties[colluder].keys.private_key,
            setup.directory.public_keys,
            size,
        )
    np.testing.assert_array_equal(bared, encode(upload, num_clients=3))


def test_fewer_shares_than_the_threshold_say_nothing_about_the_secret():
    """Over a small field every polynomial can be tried: all views are alike."""
    prime, threshold = 7, 3
    views = []
    for secret in range(prime):
        seen = Counter()
        for coefficients in itertools.product(range(prime), repeat=threshold - 1):
            shares = share_secret(
                secret, coefficients=coefficients, num_shares=5, prime=prime
            )
            seen[shares[1], shares[4]] += 1
        views.append(seen)
    assert all(view == views[0] for view in views)
    assert set(views[0].values()) == {1} and len(views[0]) == prime**2


@settings(max_examples=50)
@given(
    secret=st.integers(0, PRIME - 1),
    coefficients=st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=5),
    order=st.permutations(range(8)),
)
def test_any_threshold_of_shares_recovers_the_secret(secret, coefficients, order):
    shares = share_secret(secret, coefficients=coefficients, num_shares=8)
    threshold = len(coefficients) + 1
    chosen = {i: shares[i] for i in order[:threshold]}
    assert recover_secret(chosen, threshold=threshold) == secret
    del chosen[order[0]]
    with pytest.raises(TooFewClientsError):
        recover_secret(chosen, threshold=threshold)


def test_below_the_threshold_there_is_no_sum():
    with pytest.raises(TooFewClientsError, match="2 of 5 clients remain and 3"):
        secure_sum(make_uploads(5), key=jax.random.key(0), dropped={0, 2, 4})
    with pytest.raises(TooFewClientsError):
        secure_sum(make_uploads(3), key=jax.random.key(0), dropped={0, 1, 2})


def test_a_false_share_of_a_key_is_noticed_and_a_missing_one():
    setup = agree_keys(jax.random.key(0), 3)
    sent = {i: mask_upload(np.ones(2), setup.parties[i]) for i in (0, 1)}
    shown = {i: reveal_shares(setup.held[i], setup.directory, sent=sent) for i in sent}
    true = shown[0].pop(2)
    with pytest.raises(TooFewClientsError, match="1 clients remain .* takes 2"):
        unmask(sent, setup.directory, shown)
    shown[0][2] = true ^ 1
    with pytest.raises(ValueError, match="client 2's key do not give that key"):
        unmask(sent, setup.directory, shown)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_values_that_would_wrap_are_refused(value):
    uploads = [np.array([0.0, value])] + [np.zeros(2)] * 2
    with pytest.raises(ValueError, match="3 clients can sum values of up to"):
        secure_sum(uploads, key=jax.random.key(0))


@pytest.mark.parametrize("num_clients", [2, 3, 100])
def test_the_largest_values_let_in_sum_without_wrapping(num_clients):
    limit = (2**63 - 1) // num_clients
    largest = np.nextafter(float(limit), 0)
    values = np.array([largest, -largest]) / SCALE
    words = encode(values, num_clients=num_clients)
    total = np.zeros(2, np.uint64)
    for _ in range(num_clients):
        total = total + words
    exact = num_clients * int(largest)
    assert total.view(np.int64).tolist() == [exact, -exact]


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_decode_undoes_encode_to_half_a_step(values):
    values = np.array(values, np.float32)
    again = decode(encode(values, num_clients=2), values)
    np.testing.assert_allclose(again, values, atol=1 / SCALE / 2, rtol=1e-7)


@pytest.mark.parametrize(
    ("num_clients", "threshold", "match"),
    [
        (1, None, "at least 2"),
        (0, None, "at least 2"),
        (5, 1, "lie in"),
        (5, 6, "lie in"),
    ],
)
def test_protocol_refuses_what_would_hide_nothing(num_clients, threshold, match):
    with pytest.raises(ValueError, match=match):
        agree_keys(jax.random.key(0), num_clients, threshold)


def test_dropped_must_be_clients():
    with pytest.raises(ValueError, match="names client 7"):
        secure_sum([jnp.ones(1)] * 3, key=jax.random.key(0), dropped={7})
