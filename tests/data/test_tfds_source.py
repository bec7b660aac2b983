import json
import sys
import types

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from PIL import Image
from tensorflow_datasets.core import registered
from urllib3.util.retry import Retry

from fuprune.data import sources, tfds_source
from fuprune.data.dataset import DamagedDataError, DataUnavailableError
from fuprune.data.sources import class_names, load, num_classes
from tests.data import tiny_sets
from tests.data.tiny_sets import assert_same

NAMES = ("ant", "bee", "cow")


def prepare(data_dir, splits, *, name="tiny_set", with_ids=True, image_shape=None):
    """A prepared array_record directory of a set that TFDS does not know."""
    features = {
        "image": tfds.features.Image(shape=image_shape or (None, None, 3)),
        "label": tfds.features.ClassLabel(names=NAMES),
    }
    if with_ids:
        features["id"] = tfds.features.Text()

    with registered.skip_registration():

        class Tiny(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                return tfds.core.DatasetInfo(
                    builder=self,
                    features=tfds.features.FeaturesDict(features),
                    supervised_keys=("image", "label"),
                )

            def _split_generators(self, dl_manager):
                return {split: self._rows(rows) for split, rows in splits.items()}

            def _rows(self, rows):
                for position, (image, label) in enumerate(rows):
                    grey = image.shape[-1] == 1
                    picture = Image.fromarray(image[..., 0] if grey else image)
                    row = {"image": picture, "label": int(label)}
                    if with_ids:
                        row["id"] = f"{position:05d}"
                    yield position, row

            def _generate_examples(self):
                raise NotImplementedError

    Tiny.name = name
    tfds.disable_progress_bar()
    Tiny(data_dir=str(data_dir), file_format="array_record").download_and_prepare()
    return data_dir / name / "1.0.0"


def rows(dataset):
    return list(zip(*dataset, strict=True))


def to_tfrecord(directory):
    """The same directory as TFDS would have written it as TFRecord."""
    for path in list(directory.glob("*array_record*")):
        reader = array_record_module.ArrayRecordReader(str(path))
        with open(str(path).replace("array_record", "tfrecord"), "wb") as file:
            for record in reader.read_all():
                length = len(record).to_bytes(8, "little")
                file.write(length + b"\0\0\0\0" + record + b"\0\0\0\0")
        reader.close()
        path.unlink()
    note = directory / "dataset_info.json"
    note.write_text(note.read_text().replace('"array_record"', '"tfrecord"'))


TRAIN = tiny_sets.draw(40, (5, 4, 3), num_classes=3, seed=0)
TEST = tiny_sets.draw(9, (5, 4, 3), num_classes=3, seed=1)


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_prepared_directory_is_read_in_the_order_of_its_ids(
    offline, file_format, monkeypatch
):
    directory = prepare(offline, {"train": rows(TRAIN), "test": rows(TEST)})
    if file_format == "tfrecord":
        to_tfrecord(directory)
    assert_same(load("tiny_set", split="train", data_dir=offline), TRAIN)
    assert_same(load("tiny_set", split="test", data_dir=offline), TEST)
    assert class_names("tiny_set:1.0.0", offline) == NAMES
    assert num_classes("tiny_set", offline) == 3
    # From then on from the decoded copy.
    sources._REMEMBERED.clear()
    monkeypatch.setattr(tfds_source, "read_prepared", None)
    assert_same(load("tiny_set", split="train", data_dir=offline), TRAIN)


def test_a_set_of_one_split_without_ids_is_divided_by_class_and_stays_grey(offline):
    grey = tiny_sets.draw(30, (5, 4, 1), num_classes=3)
    prepare(offline, {"train": rows(grey)}, image_shape=(5, 4, 1), with_ids=False)
    train, test = (
        load("tiny_set", split=split, data_dir=offline) for split in ("train", "test")
    )
    expected = np.bincount(grey.labels, minlength=3) // 5
    np.testing.assert_array_equal(np.bincount(test.labels, minlength=3), expected)
    together = {image.tobytes() for image in (*train.images, *test.images)}
    assert len(together) == 30 and test.images.shape[1:] == (5, 4, 1)


def test_newest_prepared_version_is_taken_unless_one_is_named(offline):
    old = prepare(offline, {"train": rows(TRAIN)})
    new = old.with_name("1.0.10")
    new.mkdir()
    for path in old.iterdir():
        (new / path.name).write_bytes(path.read_bytes())
    (old.parent / "1.0.9.incomplete").mkdir()
    assert tfds_source.find_prepared("tiny_set", offline) == new
    assert tfds_source.find_prepared("tiny_set:1.0.0", offline) == old
    assert tfds_source.find_prepared("tiny_set:2.0.0", offline) is None


def test_set_with_several_configurations_must_be_named(offline):
    for config in ("large", "small"):
        (offline / "zoo" / config / "1.0.0").mkdir(parents=True)
        (offline / "zoo" / config / "1.0.0" / "dataset_info.json").write_text("{}")
    assert tfds_source.find_prepared("zoo/small", offline).parent.name == "small"
    with pytest.raises(ValueError, match="write zoo/large, zoo/small"):
        tfds_source.find_prepared("zoo", offline)


def test_validation_split_stands_in_for_a_missing_test_split(offline):
    prepare(offline, {"train": rows(TRAIN), "validation": rows(TEST)})
    assert_same(load("tiny_set", split="test", data_dir=offline), TEST)
    assert_same(load("tiny_set", split="train", data_dir=offline), TRAIN)


def say_41(path):
    note = path.with_name("dataset_info.json")
    content = json.loads(note.read_text())
    content["splits"][0]["shardLengths"] = ["41"]
    note.write_text(json.dumps(content))


DAMAGES = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "garbage": lambda path: path.write_bytes(b"garbage" * 20_000),
    "removed": lambda path: path.unlink(),
    "fewer": say_41,
}


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_shard_is_named_in_one_line(offline, damage, file_format):
    directory = prepare(offline, {"train": rows(TRAIN)})
    if file_format == "tfrecord":
        to_tfrecord(directory)
    (path,) = directory.glob("*-train.*")
    DAMAGES[damage](path)
    with pytest.raises(DamagedDataError) as caught:
        load("tiny_set", split="train", data_dir=offline)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_unreadable_description_is_named(offline):
    directory = prepare(offline, {"train": rows(TRAIN)})
    (directory / "dataset_info.json").write_text("{ nothing")
    with pytest.raises(DamagedDataError, match=f"^{directory}: is not a readable"):
        load("tiny_set", split="train", data_dir=offline)


def test_set_without_images_is_refused(offline):
    features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    info = types.SimpleNamespace(features=features, supervised_keys=None)
    with pytest.raises(DataUnavailableError, match="not an image-classification set"):
        tfds_source.image_and_label_keys(info, "imdb_reviews")


def test_a_set_that_only_tfds_knows_is_left_to_its_builder(offline, monkeypatch):
    """Its hosts are out of reach, which is said in one line of the message."""
    monkeypatch.setattr(Retry, "get_backoff_time", lambda self: 0.0)
    with pytest.raises(DataUnavailableError, match="TFDS did not prepare it"):
        load("eurosat", split="train", data_dir=offline)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(DataUnavailableError, match=r"pip install 'fuprune\[tfds\]'"):
        load("eurosat", split="train", data_dir=offline)
