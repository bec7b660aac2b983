"""The recorded updates of a training run, beside its checkpoints, as plain arrays.

One file a checkpoint, so that a resumed run goes on with exactly what the checkpoint's
round had recorded.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fuprune.unlearning.history import UpdateHistory, as_arrays, from_arrays


def save(folder: Path, round_number: int, history: UpdateHistory, *, keep: int) -> None:
    """Write the history of a round, and drop all but the newest `keep` files."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{round_number:08d}.npz"
    temporary = folder / f".{round_number:08d}.npz"
    with open(temporary, "wb") as file:
        np.savez(file, **as_arrays(history))  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    for old in sorted(folder.glob("*.npz"))[:-keep]:
        old.unlink()


def load(folder: Path, params: Any, *, round_number: int | None = None):
    """The history of a round, or the newest; None if there is none."""
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if round_number is not None:
        files = [path for path in files if path.stem == f"{round_number:08d}"]
    if not files:
        return None
    with np.load(files[-1], allow_pickle=False) as arrays:
        return from_arrays(dict(arrays), params)
