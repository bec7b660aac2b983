"""CIFAR's official binary records, from the archive that its authors publish.

A record is one label byte (CIFAR-10) or a coarse and a fine one (CIFAR-100), then
3,072 bytes: the 32x32 red, green and blue planes. The "python" archives hold pickles
and are not read.
"""

import hashlib
import pathlib
import tarfile
import zlib
from typing import NamedTuple

import numpy as np

from fuprune.data.cache import Directories
from fuprune.data.dataset import DamagedDataError, Dataset, checked, concatenated

_PIXELS = 32 * 32
# Of a member; the largest is CIFAR-100's train.bin, of 154 MB.
_MAX_BYTES = 1 << 28


class Layout(NamedTuple):
    """How one of the two sets is written down."""

    archive: str
    folder: str
    files: dict[str, tuple[str, ...]]  # split -> files in order
    label_files: dict[str, str]  # label feature -> file of its names, in byte order
    md5: dict[str, str]  # file -> sum, where it is known
    num_classes: int


LAYOUTS = {
    "cifar10": Layout(
        archive="cifar-10-binary.tar.gz",
        folder="cifar-10-batches-bin",
        files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        label_files={"label": "batches.meta.txt"},
        md5={
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        num_classes=10,
    ),
    "cifar100": Layout(
        archive="cifar-100-binary.tar.gz",
        folder="cifar-100-binary",
        files={"train": ("train.bin",), "test": ("test.bin",)},
        label_files={
            "coarse_label": "coarse_label_names.txt",
            "label": "fine_label_names.txt",
        },
        md5={},
        num_classes=100,
    ),
}


def find_archive(name: str, where: Directories) -> pathlib.Path | None:
    """The archive put by hand under a data directory or downloaded by TFDS, or None."""
    archive = LAYOUTS[name].archive
    for folder in (where.manual, where.data_dir):
        if (folder / archive).is_file():
            return folder / archive
    # TFDS puts the host before the name and a hash behind it.
    stem = archive.removesuffix(".tar.gz")
    downloads = sorted((where.data_dir / "downloads").glob(f"*{stem}*.tar.gz"))
    return next((path for path in downloads if path.is_file()), None)


def read_archive(
    name: str, archive: pathlib.Path, split: str
) -> tuple[Dataset, np.ndarray]:
    """One split out of the official archive, as from `parse_records`."""
    layout = LAYOUTS[name]
    members = read_members(archive, layout.files[split], folder=layout.folder)
    parts, labels = zip(
        *(
            parse_records(blob, name, file, f"{archive} ({file})")
            for file, blob in members.items()
        ),
        strict=True,
    )
    return concatenated(parts), np.concatenate(labels)


def parse_records(
    blob: bytes, name: str, file: str, origin: str
) -> tuple[Dataset, np.ndarray]:
    """The contents of one official file, after its MD5 sum has been compared.

    Gives the dataset, images [N, 32, 32, 3] and fine labels [N], and all label bytes,
    [N, 1] or [N, 2] uint8. An error names the origin.
    """
    layout = LAYOUTS[name]
    num_labels = len(layout.label_files)
    size = num_labels + 3 * _PIXELS
    if len(blob) == 0 or len(blob) % size:
        raise DamagedDataError(
            f"{origin}: holds {len(blob)} bytes, but records of {size} are expected."
        )
    official = layout.md5.get(file)
    seen = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if official is not None and seen != official:
        raise DamagedDataError(
            f"{origin}: has the MD5 sum {seen}, but the official {file} has {official}."
        )
    records = np.frombuffer(blob, np.uint8).reshape(-1, size)
    planes = records[:, num_labels:].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    labels = records[:, :num_labels]
    # CIFAR-100 has the coarse label first and the fine one last.
    return checked(images, labels[:, -1], layout.num_classes, origin), labels


def read_members(
    archive: pathlib.Path, names: tuple[str, ...], *, folder: str
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
    missing = [name for name in names if name not in found]
    if missing:
        raise DamagedDataError(
            f"{archive}: lacks {', '.join(f'{folder}/{name}' for name in missing)}."
        )
    return {name: found[name] for name in names}
