"""MNIST's own file format (IDX), plain or gzipped."""

import gzip
import math
import pathlib
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.data.dataset import DamagedDataError
from fuprune.data.originals import Route

# The official names, in the order in which `read` takes the files.
NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_UNSIGNED_BYTE = 0x08
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
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedDataError(f"{path}: cannot be read ({error}).") from error
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if blob[:4] != magic or len(blob) < header:
        raise DamagedDataError(
            f"{path}: begins with {blob[:4].hex() or 'nothing'}, but an IDX file of "
            f"{dimensions}-dimensional bytes begins with {magic.hex()}."
        )
    shape = struct.unpack(f">{dimensions}I", blob[4:header])
    if len(blob) - header != math.prod(shape):
        raise DamagedDataError(
            f"{path}: holds {len(blob) - header} bytes of data, but its header says "
            f"{' x '.join(map(str, shape))}."
        )
    # A copy, because what views bytes cannot be written to.
    return np.frombuffer(blob, np.uint8, offset=header).reshape(shape).copy()
