"""Where images come from: one `load` for every dataset and every route to it."""

from fuprune.data.dataset import DamagedDataError, DataUnavailableError, Dataset
from fuprune.data.digits import NAMES, load_digits

__all__ = [
    "DamagedDataError",
    "DataUnavailableError",
    "Dataset",
    "class_names",
    "load",
    "num_classes",
]


def load(name: str, *, split: str, data_dir: str | None = None) -> Dataset:
    """Loads one split of a dataset."""
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}, but it must be 'train' or 'test'.")
    if name == "digits":
        return load_digits(split)
    raise DataUnavailableError(name)


def class_names(name: str, data_dir: str | None = None) -> tuple[str, ...]:
    """The names of the classes, in label order."""
    return NAMES


def num_classes(name: str, data_dir: str | None = None) -> int:
    """How many classes there are."""
    return len(class_names(name, data_dir))
