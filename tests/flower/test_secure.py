"""Class statistics under masks, over messages: what the server received, looked at."""

import json

import chex
import jax
import numpy as np
import pytest

from fuprune.data.dataset import Dataset
from fuprune.data.federated import whole_cohort
from fuprune.errors import TooFewClientsError, UnlearnError
from fuprune.flower import client_app, secure
from fuprune.flower.node import Node
from fuprune.flower.records import PROTOCOL, unpack
from fuprune.flower.secure import UPLOAD
from fuprune.unlearning.activations import collect, merge_activations
from fuprune.unlearning.secure_sum import encode
from tests.flower.small import (
    CONFIG,
    SHAPE,
    FakeGrid,
    make_setting,
    meddling,
    remote,
)

NOTHING = Dataset(np.zeros((0, *SHAPE), np.uint8), np.zeros(0, np.int32))
FOUR = f"{CONFIG} partition.clients=4 train.cohort=4"


@pytest.fixture(scope="module")
def setting():
    """Four clients, of whom a sum takes three."""
    return make_setting(FOUR)


def behind_messages(setting, folder, meddle=None, *, secure=True):
    """The grid, the clients behind it, and the server's stand-in for their data."""
    grid = FakeGrid(folder, FOUR, clients=4, meddle=meddle)
    return grid, *remote(grid, setting[0], num_clients=4, secure=secure)


def gather(setting, backend, data):
    _, local, model, variables = setting
    return collect(
        model,
        variables,
        whole_cohort(data),
        num_classes=10,
        preprocess=local.prepare,
        backend=backend,
    )


def test_the_server_receives_a_sum_and_nothing_that_shows_an_upload(setting, tmp_path):
    local = setting[1]
    grid, clients, data = behind_messages(setting, tmp_path)
    (total,) = gather(setting, clients, data).uploads
    plain = gather(setting, "loop", local.data)
    chex.assert_trees_all_close(
        merge_activations([total]), merge_activations(plain.uploads), atol=1e-4
    )
    np.testing.assert_array_equal(
        total.num_examples, sum(np.asarray(u.num_examples) for u in plain.uploads)
    )
    uploads = [encode(upload, num_clients=4) for upload in plain.uploads]
    masked = []
    for message, reply in grid.seen:
        header, tree = unpack(reply.content)
        kind = message.metadata.message_type
        assert not any(word in json.dumps(header) for word in ("total", "num_examples"))
        if kind == UPLOAD:
            masked.append(tree)
            assert tree.dtype == np.uint64
            assert not any(np.any(tree == upload) for upload in uploads)
        else:
            assert tree is None
    assert len(masked) == 4
    # Not even three of the four together show the fourth.
    for i in range(4):
        others = sum((m for j, m in enumerate(masked) if j != i), np.uint64(0))
        known = sum((u for j, u in enumerate(uploads) if j != i), np.uint64(0))
        assert np.mean(others == known) == 0
    # The keys of the sum are gone from the clients' disks.
    assert not list(tmp_path.glob("*/sums/*.json"))


def test_a_second_sum_that_would_show_the_difference_is_refused(setting, tmp_path):
    """Of the same model without one client, as a server that starts again asks it."""
    grid, clients, data = behind_messages(setting, tmp_path)
    gather(setting, clients, data)
    grid.dead = {103}
    with pytest.raises(TooFewClientsError):
        gather(setting, clients, data)
    reply, _ = unpack(grid.seen[-1][1].content)
    assert "in a secure sum already" in reply["problem"]
    grid.dead = {102, 103}
    with pytest.raises(TooFewClientsError, match="takes three at least"):
        gather(setting, clients, data)
    grid.dead = {103}
    # Another model is another question.
    other = jax.tree.map(lambda x: 1.01 * x, setting[3])
    assert gather((*setting[:3], other), clients, data).uploads


@pytest.mark.parametrize("masked", [False, True])
def test_a_client_without_images_uploads_zeros(setting, tmp_path, masked):
    _, clients, data = behind_messages(setting, tmp_path, secure=masked)
    np.savez(
        tmp_path / "data-3.npz",
        train_images=np.zeros((0, *SHAPE), np.uint8),
        train_labels=np.zeros(0, np.int32),
    )
    uploads = gather(setting, clients, data).uploads
    plain = gather(setting, "loop", setting[1].data).uploads[:3]
    chex.assert_trees_all_close(
        merge_activations(uploads), merge_activations(plain), atol=1e-4
    )


@pytest.mark.parametrize(
    ("step", "change", "left"),
    [
        ("secure_keys", {"keys": ["zz", 3]}, [0, 2, 3]),
        ("secure_keys", {"keys": ["00" * 32, "0a" * 32]}, [0, 2, 3]),  # of small order
        ("secure_keys", {"keys": ["0a" * 32] * 2}, [0, 2, 3]),  # for two purposes
        ("secure_keys", None, [0, 2, 3]),
        ("secure_shares", {"sealed": ["00"]}, [0, 2, 3]),
        ("secure_shares", None, [0, 2, 3]),
        # It is made up for: everybody's shares are there.
        ("class_statistics", None, [0, 2, 3]),
        ("secure_reveal", {"shares": {"0": "none"}}, [0, 1, 2, 3]),
        ("secure_reveal", None, [0, 1, 2, 3]),
    ],
)
def test_a_sum_goes_on_without_a_client_that_is_mute_or_cannot_be_read(
    setting, tmp_path, step, change, left
):
    changed = change and (lambda header, tree: ({**header, **change}, tree))
    meddle = meddling(f"query.{step}", changed)
    _, clients, data = behind_messages(setting, tmp_path, meddle)
    (total,) = gather(setting, clients, data).uploads
    plain = gather(setting, "loop", setting[1].data)
    expected = [plain.uploads[client] for client in left]
    chex.assert_trees_all_close(
        merge_activations([total]), merge_activations(expected), atol=1e-4
    )


def test_a_spoiled_sum_and_a_sum_of_too_few_end_in_one_line(setting, tmp_path):
    spoil = meddling(UPLOAD, lambda header, words: (header, words + np.uint64(1)))
    _, clients, data = behind_messages(setting, tmp_path / "a", spoil)
    with pytest.raises(UnlearnError, match="cannot be one of class statistics"):
        gather(setting, clients, data)

    def leave(client, message, reply):
        kind = message.metadata.message_type
        return None if client and kind == UPLOAD else reply

    _, clients, data = behind_messages(setting, tmp_path / "b", leave)
    with pytest.raises(TooFewClientsError):
        gather(setting, clients, data)


def test_a_client_opens_no_shares_for_senders_that_cannot_be(tmp_path):
    parties = [Node(k, tmp_path / str(k), lambda: NOTHING) for k in range(3)]
    for party in parties:
        party.folder.mkdir()

    def tell(step, party, **secure):
        header = {"protocol": PROTOCOL, "secure": {"session": "s1", **secure}}
        kind = f"query.secure_{step}"
        return client_app.answer(kind, header, None, lambda: party)[0]

    public = [tell("keys", party)["keys"] for party in parties]
    told = {"public": public, "threshold": 3}
    sealed = [
        tell("shares", party, **told, position=k)["sealed"]
        for k, party in enumerate(parties)
    ]
    sent = {"session": "s1", "boxes": {"0": "zz"}}
    upload = {"sum": np.ones(4, np.float32)}
    with pytest.raises(ValueError):
        secure.masked_upload(upload, sent, parties[0], "q")
    sent["boxes"] = {str(owner): sealed[owner][0] for owner in range(3)}
    secure.masked_upload(upload, sent, parties[0], "q")
    for wrong in ([7, 8, 9], [1, 2], ["0", "1"], None, [0]):
        reply = tell("reveal", parties[0], sent=wrong)
        assert reply["problem"] and "shares" not in reply
    assert sorted(tell("reveal", parties[0], sent=[0, 1, 2])["shares"]) == [0, 1, 2]
    again = tell("reveal", parties[0], sent=[0, 1, 2])
    assert "was answered before" in again["problem"] and "shares" not in again
