"""Secure summation between parties that share nothing but messages."""

import itertools

import numpy as np
import pytest

from fuprune.errors import InputError, TooFewClientsError
from fuprune.unlearning.secure_summation import (
    decode,
    encode,
    mask_upload,
    reveal_shares,
    unmask,
)
from fuprune.unlearning.summation_keys import (
    Party,
    make_directory,
    make_keys,
    open_shares,
    public_keys,
    share_keys,
)


def parties(number, threshold=None, session="a"):
    """Every party, what it sealed for the others, and what it holds of them."""
    keys = [make_keys() for _ in range(number)]
    directory = make_directory([public_keys(k) for k in keys], threshold, session)
    everybody = [Party(i, k, directory) for i, k in enumerate(keys)]
    sealed = [share_keys(party) for party in everybody]
    held = [
        open_shares(party, {o: sealed[o][party.client] for o in range(number)})
        for party in everybody
    ]
    return everybody, sealed, held


def test_keys_differ_from_party_to_party_and_from_sum_to_sum():
    everything = [key for _ in range(3) for key in (*make_keys(), *make_keys())]
    assert len(set(everything)) == len(everything)


def test_server_gets_the_sum_of_those_who_sent_and_sees_no_upload():
    uploads = [np.arange(50.0) * (i + 1) for i in range(4)]
    everybody, sealed, held = parties(4)
    directory = everybody[0].directory
    sent = {i: mask_upload(uploads[i], everybody[i]) for i in (0, 1, 3)}
    revealed = {i: reveal_shares(held[i], directory, sent=sent) for i in sent}
    words = unmask(sent, directory, revealed)
    expected = uploads[0] + uploads[1] + uploads[3]
    np.testing.assert_allclose(decode(words, expected), expected, atol=1e-5)
    # Everything the server held before the last message, word by word.
    for i, seen in sent.items():
        assert np.mean(seen == encode(uploads[i], num_clients=4)) == 0
    secrets = [secret for party in everybody for secret in party.keys]
    received = itertools.chain(*directory.public_keys, *sealed)
    assert not any(secret in seen for seen in received for secret in secrets)


def test_a_share_that_was_changed_or_is_of_another_sum_is_refused():
    (party, *_), sealed, _ = parties(3)
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
    (party, *_), _, _ = parties(3)
    directory = party.directory
    other = public_keys(make_keys())
    swapped = (other, *directory.public_keys[1:])
    twice = (directory.public_keys[0],) * 3
    for wrong, match in (
        (directory._replace(public_keys=swapped), "other keys for client 0"),
        (directory._replace(public_keys=twice), "occurs twice"),
        (directory._replace(public_keys=()), "0 clients, and this client is number 0"),
        (directory._replace(threshold=1), r"threshold is 1"),
    ):
        with pytest.raises(InputError, match=match):
            share_keys(party._replace(directory=wrong))


def test_a_client_reveals_nothing_for_a_sum_of_too_few():
    (party, *_), _, held = parties(4)
    with pytest.raises(TooFewClientsError, match="2 of 4 clients remain and 3"):
        reveal_shares(held[0], party.directory, sent={0, 1})


def test_a_client_gives_one_share_for_each_owner():
    (party, *_), _, held = parties(4)
    shown = reveal_shares(held[1], party.directory, sent={0, 1, 3})
    assert sorted(shown) == [0, 1, 2, 3]
    assert shown[2] == held[1][2].private_key
    assert all(shown[i] == held[1][i].self_seed for i in (0, 1, 3))


def test_a_point_of_small_order_is_no_public_key():
    (party, *_), _, _ = parties(2)
    first, second = party.directory.public_keys
    listed = (first, second._replace(sealing=bytes(32)))
    weak = party._replace(directory=party.directory._replace(public_keys=listed))
    with pytest.raises(InputError, match="no usable X25519 public key"):
        share_keys(weak)
