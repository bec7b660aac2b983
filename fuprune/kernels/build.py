"""Compiles the package's C++ sources at first use and keeps the result in a cache.

The libraries they bind are PyPI wheels (dependencies on Linux x86-64), the headers
of XLA's foreign function interface come with jaxlib, and the compiler is the machine's
own. A build is keyed by everything that could make it stale.
"""

import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.metadata
import logging
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

import jax
import jaxlib.version

from fuprune.files import cache_folder, write_whole

_LIBRARY = "libdnnl.so.3"
_WHEEL = "onednn-cpu-gomp"  # onednn-devel-cpu-gomp puts its headers beside it
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden")

_log = logging.getLogger(__name__)


class BuildError(Exception):
    """A compiled kernel is unavailable here; the message says why and what to do."""


class OneDnn(NamedTuple):
    """Where oneDNN lies on this machine."""

    library: pathlib.Path  # libdnnl.so.3
    include: pathlib.Path  # holds oneapi/dnnl/dnnl.hpp
    version: str


@functools.cache
def find_onednn() -> OneDnn:
    """Returns oneDNN of ``$DNNLROOT``, else of the PyPI wheels, else of the prefix."""
    roots = [os.environ["DNNLROOT"]] if os.environ.get("DNNLROOT") else []
    roots = list(dict.fromkeys([*roots, *_wheel_roots(), sys.prefix]))
    for root in map(pathlib.Path, roots):
        header = root / "include/oneapi/dnnl/dnnl_version.h"
        library = next(
            (
                found
                for folder in ("lib", "lib64")
                if (found := root / folder / _LIBRARY).exists()
            ),
            None,
        )
        if library and header.exists():
            numbers = re.findall(
                r"DNNL_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text()
            )
            return OneDnn(library, root / "include", ".".join(numbers))
    raise BuildError(
        f"{_LIBRARY} and its headers are not in {', '.join(roots)}; install "
        "onednn-cpu-gomp and onednn-devel-cpu-gomp, or point DNNLROOT at oneDNN 3"
    )


def _wheel_roots() -> list[str]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(_WHEEL) or ():
            if file.name == _LIBRARY:
                return [str(pathlib.Path(str(file.locate())).resolve().parents[1])]
    return []


@functools.cache
def load(folder: pathlib.Path) -> ctypes.CDLL:
    """Returns one shared library of all C++ in ``folder``, building it if necessary.

    Raises:
      BuildError: there is no oneDNN, no compiler, or the compiler failed.
    """
    onednn = find_onednn()
    path = _built(folder, onednn)
    try:
        # Loaded first, under its soname, so that the build needs no run path and
        # survives the virtual environment that it was made in.
        ctypes.CDLL(str(onednn.library))
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} does not load: {error}") from error


def _built(folder: pathlib.Path, onednn: OneDnn) -> pathlib.Path:
    sources = sorted([*folder.glob("*.cc"), *folder.glob("*.h")])
    parts = (
        *(text for path in sources for text in (path.name, path.read_text())),
        *_FLAGS,
        jaxlib.version.__version__,
        onednn.version,
        platform.machine(),
        os.environ.get("CXX", ""),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = cache_dir() / f"kernels-{key}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():  # another process may have built it meanwhile
                _compile([s for s in sources if s.suffix == ".cc"], path, onednn)
    except OSError as error:
        raise BuildError(
            f"cannot write to {path.parent} ({error}); set FUPRUNE_CACHE_DIR to a "
            "folder that can be written"
        ) from error
    return path


def cache_dir() -> pathlib.Path:
    """Returns ``$FUPRUNE_CACHE_DIR``, else ``$XDG_CACHE_HOME/fuprune``."""
    if chosen := os.environ.get("FUPRUNE_CACHE_DIR"):
        return pathlib.Path(chosen)
    return cache_folder()


def _compile(sources: list[pathlib.Path], path: pathlib.Path, onednn: OneDnn) -> None:
    _log.info("building the kernels once, into %s", path)
    includes = [f"-I{jax.ffi.include_dir()}", f"-I{onednn.include}"]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        objects = [pathlib.Path(folder) / f"{source.stem}.o" for source in sources]
        output = pathlib.Path(folder) / path.name
        # Side by side: each file takes seconds.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            steps = [
                pool.submit(_call_compiler, [*includes, "-c", str(source)], to)
                for source, to in zip(sources, objects, strict=True)
            ]
            for step in steps:
                step.result()
        _call_compiler(["-shared", *map(str, objects), str(onednn.library)], output)
        write_whole(path, output.read_bytes())


def _call_compiler(arguments: list[str], output: pathlib.Path) -> None:
    command = [*compiler(), *_FLAGS, *arguments, "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        first = next(
            (line for line in result.stderr.splitlines() if "error" in line),
            result.stderr.strip()[-200:],
        )
        raise BuildError(f"{shlex.join(command[:1])} failed: {first}")


def compiler() -> list[str]:
    """Returns the command of ``$CXX``, else of the machine's C++ compiler."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise BuildError(
        "no C++ compiler (g++, c++, clang++) on PATH; install one or set CXX to it"
    )
