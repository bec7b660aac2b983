"""Parts that other packages bring, found by their entry points."""

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def load_entry_points(group: str, add: Callable[[str, Any], Any]) -> None:
    """Calls `add(name, part)` for each entry point of a group; warns of broken ones."""
    for point in entry_points(group=group):
        try:
            add(point.name, point.load())
        except Exception as error:
            logging.getLogger(__name__).warning(
                f"{group} of {point.value} cannot be used: "
                f"{type(error).__name__}: {error}"
            )
