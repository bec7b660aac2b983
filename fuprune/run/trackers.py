"""Rows of metrics.jsonl for TensorBoard; the guide has recipes for other services."""

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuprune.errors import from_extra


@contextmanager
def tensorboard(directory: str | Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """An `on_row` that writes an event file, one curve per phase and metric."""
    with from_extra("tensorboard", "runtime.tensorboard"):
        from tensorboardX import SummaryWriter
    with SummaryWriter(str(directory)) as writer:

        def on_row(row: Mapping[str, Any]) -> None:
            for name, value in row.items():
                is_number = isinstance(value, numbers.Real) and name != "round"
                if is_number and math.isfinite(value):
                    writer.add_scalar(f"{row['phase']}/{name}", value, row["round"])

        yield on_row
