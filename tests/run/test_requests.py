"""Requests from the command line's words, and what forgetting keeps on disk."""

import jax
import numpy as np
import pytest

from fuprune.config import ConfigError
from fuprune.data.backdoor import TARGET
from fuprune.errors import FupruneError
from fuprune.run import build, kept_files
from fuprune.run.data import describe_sets, load_data
from fuprune.unlearning.request import ForgetRequest
from fuprune.unlearning.rounds import KeptRound
from fuprune.unlearning.sisa import Checkpoint
from tests.run.test_federation import RUNTIME, numbers_by_client, own, settings

__all__ = ["own"]  # a fixture
IID = dict(partition__kind="iid", unlearn__classes="")


def federation_of(own, **values):
    values = {"unlearn__methods": "retrain", **IID, **values}
    return load_data(settings(own, **values), RUNTIME)


def numbers_of(dataset):
    return sorted(dataset.images[:, 0, 0, 0].tolist())


def test_clients_are_forgotten_with_all_their_images(own):
    federation = federation_of(own, unlearn__clients="1,4", data__validation=0.2)
    held = numbers_by_client(federation)
    assert federation.request == ForgetRequest(clients=(1, 4))
    assert numbers_of(federation.forgotten) == sorted(held[1] + held[4])
    row = describe_sets(federation.request, 16, 9)
    assert row.u_set == "the 16 training images of clients 1, 4"
    assert row.r_set == "the 9 test images, which nobody trained on"


@pytest.mark.parametrize("limit", [0, 10])
def test_examples_are_numbered_as_in_the_training_split(own, tmp_path, limit):
    """Whatever validation holds out and the limit leaves out."""
    everybody = federation_of(
        own, unlearn__clients="1", data__validation=0.2, data__limit=limit
    )
    trained = sum(numbers_by_client(everybody), [])
    wanted = sorted(trained)[3:20:4]
    file = tmp_path / "numbers.txt"
    file.write_text("\n".join(map(str, wanted)))
    federation = federation_of(
        own, unlearn__examples=str(file), data__validation=0.2, data__limit=limit
    )
    assert federation.request.kind == "examples"
    assert numbers_of(federation.forgotten) == wanted
    held_out = sorted(set(range(30)) - set(trained))[0]
    file.write_text(str(held_out))
    with pytest.raises(ConfigError, match=f"training image {held_out}, which no"):
        federation_of(
            own, unlearn__examples=str(file), data__validation=0.2, data__limit=limit
        )


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "where there is no file"),
        ("", "which holds nothing; allowed: numbers"),
        ("3 four", "which holds 'four'; allowed: numbers"),
        ("-3", "which holds '-3'; allowed: numbers"),
        ("60", "training image 60, which no client trains on"),
        ("9" * 30, "which no client trains on"),
    ],
)
def test_lists_of_examples_that_cannot_be_are_one_line(own, tmp_path, text, message):
    file = tmp_path / "numbers.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(FupruneError, match=message) as caught:
        federation_of(own, unlearn__examples=str(file))
    assert "\n" not in str(caught.value)


def test_statistics_of_colours_leave_the_request_out(own):
    """Image n is n everywhere, so that the mean tells who was counted."""
    federation = federation_of(own, unlearn__clients="2", data__normalise="federated")
    held = numbers_by_client(federation)
    others = sum((held[k] for k in range(6) if k != 2), [])
    zero = federation.prepare(None, np.zeros((1, 6, 5, 3), np.uint8))
    numbers = np.asarray(others, np.float64) / 255
    np.testing.assert_allclose(
        np.asarray(zero).ravel()[0], -numbers.mean() / numbers.std(), rtol=1e-4
    )


def test_a_backdoor_is_planted_in_forgotten_images_only(own):
    plain = federation_of(own, unlearn__clients="2")
    planted = federation_of(own, unlearn__clients="2", audit__backdoor=0.5)
    changed = np.any(plain.train.images != planted.train.images, axis=(1, 2, 3))
    rows, lengths = jax.device_get((plain.data.rows, plain.data.lengths))
    assert set(np.flatnonzero(changed)) <= set(rows[2, : lengths[2]].tolist())
    assert changed.sum() == round(0.5 * lengths[2])
    assert (planted.train.labels[changed] == TARGET).all()
    np.testing.assert_array_equal(planted.data.images, planted.train.images)


def test_the_only_holder_of_a_class_is_told_before_training(own, tmp_path):
    listed = "\n".join(" ".join(map(str, range(k, 60, 3))) for k in range(3))
    (tmp_path / "parts.txt").write_text(listed)
    values = {
        "partition__kind": "file",
        "partition__file": str(tmp_path / "parts.txt"),
        "unlearn__clients": "1",
    }
    config = settings(own, **{"unlearn__methods": "retrain", **IID, **values})
    federation = load_data(config, RUNTIME)
    (line,) = build.describe_absences(config, federation)
    assert "client 1 alone holds every example of class 1" in line


TREE = {"params": {"a": np.ones((2, 3), np.float32)}, "batch_stats": {"m": np.ones(2)}}


def test_kept_rounds_come_back_in_their_order(tmp_path):
    rounds = [
        KeptRound(t, TREE, np.array([t, 1]), np.ones(2), {"a": np.full((2, 2, 3), t)})
        for t in (0, 10, 2)
    ]
    for kept in rounds:
        kept_files.save_round(tmp_path / "kept", kept)
    found = kept_files.RoundFiles(tmp_path / "kept", TREE)
    assert [kept.round_number for kept in found] == [0, 2, 10]
    np.testing.assert_array_equal(found[1].updates["a"], rounds[2].updates["a"])
    assert [kept.round_number for kept in found[1:]] == [2, 10]
    assert len(kept_files.RoundFiles(tmp_path / "none", TREE)) == 0
    with pytest.raises(ConfigError, match="of another model"):
        kept_files.RoundFiles(tmp_path / "kept", {"params": TREE["params"]})[0]


def test_slices_are_files_by_hash(tmp_path):
    files = kept_files.CheckpointFiles(tmp_path / "sisa", TREE)
    assert "ab" not in files and len(files) == 0
    files["ab"] = Checkpoint(TREE, 7)
    assert files["ab"].images == 7 and list(files) == ["ab"]
    np.testing.assert_array_equal(files["ab"].variables["params"]["a"], 1)
    del files["ab"]
    with pytest.raises(KeyError):
        files["ab"]


def test_rounds_that_do_not_fit_are_refused_before_training(own, tmp_path):
    config = settings(own, train__rounds=450, train__history_interval=1)
    params = {"params": {"a": np.zeros(275_000, np.float32)}}  # 1.1 MB, as ResNet20
    config.train.cohort = 25
    needed = kept_files.check_room(config, params, tmp_path)
    assert needed == 450 * 26 * 1_100_000
    config.train.history_interval = 2
    assert kept_files.check_room(config, params, tmp_path) == needed // 2
    config.train.rounds = 2**31 - 1
    with pytest.raises(ConfigError, match=r"bytes, but .* has .* left; raise it"):
        kept_files.check_room(config, params, tmp_path)
