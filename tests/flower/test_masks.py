"""Secure summation between parties that share nothing but messages."""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fuprune.errors import InputError, TooFewClientsError
from fuprune.flower import masks
from fuprune.flower.keys import (
    PRIME,
    Directory,
    Party,
    make_directory,
    make_keys,
    open_shares,
    public_keys,
    recover_secret,
    share_keys,
    share_secret,
)
from fuprune.flower.masks import mask_upload, reveal_shares, unmask
from fuprune.unlearning.secure_sum import decode, encode, secure_sum


class Setup(NamedTuple):
    parties: list
    sealed: list  # by owner, then holder
    held: list  # by holder, then owner
    directory: Directory


def set_up(number, threshold=None, session="a") -> Setup:
    """Every party, what it sealed for the others, and what it holds of them."""
    keys = [make_keys() for _ in range(number)]
    directory = make_directory([public_keys(k) for k in keys], threshold, session)
    parties = [Party(i, k, directory) for i, k in enumerate(keys)]
    sealed = [share_keys(party) for party in parties]
    held = [
        open_shares(party, {o: sealed[o][party.client] for o in range(number)})
        for party in parties
    ]
    return Setup(parties, sealed, held, directory)


def masked_sum(uploads, dropped=(), threshold=None):
    """The words that a server decodes when `dropped` send nothing after sharing."""
    setup = set_up(len(uploads), threshold)
    sent = {
        i: mask_upload(upload, setup.parties[i])
        for i, upload in enumerate(uploads)
        if i not in set(dropped)
    }
    # Clients that stay answer for both kinds of clients, never with both kinds of
    # shares for the same one.
    shown = {i: reveal_shares(setup.held[i], setup.directory, sent=sent) for i in sent}
    return unmask(sent, setup.directory, shown)


def encoded_sum(uploads, dropped=()):
    words = [encode(upload, num_clients=len(uploads)) for upload in uploads]
    stayed = [w for i, w in enumerate(words) if i not in set(dropped)]
    return np.sum(stayed, axis=0, dtype=np.uint64)


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
def test_masks_cancel_to_the_last_bit_in_the_sum_of_those_who_stayed(
    num_clients, dropped, threshold
):
    draws = np.random.default_rng(0)
    uploads = [draws.uniform(-100, 100, 18) for _ in range(num_clients)]
    words = masked_sum(uploads, dropped, threshold)
    np.testing.assert_array_equal(words, encoded_sum(uploads, dropped))


def test_masked_sum_is_the_one_that_a_simulation_computes():
    uploads = [np.linspace(-1, 1, 7, dtype=np.float32) * i for i in range(3)]
    np.testing.assert_array_equal(
        decode(masked_sum(uploads), uploads[0]), secure_sum(uploads)
    )


def test_keys_differ_from_party_to_party_and_from_sum_to_sum():
    everything = [key for _ in range(3) for key in (*make_keys(), *make_keys())]
    assert len(set(everything)) == len(everything)


def test_server_holds_no_upload_and_no_secret_before_the_last_message():
    uploads = [np.arange(50.0) * (i + 1) for i in range(4)]
    setup = set_up(4)
    for upload, party in zip(uploads, setup.parties, strict=True):
        sent = mask_upload(upload, party)
        assert np.mean(sent == encode(upload, num_clients=4)) == 0
    secrets = [secret for party in setup.parties for secret in party.keys]
    received = itertools.chain(*setup.directory.public_keys, *setup.sealed)
    assert not any(secret in seen for seen in received for secret in secrets)


def assert_uniform(words):
    """Bytes by chi-square and whole words by Kolmogorov-Smirnov, at 1 in 10^5."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-5
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-5


SIZE = 20_000


@pytest.mark.parametrize(
    "upload",
    [np.zeros(SIZE), np.full(SIZE, 12345.678), np.arange(SIZE, dtype=np.float64)],
    ids=["zeros", "constant", "ramp"],
)
def test_a_single_masked_upload_is_uniform_whatever_is_in_it(upload):
    for party in set_up(3).parties:
        sent = mask_upload(upload, party)
        assert_uniform(sent)
        correlation = np.corrcoef(np.float64(sent), np.arange(SIZE))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(SIZE)


def test_uniformity_check_would_notice_an_unmasked_upload():
    with pytest.raises(AssertionError):
        assert_uniform(encode(np.arange(SIZE) * 1.0, num_clients=3))


def test_what_arrived_stays_uniform_until_shares_are_opened():
    sent = [mask_upload(np.zeros(SIZE), party) for party in set_up(4).parties]
    for size in (2, 3, 4):
        for group in itertools.combinations(sent, size):
            assert_uniform(np.sum(group, axis=0, dtype=np.uint64))


def own_mask(party, size):
    return masks._own_mask(party.keys.self_seed, size)


def pair_mask(party, peer, size):
    published = party.directory.public_keys
    return masks._pair_mask(party.client, peer, party.keys.private_key, published, size)


def test_colluders_who_take_off_their_masks_still_see_noise():
    victim, _, *colluders = set_up(4).parties
    seen = mask_upload(np.ones(SIZE), victim)
    for colluder in colluders:
        seen = seen + pair_mask(colluder, 0, SIZE)
    assert_uniform(seen)
    # Even with the own mask opened, the pair with the honest client 1 hides it.
    assert_uniform(seen - own_mask(victim, SIZE))


def test_all_the_others_together_can_bare_a_client_and_nothing_less():
    victim, *colluders = set_up(3).parties
    upload = np.arange(50, dtype=np.float64)
    bared = mask_upload(upload, victim) - own_mask(victim, 50)
    for colluder in colluders:
        assert not np.array_equal(bared, encode(upload, num_clients=3))
        bared = bared + pair_mask(colluder, 0, 50)
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


def test_a_client_reveals_nothing_for_a_sum_of_too_few():
    with pytest.raises(TooFewClientsError, match="2 of 5 clients remain and 3"):
        masked_sum([np.ones(2)] * 5, dropped={0, 2, 4})


def test_a_client_gives_one_share_for_each_owner():
    setup = set_up(4)
    shown = reveal_shares(setup.held[1], setup.directory, sent={0, 1, 3})
    held = setup.held[1]
    assert shown == {
        owner: held[owner].private_key if owner == 2 else held[owner].self_seed
        for owner in range(4)
    }


def test_a_false_share_of_a_key_is_noticed_and_a_missing_one():
    setup = set_up(3)
    sent = {i: mask_upload(np.ones(2), setup.parties[i]) for i in (0, 1)}
    shown = {i: reveal_shares(setup.held[i], setup.directory, sent=sent) for i in sent}
    true = shown[0].pop(2)
    with pytest.raises(TooFewClientsError, match="1 clients remain .* takes 2"):
        unmask(sent, setup.directory, shown)
    shown[0][2] = true ^ 1
    with pytest.raises(ValueError, match="client 2's key do not give that key"):
        unmask(sent, setup.directory, shown)


def test_a_share_that_was_changed_or_is_of_another_sum_is_refused():
    setup = set_up(3)
    party, sealed = setup.parties[0], setup.sealed
    broken = bytearray(sealed[1][0])
    broken[5] ^= 1
    with pytest.raises(InputError, match="client 1's share for client 0 was changed"):
        open_shares(party, {1: bytes(broken)})
    later = party._replace(directory=party.directory._replace(session="b"))
    with pytest.raises(InputError, match="belongs to another sum"):
        open_shares(later, {1: sealed[1][0]})
    with pytest.raises(InputError, match="belongs to another sum"):
        open_shares(party, {1: sealed[1][2]})


def test_a_client_refuses_a_directory_that_would_bare_it():
    party = set_up(3).parties[0]
    directory = party.directory
    mine, second, third = directory.public_keys
    weak = second._replace(sealing=bytes(32))  # a point of small order
    for wrong, match in (
        (dict(public_keys=(public_keys(make_keys()), second, third)), "other keys for"),
        (dict(public_keys=(mine,) * 3), "occurs twice"),
        (dict(public_keys=()), "0 clients, and this client is number 0"),
        (dict(public_keys=(mine, weak, third)), "no usable X25519 public key"),
        (dict(threshold=1), "threshold is 1"),
        (dict(threshold=4), "threshold is 4"),
    ):
        with pytest.raises(InputError, match=match):
            share_keys(party._replace(directory=directory._replace(**wrong)))
