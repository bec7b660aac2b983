"""CIFAR's official binary records, from the archive that its authors publish.

A record is one label byte (CIFAR-10) or a coarse and a fine one (CIFAR-100), then
3,072 bytes: the 32x32 red, green and blue planes. The "python" archives hold pickles
and are not read.
"""

import hashlib
import pathlib
import tarfile
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.data.cache import Directories
from fuprune.data.dataset import DamagedDataError, Dataset, checked
from fuprune.data.known_sets import CifarFiles, KnownSet

_IMAGE_BYTES = 3 * 32 * 32
# Of a member; the largest is CIFAR-100's train.bin, of 154 MB.
_MAX_BYTES = 1 << 28


def find_archive(files: CifarFiles, where: Directories) -> pathlib.Path | None:
    """The archive put by hand under a data directory or downloaded by TFDS, or None."""
    for folder in (where.manual, where.data_dir):
        if (folder / files.archive).is_file():
            return folder / files.archive
    # TFDS puts the host before the name and a hash behind it, in a folder per set.
    pattern = f"*{files.archive.removesuffix('.tar.gz')}*.tar.gz"
    downloads = where.data_dir / "downloads"
    found = sorted([*downloads.glob(pattern), *downloads.glob(f"*/{pattern}")])
    return next((path for path in found if path.is_file()), None)


def read_archive(known: KnownSet, archive: pathlib.Path) -> dict[str, Dataset]:
    """Both splits out of the official archive."""
    assert known.cifar is not None
    names = [name for names in known.cifar.splits.values() for name in names]
    blobs = read_members(archive, names, folder=known.cifar.folder)
    return read_records(known, blobs, archive)


def read_records(
    known: KnownSet, blobs: Mapping[str, bytes], origin: object
) -> dict[str, Dataset]:
    """Both splits from the contents of the official files, {name: bytes}.

    Gives images [N, 32, 32, 3] and labels [N] after MD5 sums have been compared; an
    error names the origin.
    """
    files, num_classes = known.cifar, len(known.class_names)
    assert files is not None
    size = files.labels + _IMAGE_BYTES
    for name, blob in blobs.items():
        if len(blob) == 0 or len(blob) % size:
            raise DamagedDataError(
                f"{origin} ({name}): holds {len(blob)} bytes, but records of {size} "
                "are expected."
            )
        seen = hashlib.md5(blob, usedforsecurity=False).hexdigest()
        if seen != files.md5.get(name, seen):
            raise DamagedDataError(
                f"{origin} ({name}): has the MD5 sum {seen}, but the official {name} "
                f"has {files.md5[name]}."
            )
    splits = {}
    for split, names in files.splits.items():
        blob = b"".join(blobs[name] for name in names)
        records = np.frombuffer(blob, np.uint8).reshape(-1, size)
        planes = records[:, files.labels :].reshape(-1, 3, 32, 32)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        labels = records[:, files.labels - 1]
        splits[split] = checked(images, labels, num_classes, f"{origin} ({split})")
    return splits


def read_members(
    archive: pathlib.Path, names: Sequence[str], *, folder: str
) -> dict[str, bytes]:
    """The contents of the named files of one folder of a .tar.gz, in that order."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                # Read by name and never unpacked: a path in an archive may lead
                # anywhere.
                parent, _, base = member.name.removeprefix("./").rpartition("/")
                if parent != folder or base not in names or not member.isfile():
                    continue
                if member.size > _MAX_BYTES:
                    raise DamagedDataError(f"{archive}: {member.name} is too large.")
                stream = tar.extractfile(member)
                found[base] = stream.read() if stream else b""
                if len(found) == len(names):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DamagedDataError(
            f"{archive}: is not a whole .tar.gz archive ({error}); fetch it again."
        ) from error
    missing = [f"{folder}/{name}" for name in names if name not in found]
    if missing:
        raise DamagedDataError(f"{archive}: lacks {', '.join(missing)}.")
    return {name: found[name] for name in names}
