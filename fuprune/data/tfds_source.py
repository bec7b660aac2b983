"""Sets of TensorFlow Datasets, downloaded, found and read without TensorFlow.

TFDS itself reads the descriptions, downloads and parses examples, which are in files of
array_record or TFRecord; Pillow decodes them. A set that TFDS has to prepare first is
left to its builder, which may ask for TensorFlow.
"""

import logging
import pathlib
import re
import sys
from typing import Any

import numpy as np

from fuprune.data.dataset import (
    DamagedDataError,
    DataUnavailableError,
    LabelledSet,
)
from fuprune.data.pictures import Pictures, read_pictures
from fuprune.errors import InputError, MissingPackageError, first_line, from_extra

_LOGGER = logging.getLogger(__name__)
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def find_prepared(name: str, data_dir: pathlib.Path) -> pathlib.Path | None:
    """The newest prepared version of a set, data_dir/set[/config]/version, or None.

    Its name is as TFDS writes it: "set", "set/config", either with ":1.2.3" behind.
    """
    path, _, wanted = name.partition(":")
    root = data_dir / path
    # No configuration was named; with one prepared there is no doubt which.
    configs = [] if "/" in path else sorted(root.glob("*"))
    found = [_versions(folder, wanted) for folder in (root, *configs)]
    found = [versions for versions in found if versions]
    if len(found) > 1:
        names = ", ".join(f"{path}/{each[-1].parent.name}" for each in found)
        raise InputError(f"{name!r} has several configurations: write {names}.")
    return found[0][-1] if found else None


def _versions(root: pathlib.Path, wanted: str) -> list[pathlib.Path]:
    """The prepared versions in a directory, ascending."""
    notes = root.glob(f"{wanted or '*'}/dataset_info.json")
    found = [note.parent for note in notes if _VERSION.fullmatch(note.parent.name)]
    # By numbers: as text, 3.10.0 would come before 3.9.0.
    return sorted(found, key=lambda child: tuple(map(int, child.name.split("."))))


def read_prepared(directory: pathlib.Path) -> LabelledSet:
    """Reads both splits of a prepared directory, in the order of ids if it has them.

    A set without a "test" split gives its "validation" split instead; one without
    either gives every fifth example of each class of "train" and keeps those out
    of it.
    """
    try:
        info = _import_tfds(directory.name).builder_from_directory(str(directory)).info
        if not info.features:
            raise ValueError("features.json is missing")
    except MissingPackageError:
        raise
    # Whatever its JSON and protobuf readers raise, the file is what is wrong.
    except Exception as error:
        raise DamagedDataError(
            f"{directory}: is not a readable TFDS directory ({first_line(error)})."
        ) from error
    keys = image_and_label_keys(info, directory)
    if "train" not in info.splits:
        raise DataUnavailableError(
            f"{directory}: has the splits {', '.join(info.splits) or '(none)'}, but "
            "'train' is needed."
        )
    test = next((name for name in ("test", "validation") if name in info.splits), None)
    _LOGGER.info("%s: tested on %s.", directory, test or "every fifth example")
    return read_pictures(
        _pictures(info, "train", *keys),
        None if test is None else _pictures(info, test, *keys),
        size=None,
        class_names=info.features[keys[1]].names,
        columns={},
        origin=directory,
    )


def _pictures(info: Any, split: str, image_key: str, label_key: str) -> Pictures:
    tfds = _import_tfds(split)
    # Of other features, such as boxes or masks, nothing is parsed.
    names = {image_key, label_key, "id"} & {*info.features}
    row_of = tfds.features.FeaturesDict({name: info.features[name] for name in names})
    skip = {image_key: tfds.decode.SkipDecoding()}
    found: list[tuple[bytes, str, bytes, int]] = []  # id, origin, picture, label
    paths = map(pathlib.Path, info.splits[split].filepaths)
    for path, length in zip(paths, info.splits[split].shard_lengths, strict=True):
        try:
            read = _read_tf_records if ".tfrecord" in path.name else _read_array_records
            for number, record in enumerate(read(path)):
                row = row_of.deserialize_example_np(record, decoders=skip)
                name = row.get("id")
                name = name if isinstance(name, bytes) else b""  # numbers are no order
                origin = f"{path} (record {number})"
                found.append((name, origin, row[image_key], row[label_key]))
                length -= 1
            if length:
                raise ValueError("dataset_info.json says another number of records")
        # Whatever the readers of files and of messages raise.
        except Exception as error:
            raise DamagedDataError(
                f"{path}: is not a whole file of examples ({first_line(error)})."
            ) from error
    # TFDS shuffles records as it writes them; the ids, if any, hold the official order.
    found.sort(key=lambda row: row[0])
    _, origins, images, labels = zip(*found, strict=True) if found else ((),) * 4
    return Pictures(images, origins, np.array(labels, np.int64))


def prepare(name: str, data_dir: pathlib.Path) -> None:
    """Downloads and prepares a set as array_record files.

    Raises:
      DataUnavailableError: one line saying why it did not succeed.
    """
    tfds = _import_tfds(name)
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
        # The stock sets' sums are known to TFDS; one that is not is refused.
        config = tfds.download.DownloadConfig(force_checksums_validation=True)
        builder.download_and_prepare(download_config=config)
    # Its many parts raise many kinds, ImportError of TensorFlow among them.
    except Exception as error:
        raise DataUnavailableError(
            f"TFDS did not prepare it ({type(error).__name__}: {first_line(error)})"
        ) from error


def _import_tfds(name: str) -> Any:
    """The tensorflow_datasets module, quiet when nobody watches."""
    # Imported where it is used: a second, and most runs read a decoded copy.
    with from_extra("tfds", f"The set {name}"):
        import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    return tfds


def image_and_label_keys(info: Any, origin: object) -> tuple[str, str]:
    """The features that hold the image and the label."""
    features = _import_tfds(str(origin)).features
    top = info.features if isinstance(info.features, features.FeaturesDict) else {}
    images = [key for key in top if isinstance(top[key], features.Image)]
    labels = [key for key in top if isinstance(top[key], features.ClassLabel)]
    named = info.supervised_keys or ()
    # Those that the set names come first.
    images.sort(key=lambda key: key not in named)
    labels.sort(key=lambda key: key not in named)
    if not images or not labels or top[images[0]].np_dtype != np.uint8:
        raise DataUnavailableError(
            f"{origin}: is not an image-classification set; its features are "
            f"{', '.join(sorted(top)) or 'not a dictionary'}, but an 8-bit image and a "
            "class label are needed."
        )
    return images[0], labels[0]


def _read_array_records(path: pathlib.Path) -> list[bytes]:
    from array_record.python import array_record_module  # pyright: ignore

    # The reader would make an empty file of one that is missing.
    path.stat()
    reader = array_record_module.ArrayRecordReader(str(path))
    try:
        return reader.read_all()
    finally:
        reader.close()


def _read_tf_records(path: pathlib.Path) -> list[bytes]:
    """Length, its checksum, data, its checksum: TFRecord's framing.

    Checksums are left alone: PNG and JPEG streams have their own.
    """
    blob, records, position = path.read_bytes(), [], 0
    while position < len(blob):
        start = position + 12
        end = start + int.from_bytes(blob[position : position + 8], "little")
        position = end + 4
        if position > len(blob):
            raise ValueError(f"cut off at byte {start}")
        records.append(blob[start:end])
    return records
