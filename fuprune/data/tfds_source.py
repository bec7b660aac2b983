"""Sets of TensorFlow Datasets, downloaded, found and read without TensorFlow.

TFDS itself reads the descriptions and downloads. Examples are in files of array_record
or TFRecord, and are decoded with Pillow. A set that TFDS has to prepare first is left
to its builder, which may ask for TensorFlow.
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
    versions = _versions(root, wanted)
    if not versions and "/" not in path and root.is_dir():
        # No configuration was named; with one prepared there is no doubt which.
        configs = [child for child in sorted(root.iterdir()) if child.is_dir()]
        found = [_versions(config, wanted) for config in configs]
        found = [versions for versions in found if versions]
        if len(found) > 1:
            names = ", ".join(f"{path}/{each[-1].parent.name}" for each in found)
            raise InputError(f"{name!r} has several configurations: write {names}.")
        versions = found[0] if found else []
    return versions[-1] if versions else None


def _versions(root: pathlib.Path, wanted: str) -> list[pathlib.Path]:
    if not root.is_dir():
        return []
    found = [
        child
        for child in root.iterdir()
        if _VERSION.fullmatch(child.name)
        and wanted in ("", child.name)
        and (child / "dataset_info.json").is_file()
    ]
    # By numbers: as text, 3.10.0 would come before 3.9.0.
    return sorted(found, key=lambda child: tuple(map(int, child.name.split("."))))


def read_prepared(directory: pathlib.Path) -> LabelledSet:
    """Reads both splits of a prepared directory, in the order of ids if it has them.

    A set without a "test" split gives its "validation" split instead; one without
    either gives every fifth example of each class of "train" and keeps those out
    of it.
    """
    info = _info(directory)
    keys = _image_and_label_keys(info, directory)
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
    from google.protobuf import message
    from tensorflow_datasets.proto import tf_example_generated_pb2

    generated: Any = tf_example_generated_pb2
    images, labels, origins, ids = [], [], [], []
    paths = map(pathlib.Path, info.splits[split].filepaths)
    for path, length in zip(paths, info.splits[split].shard_lengths, strict=True):
        records = _read_records(path)
        if len(records) != length:
            raise DamagedDataError(
                f"{path}: holds {len(records)} records, but dataset_info.json says "
                f"{length}."
            )
        for number, record in enumerate(records):
            origins.append(f"{path} (record {number})")
            try:
                found = generated.Example.FromString(record).features.feature
                (image,) = found[image_key].bytes_list.value
                (label,) = found[label_key].int64_list.value
            except (message.DecodeError, ValueError) as error:
                raise DamagedDataError(
                    f"{origins[-1]}: is not an example of one image and one label."
                ) from error
            images.append(image)
            labels.append(label)
            ids.append(b"".join(found["id"].bytes_list.value))
    # TFDS shuffles records as it writes them; the ids, if any, hold the official order.
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return Pictures(
        [images[place] for place in order],
        [origins[place] for place in order],
        np.array(labels, np.int64)[order],
    )


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


def _info(directory: pathlib.Path) -> Any:
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
    return info


def _image_and_label_keys(info: Any, origin: object) -> tuple[str, str]:
    """The features that hold the image and the label."""
    features = _import_tfds(str(origin)).features
    top = info.features if isinstance(info.features, features.FeaturesDict) else {}
    images = [key for key in top if isinstance(top[key], features.Image)]
    labels = [key for key in top if isinstance(top[key], features.ClassLabel)]
    image, label = (*(info.supervised_keys or ()), None, None)[:2]
    image = image if image in images else next(iter(images), None)
    label = label if label in labels else next(iter(labels), None)
    if image is None or label is None or top[image].np_dtype != np.uint8:
        raise DataUnavailableError(
            f"{origin}: is not an image-classification set; its features are "
            f"{', '.join(sorted(top)) or 'not a dictionary'}, but an 8-bit image and a "
            "class label are needed."
        )
    return image, label


def _read_records(path: pathlib.Path) -> list[bytes]:
    """The records of one shard."""
    from array_record.python import array_record_module  # pyright: ignore

    if not path.is_file():
        raise DamagedDataError(
            f"{path}: is missing, though dataset_info.json names it."
        )
    if ".tfrecord" in path.name:
        return _read_tf_records(path)
    if ".array_record" not in path.name:
        raise DataUnavailableError(
            f"{path}: is neither array_record nor TFRecord; prepare the set with "
            "file_format='array_record'."
        )
    try:
        reader = array_record_module.ArrayRecordReader(str(path))
        try:
            return reader.read_all()
        finally:
            reader.close()
    except (RuntimeError, ValueError, OSError) as error:
        raise DamagedDataError(
            f"{path}: is not a whole array_record file ({first_line(error)})."
        ) from error


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
            raise DamagedDataError(
                f"{path}: is no TFRecord file, or is cut off, at byte {start}."
            )
        records.append(blob[start:end])
    return records
