"""Secure summation between parties that share nothing but messages."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fuprune.errors import InputError, TooFewClientsError
from fuprune.flower import masks
from fuprune.flower.masks import (
    PRIME,
    Directory,
    Party,
    fewest,
    make_keys,
    mask_upload,
    open_shares,
    public_keys,
    recover_secret,
    reveal_shares,
    share_keys,
    share_secret,
    unmask,
)
from fuprune.unlearning.secure_sum import decode, encode, secure_sum

SIZE = 20_000


def set_up(number):
    """Every party, what it sealed by holder, and what it holds of the others."""
    keys = [make_keys() for _ in range(number)]
    directory = Directory(tuple(map(public_keys, keys)), fewest(number), "a")
    parties = [Party(i, k, directory) for i, k in enumerate(keys)]
    sealed = [share_keys(party) for party in parties]
    held = [
        open_shares(party, {o: sealed[o][party.client] for o in range(number)})
        for party in parties
    ]
    return parties, sealed, held


def opened(uploads, dropped=()):
    """What the server has when `dropped` send nothing after sharing."""
    parties, _, held = set_up(len(uploads))
    directory = parties[0].directory
    stayed = set(range(len(uploads))) - set(dropped)
    sent = {i: mask_upload(uploads[i], parties[i]) for i in stayed}
    shown = {i: reveal_shares(held[i], directory, sent) for i in stayed}
    return sent, directory, shown


@pytest.mark.parametrize(
    ("number", "dropped"), [(3, ()), (5, (0,)), (6, (1, 4)), (30, range(14))]
)
def test_masks_cancel_to_the_last_bit_in_the_sum_of_those_who_stayed(number, dropped):
    draws = np.random.default_rng(0)
    uploads = [draws.uniform(-100, 100, 18) for _ in range(number)]
    words = [encode(upload, num_clients=number) for upload in uploads]
    stayed = [w for i, w in enumerate(words) if i not in set(dropped)]
    total = unmask(*opened(uploads, dropped))
    np.testing.assert_array_equal(total, np.sum(stayed, axis=0, dtype=np.uint64))
    if not dropped:
        simulated = secure_sum(uploads)
        np.testing.assert_array_equal(decode(total, uploads[0]), simulated)


def assert_uniform(words):
    """Bytes by chi-square and whole words by Kolmogorov-Smirnov, at 1 in 10^5."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-5
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-5


@pytest.mark.parametrize("upload", [np.zeros(SIZE), np.arange(SIZE) * 1.0])
def test_uploads_are_uniform_together_and_alone_whatever_is_in_them(upload):
    with pytest.raises(AssertionError):
        assert_uniform(encode(upload, num_clients=3))
    sent = [mask_upload(upload, party) for party in set_up(4)[0]]
    for size in (1, 2, 3):
        for group in itertools.combinations(sent, size):
            assert_uniform(np.sum(group, axis=0, dtype=np.uint64))


def test_all_the_others_together_can_bare_a_client_and_nothing_less():
    victim, *colluders = set_up(3)[0]
    upload = np.arange(SIZE) * 1.0
    seen = mask_upload(upload, victim) - masks._mask(
        bytes.fromhex(victim.keys.self_seed), "own mask", SIZE
    )
    for party in colluders:
        assert_uniform(seen)
        seen = seen + masks._pair_mask(
            party.client, 0, party.keys.private_key, party.directory, SIZE
        )
    np.testing.assert_array_equal(seen, encode(upload, num_clients=3))


def test_fewer_shares_than_the_threshold_say_nothing_about_the_secret():
    """Over a small field every polynomial can be tried: all views are alike."""
    prime, threshold = 7, 3
    views = []
    for secret in range(prime):
        seen = Counter()
        for coefficients in itertools.product(range(prime), repeat=threshold - 1):
            shares = share_secret(secret, coefficients, num_shares=5, prime=prime)
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
    shares = share_secret(secret, coefficients, num_shares=8)
    threshold = len(coefficients) + 1
    chosen = {i: shares[i] for i in order[:threshold]}
    assert recover_secret(chosen, threshold=threshold) == secret
    del chosen[order[0]]
    with pytest.raises(TooFewClientsError):
        recover_secret(chosen, threshold=threshold)


def test_a_false_share_of_a_key_is_noticed_and_a_missing_one():
    sent, directory, shown = opened([np.ones(2)] * 4, dropped=(3,))
    true = shown[0].pop(3)
    for too_few in (
        lambda: unmask(sent, directory, shown),
        lambda: reveal_shares(set_up(4)[2][1], directory, {0, 1}),
    ):
        with pytest.raises(TooFewClientsError, match="2 clients remain .* takes 3"):
            too_few()
    shown[0][3] = true ^ 1
    with pytest.raises(InputError, match="client 3's key do not give that key"):
        unmask(sent, directory, shown)


def test_a_share_that_was_changed_or_is_of_another_sum_is_refused():
    (party, *_), sealed, _ = set_up(3)
    box = sealed[1][0]
    later = party._replace(directory=party.directory._replace(session="b"))
    for reader, sent in (
        (party, box[::-1]),
        (party, sealed[1][2]),
        (later, box),
    ):
        with pytest.raises(InputError, match="client 1's share for client 0 was"):
            open_shares(reader, {1: sent})


def test_a_client_refuses_a_directory_that_would_bare_it():
    party = set_up(3)[0][0]
    mine, second, third = party.directory.public_keys
    weak = second._replace(sealing="00" * 32)  # a point of small order
    for wrong in (
        dict(public_keys=(public_keys(make_keys()), second, third)),
        dict(public_keys=(mine,) * 3),
        dict(public_keys=()),
        dict(public_keys=(mine, weak, third)),
        dict(threshold=2),
        dict(threshold=4),
    ):
        with pytest.raises(ValueError):
            share_keys(party._replace(directory=party.directory._replace(**wrong)))
