"""Sets of the Hugging Face hub, or saved to disk by its `datasets` library.

The library is an optional dependency (`pip install 'fuprune[hf]'`). Its own cache and
its offline switches (HF_HUB_OFFLINE, HF_DATASETS_OFFLINE, HF_HOME) are respected; code
that comes with a set is never run.
"""

import functools
import os
from typing import Any

import numpy as np

from fuprune.data.dataset import DamagedDataError, DataUnavailableError, LabelledSet
from fuprune.data.pictures import Pictures, read_pictures
from fuprune.errors import first_line, from_extra

_TEST_NAMES = ("test", "validation", "valid", "val")
# Preferred when a set has several label columns: CIFAR-100's fine one, for example.
_LABEL_NAMES = ("label", "labels", "fine_label", "class")
_COLUMN_TYPES = ("string", "large_string", "int", "uint")


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
    path, _, configuration = name.partition(":")
    folder = os.path.expanduser(name)
    try:
        if os.path.isdir(folder):
            found = datasets.load_from_disk(folder)
        else:
            found = datasets.load_dataset(path, configuration or None)
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
    origin = f"hf:{name}"
    if "train" not in splits:
        raise DamagedDataError(
            f"{origin}: has the splits {', '.join(splits)}, but 'train' is needed."
        )
    train = splits["train"]
    test = next((splits[each] for each in _TEST_NAMES if each in splits), None)
    image_key, label_key = _image_and_label(train.features, origin)
    return read_pictures(
        _pictures(train, image_key, label_key, f"{origin} train"),
        None
        if test is None
        else _pictures(test, image_key, label_key, f"{origin} test"),
        size=size,
        class_names=getattr(train.features[label_key], "names", None),
        columns={
            key: np.asarray(train[key][:])
            for key, feature in train.features.items()
            if key not in (image_key, label_key)
            and getattr(feature, "dtype", "").startswith(_COLUMN_TYPES)
        },
        origin=origin,
    )


def _image_and_label(features: Any, origin: str) -> tuple[str, str]:
    """The columns that hold the image and the label."""
    import datasets

    images = [key for key, each in features.items() if isinstance(each, datasets.Image)]
    labels = [
        key for key, each in features.items() if isinstance(each, datasets.ClassLabel)
    ] or [
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


def _pictures(split: Any, image_key: str, label_key: str, origin: str) -> Pictures:
    """The pictures of a split as they are stored, bytes or paths."""
    import datasets

    # Undecoded, so that all sources decode and cut pictures by one rule.
    stored = split.cast_column(image_key, datasets.Image(decode=False))[image_key]
    files = [each and (each["bytes"] or each["path"]) for each in stored]
    origins = [f"{origin}, image {number}" for number in range(len(files))]
    for file, place in zip(files, origins, strict=True):
        if not file:
            raise DamagedDataError(f"{place}: is missing.")
    return Pictures(files, origins, np.asarray(split[label_key][:]))
