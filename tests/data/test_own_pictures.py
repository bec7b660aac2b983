"""Sets that people bring as directories of pictures and from Hugging Face."""

import os
import sys

import numpy as np
import pytest
from PIL import Image

from fuprune.data import pictures, sources
from fuprune.data.dataset import (
    DamagedDataError,
    DataUnavailableError,
    from_arrays,
)
from fuprune.data.sources import class_names, column, load
from fuprune.errors import FupruneError
from tests.data.tiny_sets import arrays, assert_one_line


def write_picture(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.squeeze()).save(path)


def write_folder(root, images, labels, names=("ant", "bee", "cow"), client=None):
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = root / names[label]
        if client is not None:
            folder = folder / str(client[place])
        write_picture(folder / f"{place:03d}.png", image)


def by_class(images, labels):
    """The order in which a folder is read."""
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 4, 1)])
def test_a_folder_with_both_splits_is_read_by_class(tmp_path, shape):
    images, labels = arrays(shape=shape)
    write_folder(tmp_path / "train", images, labels)
    write_folder(tmp_path / "test", images[:4], labels[:4])
    (tmp_path / "train" / "notes.txt").write_text("not a class")
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not a picture")
    name = f"folder:{tmp_path}"
    train = load(name, split="train")
    np.testing.assert_array_equal(train.images, by_class(images, labels)[0])
    np.testing.assert_array_equal(train.labels, by_class(images, labels)[1])
    test = load(name, split="test")
    np.testing.assert_array_equal(test.labels, np.sort(labels[:4]))
    assert class_names(name) == ("ant", "bee", "cow")


def test_a_folder_without_splits_sets_every_fifth_aside(tmp_path):
    images, labels = arrays()
    write_folder(tmp_path, images, labels)
    expected = from_arrays(*by_class(images, labels))
    name = f"folder:{tmp_path}"
    np.testing.assert_array_equal(load(name, split="train").images, expected.train[0])
    np.testing.assert_array_equal(load(name, split="test").images, expected.test[0])


@pytest.fixture
def decoded(monkeypatch, tmp_path):
    """Sources of each call that decodes; every set counts as one of many pictures."""
    calls, decode_all = [], pictures.decode_all

    def spy(files, form):
        calls.append(len(files.sources))
        return decode_all(files, form)

    monkeypatch.setattr(sources, "MANY", 1)
    monkeypatch.setattr(pictures, "decode_all", spy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def read_anew(name):
    sources._REMEMBERED.clear()
    return load(name, split="train").images


def test_many_pictures_are_decoded_once_until_one_changes(tmp_path, decoded):
    images, labels = arrays()
    # Classes are often links into a larger set; one to what is around it has no end.
    write_folder(tmp_path / "set" / "train", images, labels, client=labels)
    write_folder(tmp_path / "set" / "test", images[:4], labels[:4])
    bee = tmp_path / "set" / "train" / "bee"
    bee.rename(tmp_path / "bee")
    bee.symlink_to(tmp_path / "bee")
    (bee / "up").symlink_to(tmp_path / "set")
    name = f"folder:{tmp_path}/set"
    first = read_anew(name)
    assert decoded == [30, 4]
    np.testing.assert_array_equal(read_anew(name), first)
    assert column(name, "client").tolist() == sorted(map(str, labels))
    assert decoded == [30, 4]
    assert read_anew(f"{name}?size=2").shape == (30, 2, 2, 3)
    assert decoded == [30, 4] * 2
    write_picture(bee / "1" / "001.png", 255 - images[1])
    np.testing.assert_array_equal(read_anew(name)[10], 255 - images[1])
    assert decoded == [30, 4] * 3
    for file in (tmp_path / "cache").rglob("train_images.npy"):
        file.write_bytes(file.read_bytes()[:-1])
    np.testing.assert_array_equal(read_anew(name)[:10], first[:10])
    assert decoded == [30, 4] * 4


def test_pictures_that_do_not_fit_in_memory_are_refused_first(tmp_path, monkeypatch):
    write_folder(tmp_path, *arrays())
    monkeypatch.setattr(os, "sysconf", lambda name: 30)
    with pytest.raises(DamagedDataError) as error:
        load(f"folder:{tmp_path}", split="train")
    assert_one_line(error, "29 more pictures take", "machine has", "?size=64")


def test_directories_below_a_class_say_whose_a_picture_is(tmp_path):
    images, labels = arrays()
    write_folder(tmp_path / "train", images, labels, client=np.arange(30) % 4)
    write_folder(tmp_path / "val", images, labels)
    clients = column(f"folder:{tmp_path}", "client")
    assert len(clients) == 30 and set(clients) == {"0", "1", "2", "3"}
    write_picture(tmp_path / "train" / "ant" / "loose.png", images[0])
    with pytest.raises(DamagedDataError) as error:
        load(f"folder:{tmp_path}", split="train")
    assert_one_line(error, "same level")


def test_pictures_of_several_sizes_become_the_square_in_their_middle(tmp_path):
    tall = np.zeros((12, 6, 3), np.uint8)
    tall[3:9] = 200  # the middle square
    wide = np.zeros((8, 20, 4), np.uint8)  # one with transparency colours all
    wide[:, 6:14] = 100
    for number in range(5):
        write_picture(tmp_path / "tall" / f"{number}.png", tall[..., 0])
        write_picture(tmp_path / "wide" / f"{number}.png", wide)
    images = load(f"folder:{tmp_path}", split="train").images
    assert images.shape == (8, 6, 6, 3)
    assert (images[:4] == 200).all() and (images[4:] == 100).all()
    larger = load(f"folder:{tmp_path}?size=10", split="test").images
    assert larger.shape == (2, 10, 10, 3) and set(larger.ravel()) == {100, 200}


@pytest.mark.parametrize(
    ("values", "suffix"),
    [
        (np.full((5, 4), 40_000, np.uint16), "png"),
        (np.full((5, 4), 0.5, np.float32), "tif"),
        (np.full((5, 4), np.nan, np.float32), "tif"),
    ],
)
def test_pixels_that_eight_bits_do_not_hold_are_refused(tmp_path, values, suffix):
    """They would all have become white or black."""
    images, labels = arrays(shape=(5, 4, 1))
    write_folder(tmp_path, images, labels)
    name = f"folder:{tmp_path}"
    wide = tmp_path / "ant" / f"wide.{suffix}"
    Image.fromarray(images[0, ..., 0].astype(values.dtype)).save(wide)
    np.testing.assert_array_equal(load(name, split="train").images[8], images[0])
    Image.fromarray(values).save(wide)
    with pytest.raises(DamagedDataError) as error:
        load(name, split="train")
    assert_one_line(error, wide, "whole numbers from 0 to 255")


def test_damaged_folders_are_named_in_one_line(tmp_path):
    def message(*words):
        with pytest.raises(DamagedDataError) as error:
            load(f"folder:{tmp_path}", split="train")
        assert_one_line(error, tmp_path, *words)

    message("0 directories")
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    message("no pictures")
    images, labels = arrays(10, classes=2)
    write_folder(tmp_path, images, labels)
    link = tmp_path / "bee" / "x.png"
    link.symlink_to(tmp_path / "nowhere")
    message("bee/x.png", "not a readable picture")
    link.unlink()
    link.write_bytes((tmp_path / "ant" / "000.png").read_bytes()[:-30])
    message("bee/x.png", "not a readable picture")
    link.unlink()
    write_folder(tmp_path / "train", images, labels)
    write_folder(tmp_path / "test", images, labels, names=("ant", "bug"))
    message("test/bug", "does not have")


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


def hf_split(datasets, images, labels, **columns):
    features = datasets.Features(
        image=datasets.Image(),
        fine_label=datasets.ClassLabel(names=["ant", "bee", "cow"]),
        coarse_label=datasets.ClassLabel(names=["all"]),
        # As other libraries write text into Parquet files.
        **{name: datasets.Value("large_string") for name in columns},
    )
    pictures = [Image.fromarray(image.squeeze()) for image in images]
    rows = dict(
        image=pictures, fine_label=labels.tolist(), coarse_label=[0] * len(labels)
    )
    return datasets.Dataset.from_dict({**rows, **columns}, features=features)


def test_a_hugging_face_set_on_disk_gives_splits_names_and_columns(tmp_path, datasets):
    images, labels = arrays()
    both = datasets.DatasetDict(
        train=hf_split(
            datasets, images, labels, writer=[f"w{n % 4}" for n in range(30)]
        ),
        validation=hf_split(datasets, images[:6], labels[:6], writer=["w"] * 6),
    )
    both.save_to_disk(str(tmp_path / "both"))
    name = f"hf:{tmp_path}/both"
    train, test = load(name, split="train"), load(name, split="test")
    np.testing.assert_array_equal(train.images, images)
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(test.images, images[:6])
    assert class_names(name) == ("ant", "bee", "cow")
    assert column(name, "writer")[:5].tolist() == ["w0", "w1", "w2", "w3", "w0"]
    assert load(f"{name}?size=2", split="test").images.shape == (6, 2, 2, 3)

    hf_split(datasets, images, labels).save_to_disk(str(tmp_path / "alone"))
    alone = load(f"hf:{tmp_path}/alone", split="train")
    np.testing.assert_array_equal(alone.images, from_arrays(images, labels).train[0])

    text = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    text.save_to_disk(str(tmp_path / "text"))
    with pytest.raises(DamagedDataError) as error:
        load(f"hf:{tmp_path}/text", split="train")
    assert_one_line(error, "text, label", "an image and a class label")


def test_a_set_of_the_hub_without_network_or_cache_fails_in_one_line(
    datasets, monkeypatch
):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for name in ("somebody/something", "a b"):
        with pytest.raises(DataUnavailableError) as error:
            load(f"hf:{name}", split="train")
        assert_one_line(error, f"hf:{name}")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FupruneError) as error:
        load("hf:cifar100", split="train")
    assert_one_line(error, "fuprune[hf]")
