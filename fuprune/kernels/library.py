"""The compiled library behind the kernels: whether it is available, and its threads.

OpenMP counts threads per calling thread, so each CPU device has its own. The default
shares the process's cores out among its CPU devices; ``OMP_NUM_THREADS`` or
:func:`set_threads` decide otherwise. One thread for each of as many devices as cores is
the fastest way to train clients.
"""

import functools
import logging
import os
import pathlib
from collections.abc import Callable

import jax

from fuprune.errors import check_choice
from fuprune.kernels import build

IMPLEMENTATIONS = ("xla", "onednn")
DTYPES = ("float32", "bfloat16")  # what the kernels take; both sum in float32

_FOLDER = pathlib.Path(__file__).parent
_log = logging.getLogger(__name__)


def available() -> bool:
    """Says whether the kernels named "onednn" can run on this machine."""
    return why_not() is None


@functools.cache
def why_not() -> str | None:
    """Returns the reason why the kernels cannot be used here, or None if they can.

    The first call builds the library in some seconds, and leaves JAX's backends alone.
    """
    try:
        build.load(_FOLDER)
    except build.BuildError as error:
        return str(error)
    return None


def choose(name: str, kernel: Callable, fallback: Callable) -> Callable:
    """The function that the name of an implementation stands for on this machine."""
    check_choice("the implementation", name, IMPLEMENTATIONS)
    return kernel if name == "onednn" and ready() else fallback


@functools.cache
def ready() -> bool:
    """Like `available`, with one notice in the log if not."""
    if reason := why_not():
        _log.warning("XLA's own operations run instead of oneDNN's: %s", reason)
        return False
    return True


@functools.cache
def target(name: str) -> str:
    """Makes a kernel of the library known to XLA, and returns its name there."""
    kernel = jax.ffi.pycapsule(getattr(build.load(_FOLDER), name))
    jax.ffi.register_ffi_target(name, kernel, platform="cpu")
    return name


def multiplies_bfloat16() -> bool:
    """Says whether this processor has fast products of bfloat16.

    That is AMX, or avx512_bf16 on AMD's: Intel's has half the rate of float32.
    """
    return available() and bool(build.load(_FOLDER).fuprune_multiplies_bfloat16())


def set_threads(threads: int) -> None:
    """Sets how many OpenMP threads each device uses, from the next kernel on."""
    if available():
        build.load(_FOLDER).fuprune_set_threads(threads)


@functools.cache
def share_cores() -> None:
    """Shares the cores out among the CPU devices, unless the user decided otherwise.

    Called when a kernel is lowered and not when the library loads: counting devices
    starts the backend, and the number of devices may still be about to be set.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        share = max(1, cores // jax.local_device_count("cpu"))
        build.load(_FOLDER).fuprune_set_default_threads(share)


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Makes arrays vary over the same mesh axes, as shard_map asks of a primitive."""
    axes = [_varying_axes(array) for array in arrays]
    union = frozenset().union(*axes)
    return tuple(
        jax.lax.pcast(array, tuple(union - own), to="varying") if union - own else array
        for array, own in zip(arrays, axes, strict=True)
    )


def _varying_axes(array: jax.Array) -> frozenset:
    manual = getattr(jax.typeof(array), "manual_axis_type", None)
    return frozenset(getattr(manual, "varying", ()))
