"""Work on several models at a time, where the steps of one do not fill the machine."""

import concurrent.futures
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax

Result = TypeVar("Result")


def in_pairs(work: Callable[..., Result], *items: Iterable[Any]) -> list[Result]:
    """`list(map(work, *items))`, on CPUs by two threads.

    Two, because the steps of a small network do not fill two cores. An accelerator
    would run them one after the other, in twice the memory, and there JAX's context
    managers, which do not reach threads, could change numbers.
    """
    if jax.default_backend() != "cpu":
        return list(map(work, *items))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, *items))
