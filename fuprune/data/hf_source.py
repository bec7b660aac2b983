"""Sets of the Hugging Face hub, or saved to disk by its `datasets` library.

The library is an optional dependency (`pip install 'fuprune[hf]'`). Its own cache and
its offline switches (HF_HUB_OFFLINE, HF_DATASETS_OFFLINE, HF_HOME) are respected; code
that comes with a set is never run.
"""

import functools
import os
import re
from typing import Any

import numpy as np

from fuprune.data.dataset import DamagedDataError, DataUnavailableError, LabelledSet
from fuprune.data.pictures import Pictures, read_pictures
from fuprune.errors import first_line, from_extra

_TEST_NAMES = ("test", "validation", "valid", "val")
# Preferred when a set has several label columns: CIFAR-100's fine one, for example.
_LABEL_NAMES = ("label", "labels", "fine_label", "class")
_COLUMN_TYPES = ("string", "large_string", "int", "uint")
_HUB = "https://huggingface.co"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


# Two, as `sources` remembers: both splits and the names come from one opening.
@functools.lru_cache(maxsize=2)
def open_splits(name: str) -> dict[str, Any]:
    """Split name -> `datasets.Dataset`; nothing is decoded.

    The name is a directory that `save_to_disk` wrote, or a name on the hub, with the
    configuration behind a colon if it has several: "cifar100", "owner/set:config".
    """
    # Imported where it is used: it takes seconds, and few need it.
    with from_extra("hf", f"hf:{name}"):
        import datasets
    try:
        if os.path.isdir(os.path.expanduser(name)):
            found = datasets.load_from_disk(os.path.expanduser(name))
        else:
            found = _load_from_hub(datasets, name)
    except DataUnavailableError:
        raise
    # The library lets through whatever its many parts raise.
    except Exception as error:
        raise DataUnavailableError(
            f"hf:{name} did not load ({type(error).__name__}: {first_line(error)}); "
            "check the name, or load it once where there is a network and copy HF_HOME "
            "here."
        ) from error
    if isinstance(found, datasets.Dataset):
        return {"train": found}
    return {str(name): split for name, split in found.items()}


def fingerprint(splits: dict[str, Any]) -> tuple:
    """The library's own hashes of the content."""
    return tuple((split, each._fingerprint) for split, each in sorted(splits.items()))


def read(name: str, splits: dict[str, Any], size: int | None = None) -> LabelledSet:
    """Reads and checks an opened set; `size` is as for `read_pictures`."""
    import datasets

    origin = f"hf:{name}"
    if "train" not in splits:
        raise DamagedDataError(
            f"{origin}: has the splits {', '.join(splits) or '(none)'}, but 'train' is "
            "needed."
        )
    train = splits["train"]
    test = next((splits[each] for each in _TEST_NAMES if each in splits), None)
    image_key, label_key = _image_and_label(datasets, train.features, origin)
    names = getattr(train.features[label_key], "names", None)

    def pictures(split, stored):
        files = _picture_files(datasets, stored, image_key, origin)
        origins = [f"{origin} ({split}, image {n})" for n in range(len(files))]
        return Pictures(files, origins, np.asarray(stored[label_key][:]))

    return read_pictures(
        pictures("train", train),
        None if test is None else pictures("test", test),
        size=size,
        class_names=names,
        columns={
            key: np.asarray(train[key][:])
            for key, feature in train.features.items()
            if key not in (image_key, label_key)
            and getattr(feature, "dtype", "").startswith(_COLUMN_TYPES)
        },
        origin=origin,
    )


def _load_from_hub(datasets: Any, name: str) -> Any:
    if not _HUB_NAME.fullmatch(name):
        raise DataUnavailableError(
            f"hf:{name} is neither a directory nor a name on the hub such as "
            "hf:cifar100 or hf:owner/name:configuration."
        )
    path, _, configuration = name.partition(":")
    offline = datasets.config.HF_HUB_OFFLINE
    # A host that does not answer is not tried again; the cache answers at once.
    datasets.config.HF_HUB_OFFLINE = offline or not _answers(_HUB)
    try:
        return datasets.load_dataset(path, configuration or None)
    finally:
        datasets.config.HF_HUB_OFFLINE = offline


def _answers(url: str) -> bool:
    import requests

    try:
        return requests.head(url, timeout=5).status_code < 500
    except OSError:  # RequestException is one
        return False


def _image_and_label(datasets: Any, features: Any, origin: str) -> tuple[str, str]:
    """The columns that hold the image and the label."""
    images = [key for key, each in features.items() if isinstance(each, datasets.Image)]
    labels = [
        key for key, each in features.items() if isinstance(each, datasets.ClassLabel)
    ]
    if not labels:
        labels = [
            key
            for key in _LABEL_NAMES
            if getattr(features.get(key), "dtype", "").startswith(("int", "uint"))
        ]
    if not images or not labels:
        raise DamagedDataError(
            f"{origin}: has the columns {', '.join(features)}, but an image and a "
            "class label are needed."
        )
    preferred = [key for key in _LABEL_NAMES if key in labels]
    return images[0], (preferred or labels)[0]


def _picture_files(datasets: Any, split: Any, key: str, origin: str) -> list[Any]:
    """The pictures as they are stored, bytes or paths."""
    # Undecoded, so that all sources decode and cut pictures by one rule.
    stored = split.cast_column(key, datasets.Image(decode=False))[key]
    files = []
    for number, each in enumerate(stored):
        if not each or not (each["bytes"] or each["path"]):
            raise DamagedDataError(f"{origin}: example {number} has no image.")
        files.append(each["bytes"] or each["path"])
    return files
