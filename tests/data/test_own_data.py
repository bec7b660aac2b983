"""Sets that people bring: arrays, .npz files, directories of pictures, Hugging Face."""

import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from fuprune.data import (
    DamagedDataError,
    DataUnavailableError,
    class_names,
    column,
    decoded_pictures,
    from_arrays,
    load,
    network,
    num_classes,
    pictures,
    sources,
)
from fuprune.errors import FupruneError, InputError
from tests.data import tiny_sets


@pytest.fixture(autouse=True)
def nothing_remembered():
    sources._read_once.cache_clear()


def arrays(number=30, shape=(5, 4, 3), classes=3, seed=0):
    images, _ = tiny_sets.draw(number, shape, seed=seed)
    return images, np.arange(number) % classes


def assert_one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text and len(text) < 400, text
    for word in words:
        assert str(word) in text, text


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


def test_grey_arrays_get_their_channel():
    images, labels = arrays(shape=(5, 4))
    assert from_arrays(images, labels).train.images.shape == (24, 5, 4, 1)


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(images=np.zeros((30, 5, 4, 3), np.float32)), ["float32", "uint8"]),
        (dict(images=np.zeros((30, 60), np.uint8)), ["(30, 60)", "[N, H, W, 3]"]),
        (dict(images=np.zeros((30, 5, 4, 7), np.uint8)), ["(30, 5, 4, 7)"]),
        (dict(images=np.zeros((30, 0, 4, 3), np.uint8)), ["no pixel"]),
        (dict(labels=np.arange(29)), ["(29,)", "[30]"]),
        (dict(labels=np.arange(30) / 2), ["float64", "integers"]),
        (dict(labels=np.arange(30) - 1), ["from -1 to 28"]),
        (dict(labels=np.arange(30) % 3 * 2), ["up to 4", "class 1 has no image"]),
        (dict(labels=np.arange(30) % 2 * 10**9), ["class 1 has no image"]),
        (dict(labels=np.zeros(30, int)), ["one class"]),
        (dict(labels=np.arange(30)), ["no class has five examples"]),
        (dict(class_names=["a", "b"]), ["2 class names", "up to 2"]),
        (dict(class_names=["a", "b", "a"]), ["two classes", "'a'"]),
        (dict(test_images=np.zeros((1, 5, 4, 3), np.uint8)), ["no test labels"]),
        (dict(test_labels=np.zeros(1, int)), ["no test images"]),
        (
            dict(test_images=np.zeros((1, 9, 4, 3), np.uint8), test_labels=[0]),
            ["(9, 4, 3)", "one shape"],
        ),
        (dict(columns={"client": np.arange(3)}), ["'client'", "(3,)", "[30]"]),
    ],
)
def test_arrays_that_cannot_be_are_refused_in_one_line(changes, words):
    images, labels = arrays()
    with pytest.raises(DamagedDataError) as error:
        from_arrays(**{"images": images, "labels": labels, **changes})
    assert isinstance(error.value, FupruneError)
    assert_one_line(error, "from_arrays", *words)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_splits_names_and_columns(tmp_path, save, monkeypatch):
    images, labels = arrays()
    test_images, test_labels = arrays(6, seed=1)
    save(
        tmp_path / "own.npz",
        train_images=images,
        train_labels=labels.astype(np.uint8),
        test_images=test_images,
        test_labels=test_labels,
        class_names=np.array(["cat", "dog", "emu"]),
        client=np.arange(30) // 10,
        unrelated=np.zeros(7),
    )
    name = f"npz:{tmp_path}/own.npz"
    train, test = load(name, split="train"), load(name, split="test")
    np.testing.assert_array_equal(train.images, images)
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(test.images, test_images)
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int32)
    assert isinstance(train.images, np.memmap) == (save is np.savez)
    assert class_names(name) == ("cat", "dog", "emu") and num_classes(name) == 3
    np.testing.assert_array_equal(column(name, "client"), np.arange(30) // 10)
    with pytest.raises(DataUnavailableError) as error:
        column(name, "writer")
    assert_one_line(error, "'writer'", "its columns are: client")
    # A relative path is looked up in the data directory, too.
    monkeypatch.chdir("/")
    again = load("npz:own.npz", split="train", data_dir=tmp_path)
    np.testing.assert_array_equal(again.images, images)


def test_a_fortran_ordered_npz_is_read_right(tmp_path):
    images, labels = arrays()
    np.savez(
        tmp_path / "own.npz", images=np.asfortranarray(images), labels=labels[:, None]
    )
    train = load(f"npz:{tmp_path}/own.npz", split="train")
    np.testing.assert_array_equal(train.images, from_arrays(images, labels).train[0])


def test_keras_names_are_understood(tmp_path):
    images, labels = arrays(shape=(4, 4))
    parts = dict(x_train=images, y_train=labels, x_test=images, y_test=labels)
    np.savez(tmp_path / "mnist.npz", **parts)
    assert load(f"npz:{tmp_path}/mnist.npz", split="test").images.shape[1:] == (4, 4, 1)


def test_a_set_is_read_once_until_its_file_changes(tmp_path):
    images, labels = arrays()
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    name = f"npz:{tmp_path}/own.npz"
    first = load(name, split="train")
    assert load(name, split="train") is first
    np.savez(tmp_path / "own.npz", images=images[:15], labels=labels[:15])
    assert len(load(name, split="train").labels) == 12


def test_damaged_npz_files_are_named_in_one_line(tmp_path):
    path = tmp_path / "own.npz"
    images, labels = arrays()

    def message(*words):
        with pytest.raises(DamagedDataError) as error:
            load(f"npz:{path}", split="train")
        assert_one_line(error, path, *words)

    path.write_bytes(b"no archive")
    message("not an .npz file")
    with open(path, "wb") as file:
        np.save(file, images)
    message("it is one array")
    np.savez(path, images=images, labels=labels)
    path.write_bytes(path.read_bytes()[:500])
    message("not an .npz file")
    np.savez(path, pictures=images, labels=labels)
    message("pictures", "train_images is needed")
    np.savez(path, images=images, labels=np.array([{}] * 30, object))
    message("not an .npz file of plain arrays")
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


@pytest.mark.parametrize(
    ("name", "word"), [("npz:", "colon"), ("folder:x?size=0", "'0'"), ("hf:", "colon")]
)
def test_senseless_names_are_refused(name, word):
    with pytest.raises(InputError) as error:
        load(name, split="train")
    assert_one_line(error, word)


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
    calls = []

    def spy(files, fit, origins):
        calls.append(len(files))
        return pictures.decode_all(files, fit, origins)

    monkeypatch.setattr(decoded_pictures, "MANY", 1)
    monkeypatch.setattr(decoded_pictures, "decode_all", spy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def read_anew(name):
    sources._read_once.cache_clear()
    return load(name, split="train").images


def test_many_pictures_are_decoded_once_until_one_changes(tmp_path, decoded):
    images, labels = arrays()
    write_folder(tmp_path / "set" / "train", images, labels)
    write_folder(tmp_path / "set" / "test", images[:4], labels[:4])
    name = f"folder:{tmp_path}/set"
    first = read_anew(name)
    assert decoded == [30, 4]
    np.testing.assert_array_equal(read_anew(name), first)
    assert decoded == [30, 4]
    assert read_anew(f"{name}?size=2").shape == (30, 2, 2, 3)
    assert decoded == [30, 4] * 2
    write_picture(tmp_path / "set" / "train" / "ant" / "000.png", 255 - images[0])
    np.testing.assert_array_equal(read_anew(name)[0], 255 - images[0])
    assert decoded == [30, 4] * 3
    for file in (tmp_path / "cache").rglob("train_images.npy"):
        file.write_bytes(file.read_bytes()[:-1])
    np.testing.assert_array_equal(read_anew(name)[1:], first[1:])
    assert decoded == [30, 4] * 3 + [30]


def test_pictures_that_do_not_fit_in_memory_are_refused_first(
    tmp_path, decoded, monkeypatch
):
    write_folder(tmp_path / "set", *arrays())
    monkeypatch.setattr(decoded_pictures, "free_memory", lambda: 30 * 5 * 4 * 3 - 1)
    with pytest.raises(DamagedDataError) as error:
        load(f"folder:{tmp_path}/set", split="train")
    assert_one_line(error, "29 more pictures take", "are free", "?size=64")
    assert decoded == []


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
    wide = np.zeros((8, 20, 3), np.uint8)
    wide[:, 6:14] = 100
    for number in range(5):
        write_picture(tmp_path / "tall" / f"{number}.png", tall)
        write_picture(tmp_path / "wide" / f"{number}.png", wide)
    images = load(f"folder:{tmp_path}", split="train").images
    assert images.shape == (8, 6, 6, 3)
    assert (images[:4] == 200).all() and (images[4:] == 100).all()
    larger = load(f"folder:{tmp_path}?size=10", split="test").images
    assert larger.shape == (2, 10, 10, 3) and set(larger.ravel()) == {100, 200}


def test_one_coloured_picture_makes_all_of_them_coloured(tmp_path):
    images, labels = arrays(shape=(4, 4, 1))
    write_folder(tmp_path, images, labels)
    write_picture(tmp_path / "ant" / "a.png", np.zeros((4, 4, 3), np.uint8))
    write_picture(tmp_path / "ant" / "b.png", np.zeros((4, 4, 4), np.uint8))
    assert load(f"folder:{tmp_path}", split="train").images.shape[-1] == 3


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
    (tmp_path / "bee" / "x.png").write_bytes(b"no picture")
    message("bee/x.png", "not a readable picture")
    whole = (tmp_path / "ant" / "000.png").read_bytes()
    (tmp_path / "bee" / "x.png").write_bytes(whole[:-30])
    message("bee/x.png", "not a readable picture")
    (tmp_path / "bee" / "x.png").unlink()
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
        **{name: datasets.Value("string") for name in columns},
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


def test_many_pictures_of_a_hugging_face_set_are_decoded_once(
    tmp_path, datasets, decoded
):
    images, labels = arrays()
    hf_split(datasets, images, labels).save_to_disk(str(tmp_path / "set"))
    name = f"hf:{tmp_path}/set"
    first = read_anew(name)
    np.testing.assert_array_equal(read_anew(name), first)
    assert decoded == [30]


def test_a_set_of_the_hub_without_network_or_cache_fails_in_one_line(
    datasets, monkeypatch, tmp_path
):
    monkeypatch.setattr(network, "why_unreachable", lambda url: "no answer")
    for name in ("somebody/something", "a b"):
        with pytest.raises(DataUnavailableError) as error:
            load(f"hf:{name}", split="train")
        assert_one_line(error, f"hf:{name}")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataUnavailableError) as error:
        load("hf:cifar100", split="train")
    assert_one_line(error, "fuprune[hf]")
