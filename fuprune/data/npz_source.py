"""A set in one .npz file: arrays by the names that NumPy, Keras or MedMNIST users give.

Nothing in the file is executed: pickled arrays are refused. Arrays that were saved
without compression (`np.savez`) are mapped, not read, so that a process which needs
some of the images holds only those in memory.
"""

import math
import pathlib
import struct
import zipfile
from typing import Any

import numpy as np

from fuprune.data.dataset import DamagedDataError, LabelledSet, from_arrays
from fuprune.errors import first_line

# What each array may be called; the first name is the documented one.
_NAMES = {
    "images": ("train_images", "images", "x_train"),
    "labels": ("train_labels", "labels", "y_train"),
    "test_images": ("test_images", "x_test"),
    "test_labels": ("test_labels", "y_test"),
    "class_names": ("class_names",),
}


def read(path: pathlib.Path, size: int | None = None) -> LabelledSet:
    """Reads and checks a set; its size has to be None, for arrays are not resized.

    The .npz file has `train_images` [N, H, W(, C)] uint8 and `train_labels` [N]; it may
    have `test_images`, `test_labels`, `class_names` [U]; every other array of shape [N]
    is a column, such as `client`.
    """
    assert size is None
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is one array, as np.save writes it")
            with archive:
                arrays = {
                    name: _read_member(archive, name, path) for name in archive.files
                }
    # Whatever zipfile and NumPy raise, the file is what is wrong.
    except Exception as error:
        text = first_line(error)
        if "allow_pickle" in text:  # advice that nobody should follow
            text = "it holds Python objects or something else, and those are not read"
        raise DamagedDataError(
            f"{path}: is not an .npz file of plain arrays ({text})."
        ) from error
    known: dict[str, Any] = {
        meaning: next((arrays.pop(name) for name in names if name in arrays), None)
        for meaning, names in _NAMES.items()
    }
    for meaning in ("images", "labels"):
        if known[meaning] is None:
            raise DamagedDataError(
                f"{path}: has the arrays {', '.join(sorted(arrays)) or '(none)'}, but "
                f"{_NAMES[meaning][0]} is needed."
            )
    number = len(known["labels"]) if known["labels"].ndim else 0
    names = known.pop("class_names")
    if names is not None:
        names = [
            name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            for name in names.ravel().tolist()
        ]
    return from_arrays(
        **known,
        class_names=names,
        columns={k: v for k, v in arrays.items() if v.shape == (number,)},
        origin=path,
    )


def _read_member(archive, name: str, path: pathlib.Path) -> np.ndarray:
    """One array of an archive: mapped if it is stored as it is, else read."""
    member = archive.zip.NameToInfo.get(f"{name}.npy")
    if member is None or member.compress_type != zipfile.ZIP_STORED:
        return archive[name]
    with open(path, "rb") as file:
        # The name and the extra field stand between a member's header and its data.
        file.seek(member.header_offset)
        header = file.read(30)
        lengths = struct.unpack("<HH", header[26:30])
        file.seek(member.header_offset + 30 + sum(lengths))
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            return archive[name]
        start = file.tell()
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject or 0 in shape or not shape:
            return archive[name]
        # Magic and version are 8 bytes before the header. A header that says more
        # than the member holds would map what lies behind it.
        header_bytes = file.tell() - start + 8
        if header_bytes + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"{name} is not as long as its header says")
        return np.memmap(
            file,
            dtype=dtype,
            shape=shape,
            order="F" if fortran else "C",
            mode="r",
            offset=file.tell(),
        )
