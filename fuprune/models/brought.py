"""Networks that a user brings by name: `my_package.nets:make_model`.

The factory takes `num_classes` and `input_shape` and returns anything that
`models.adapt` takes. Importing a module runs its code, so a module is imported only if
the person who runs the program names it; a name that is found in a file never is.
"""

import dataclasses
import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import jax
import jax.numpy as jnp

from fuprune.errors import InputError
from fuprune.models.adapt import Network, adapt
from fuprune.models.zoo import check_sizes

Factory = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class BroughtNetwork(Network):
    """A network that a factory made, in the form that `models.adapt` describes."""

    network: Any  # adapted
    factory: str  # module:name
    num_classes: int
    input_shape: tuple[int, int, int]  # (H, W, C) of one image

    def init(self, key, images, train: bool = False):
        """Fresh variables."""
        return self.network.init(key, images, train=train)

    def apply(self, variables, images, *arguments, **options):
        """Logits [B, U], and the updated collections if `mutable` names any."""
        return self.network.apply(variables, images, *arguments, **options)


def named_factories() -> dict[str, str]:
    """Names that installed packages give to factories, by their entry points."""
    return {point.name: point.value for point in entry_points(group="fuprune.networks")}


def bring(
    factory: Factory, *, num_classes: int, input_shape: tuple[int, int, int]
) -> BroughtNetwork:
    """Returns the network of a factory, after a check of what it gives.

    The factory is a function of `num_classes` and `input_shape` (H, W, C), or its name
    `package.module:factory`, which is imported from the working directory or the
    installed packages. Its network maps images [B, H, W, C] to [B, num_classes].
    """
    shape = check_sizes(num_classes, input_shape)
    if isinstance(factory, str):
        return _bring(_find(factory), factory, int(num_classes), shape)
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    name = f"{named.__module__}:{named.__qualname__}"
    return _bring(factory, name, int(num_classes), shape)


# One network for each call, so that what is compiled for it is found again even if the
# network itself, such as a function made in the factory, equals no other.
@functools.lru_cache(maxsize=64)
def _bring(function, name, num_classes, shape) -> BroughtNetwork:
    call = f"{name}(num_classes={num_classes}, input_shape={shape})"
    # Two images: a network that drops the axis of a batch of one would pass with one.
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    try:
        network = adapt(function(num_classes=num_classes, input_shape=shape))
        variables = jax.eval_shape(network.init, jax.random.key(0), images)
        logits = jax.eval_shape(
            lambda v, x: network.apply(v, x, train=False), variables, images
        )
    except Exception as error:
        raise InputError(
            f"{call}, given images {list(images.shape)}, failed: {_one_line(error)}"
        ) from error
    seen = getattr(logits, "shape", None)
    if seen != (2, num_classes):
        what = type(logits).__name__ if seen is None else f"an array {list(seen)}"
        raise InputError(
            f"the network of {call} maps images {list(images.shape)} to {what}, but "
            f"must give logits [2, {num_classes}], a column for each class."
        )
    return BroughtNetwork(network, name, num_classes, shape)


def _find(name: str) -> Callable[..., Any]:
    """Imports a factory."""
    here = os.getcwd()
    if sys.path[:1] != [here]:
        # As `python -m` does; a console script would look beside itself instead.
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        function = pkgutil.resolve_name(name)
    except Exception as error:
        raise InputError(
            f"importing model.name {name} failed: {_one_line(error)}; it is looked for"
            f" in {here} and among the installed packages."
        ) from error
    if not callable(function):
        raise InputError(
            f"{name!r} is no function; name one as package.module:factory."
        )
    return function


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else f"{text[:300]}..."
    return f"{type(error).__name__}: {text}"
