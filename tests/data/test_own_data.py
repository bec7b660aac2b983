"""Sets that people bring as arrays and .npz files."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fuprune.data.dataset import DamagedDataError, DataUnavailableError, from_arrays
from fuprune.data.sources import class_names, column, load, num_classes
from tests.data.tiny_sets import arrays, assert_one_line


def test_arrays_with_a_test_split_are_kept_as_they_are():
    images, labels = arrays()
    test_images, test_labels = arrays(6, seed=1)
    own = from_arrays(
        images, labels, test_images=test_images, test_labels=test_labels[:, None]
    )
    assert own.train.images is images
    assert own.train.labels.dtype == own.test.labels.dtype == np.int32
    assert own.test.labels.tolist() == test_labels.tolist()
    assert own.class_names == ("0", "1", "2")


@hypothesis.given(number=st.integers(15, 60), classes=st.integers(2, 3))
def test_without_a_test_split_every_fifth_of_a_class_tests(number, classes):
    images, labels = arrays(number, (1, 1, 1), classes)
    columns = {"client": np.arange(number)}
    own = from_arrays(images, labels, columns=columns)
    for label in range(classes):
        expected = np.sum(labels == label) // 5
        assert np.sum(own.test.labels == label) == expected
    assert len(own.train.labels) + len(own.test.labels) == number
    kept = own.columns["client"]
    np.testing.assert_array_equal(own.train.images, images[kept])
    np.testing.assert_array_equal(own.train.labels, labels[kept])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_splits_names_and_columns(tmp_path, save, monkeypatch):
    images, labels = arrays()
    test_images, test_labels = arrays(6, seed=1)
    parts = dict(
        train_images=np.asfortranarray(images),
        train_labels=labels.astype(np.uint8),
        test_images=test_images,
        test_labels=test_labels,
        class_names=np.array([b"cat", "h\u00e9ron".encode(), b"emu"]),
        client=np.arange(30) // 10,
        unrelated=np.zeros(7),
    )
    save(tmp_path / "own.npz", **parts)
    name = f"npz:{tmp_path}/own.npz"
    train, test = load(name, split="train"), load(name, split="test")
    np.testing.assert_array_equal(train.images, images)
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(test.images, test_images)
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int32)
    assert class_names(name) == ("cat", "h\u00e9ron", "emu") and num_classes(name) == 3
    np.testing.assert_array_equal(column(name, "client"), np.arange(30) // 10)
    with pytest.raises(DataUnavailableError) as error:
        column(name, "writer")
    assert_one_line(error, "'writer'", "its columns are: client")
    # A relative path is looked up in the data directory, too; a set is read once.
    monkeypatch.chdir("/")
    assert load("npz:own.npz", split="train", data_dir=tmp_path) is train
    # By Keras's names, grey, and rewritten.
    grey = images[..., 0]
    save(tmp_path / "own.npz", x_train=grey, y_train=labels, x_test=grey, y_test=labels)
    assert load(name, split="test").images.shape == (30, 5, 4, 1)


def test_damaged_npz_files_are_named_in_one_line(tmp_path):
    path = tmp_path / "own.npz"
    images, labels = arrays()

    def message(*words):
        with pytest.raises(DamagedDataError) as error:
            load(f"npz:{path}", split="train")
        assert_one_line(error, path, *words)

    with open(path, "wb") as file:
        np.save(file, images)
    message("not a whole .npz file")
    np.savez(path, pictures=images, labels=labels)
    message("pictures", "train_images is needed")
    np.savez(path, images=images, labels=np.array([{}] * 30, object))
    message("not a whole .npz file")
    np.savez(path, images=images, labels=np.array(3))
    message("labels are int64 of shape ()")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@hypothesis.given(
    place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans()
)
def test_an_npz_with_any_byte_changed_loads_or_is_refused(
    tmp_path_factory, save, place, byte, cut
):
    path = tmp_path_factory.mktemp("damaged") / "own.npz"
    images, labels = arrays(shape=(2, 2, 1))
    save(path, images=images, labels=labels)
    blob = bytearray(path.read_bytes())
    at = int(place * len(blob))
    blob[at] = byte
    path.write_bytes(blob[:at] if cut else blob)
    try:
        train = load(f"npz:{path}", split="train")
    except DamagedDataError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert train.images.dtype == np.uint8 and train.labels.dtype == np.int32


@pytest.mark.parametrize("name", ["npz:nowhere.npz", "folder:nowhere"])
def test_a_path_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(DataUnavailableError) as error:
        load(name, split="train", data_dir=tmp_path)
    assert_one_line(error, "unavailable", tmp_path / name.partition(":")[2])
