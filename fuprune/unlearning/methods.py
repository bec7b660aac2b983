"""Every way to forget by name, as `config.unlearn.methods` gives it.

A method is one function in a file of its own, declared there with `method.method`: the
modules of this package are searched for them, and so is every installed package that
has an entry point in the group `fuprune.methods`.
"""

import importlib
import logging
import pkgutil
from collections.abc import Iterable
from importlib.metadata import entry_points

import fuprune.unlearning
from fuprune.errors import InputError
from fuprune.unlearning.method import METHODS

ENTRY_POINTS = "fuprune.methods"


def _discover() -> None:
    """Puts every method that can be found into `METHODS`, controls last."""
    for module in pkgutil.iter_modules(fuprune.unlearning.__path__):
        if module.name != __name__.rpartition(".")[2]:
            importlib.import_module(f"{fuprune.unlearning.__name__}.{module.name}")
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            # Somebody else's package must not stop runs that do not need it.
            logging.getLogger(__name__).warning(
                "the methods of %s cannot be used: %s: %s",
                point.value,
                type(error).__name__,
                error,
            )
    found = sorted(METHODS.items(), key=lambda one: (bool(one[1].control), one[0]))
    METHODS.clear()
    METHODS.update(found)


_discover()


def select(names: str | Iterable[str]) -> tuple[str, ...]:
    """Method names in the order given; "all" is every one."""
    if names == "all":
        return tuple(METHODS)
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if name not in METHODS:
            raise InputError(
                f"method {name!r} is unknown; choose all or some of "
                f"{', '.join(METHODS)}."
            )
    return chosen
