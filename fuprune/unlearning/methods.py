"""Every way to forget by name, as `config.unlearn.methods` gives it.

A method is one function in a file of its own, declared there with `method.method`: the
modules of this package are searched for them, and so is every installed package that
has an entry point in the group `fuprune.methods`.
"""

import importlib
import pkgutil

import fuprune.unlearning
from fuprune.unlearning.entry_points import load_entry_points
from fuprune.unlearning.method import METHODS

ENTRY_POINTS = "fuprune.methods"


def _discover() -> None:
    """Puts every method that can be found into `METHODS`, controls last."""
    for module in pkgutil.iter_modules(fuprune.unlearning.__path__):
        if module.name != __name__.rpartition(".")[2]:
            importlib.import_module(f"{fuprune.unlearning.__name__}.{module.name}")
    load_entry_points(ENTRY_POINTS, lambda name, loaded: None)
    found = sorted(METHODS.items(), key=lambda one: (bool(one[1].control), one[0]))
    METHODS.clear()
    METHODS.update(found)


_discover()
