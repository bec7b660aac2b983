"""MNIST's own file format (IDX), plain or gzipped."""

import gzip
import pathlib
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.data.dataset import DamagedDataError
from fuprune.data.originals import Route

# The official names, in the order in which `read` takes the files.
NAMES = tuple(
    f"{split}-{what}-ubyte.gz"
    for split in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)
_GZIP = b"\x1f\x8b"


def files(
    *folders: str, address: str = "", digests: Sequence[str] = ("",) * 4
) -> Route:
    """The route of a set in this format; digests are those of `NAMES`."""
    named: Mapping[str, str] = dict(zip(NAMES, digests, strict=True))
    return Route(read, named, address, folders)


def read(paths: Sequence[pathlib.Path]) -> dict[str, np.ndarray]:
    """Both splits from their four files: images [N, H, W], labels [N]."""
    images, labels, test_images, test_labels = map(_read, paths, (3, 1, 3, 1))
    return dict(
        images=images, labels=labels, test_images=test_images, test_labels=test_labels
    )


def _read(path: pathlib.Path, dimensions: int) -> np.ndarray:
    try:
        blob = path.read_bytes()
        # By content and not by name: files are often unpacked under their old name.
        if blob[:2] == _GZIP:
            blob = gzip.decompress(blob)
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", blob)
        if magic != 0x0800 + dimensions:  # unsigned bytes
            raise ValueError(f"it begins with {magic:08x}")
        data = np.frombuffer(blob, np.uint8, offset=4 + 4 * dimensions)
        # A copy, because what views bytes cannot be written to.
        return data.reshape(shape).copy()
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DamagedDataError(
            f"{path}: is not a whole IDX file of {dimensions} dimensions ({error})."
        ) from error
