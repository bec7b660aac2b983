"""What unlearning keeps on disk: rounds of a training, and methods' checkpoints.

One file per round or slice, written whole or not at all and read when it is needed, so
that memory holds one at a time. A resumed training writes the same rounds again.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune.config import ConfigError
from fuprune.run import processes
from fuprune.run.checkpoint import read_tree, write_tree
from fuprune.unlearning.job import Checkpoint
from fuprune.unlearning.rounds import KeptRound

KEPT_ROUNDS = "kept_rounds"  # their folder in the workdir


class RoundFiles(Sequence):
    """The kept rounds of a folder in their order; each is read when it is needed."""

    def __init__(self, folder: Path, variables: Any):
        """Finds the files; `variables` gives the structure of the trees in them."""
        self._paths = sorted(folder.glob("[0-9]*"))
        empty, params = np.empty(0), variables["params"]
        self._like = KeptRound(0, dict(variables), empty, empty, params)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._paths)

    def __getitem__(self, index):
        """One round, or a list of several."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        kept = _read(self._paths[index], self._like)
        return kept._replace(round_number=int(kept.round_number))


def save_round(folder: Path, kept: KeptRound) -> None:
    """Writes one kept round; raises as `write_tree` does, and nothing is left out."""
    write_tree(folder / f"{kept.round_number:08d}", kept)


class CheckpointFiles(MutableMapping):
    """A method's checkpoints in a folder: SISA's slices, FedEraser's replayed rounds.

    `on_write` is called after each, where a run that is to stop may raise.
    """

    def __init__(
        self, folder: Path, variables: Any, on_write: Callable[[], None] = lambda: None
    ):
        """`variables` gives the structure of the trees."""
        self._folder, self._on_write = folder, on_write
        self._like = Checkpoint(dict(variables), 0)

    def __getitem__(self, name: str) -> Checkpoint:
        """The checkpoint of that name."""
        if name not in set(self):
            raise KeyError(name)
        found = _read(self._folder / name, self._like)
        return found._replace(images=int(found.images))

    def __setitem__(self, name: str, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint."""
        write_tree(self._folder / name, jax.device_get(checkpoint))
        processes.await_file(self._folder / name)  # the others read it at once
        self._on_write()

    def __delitem__(self, name: str) -> None:
        """Deletes a checkpoint."""
        (self._folder / name).unlink()

    def __iter__(self) -> Iterator[str]:
        """All names."""
        return (path.name for path in sorted(self._folder.glob("[!.]*")))

    def __len__(self) -> int:
        """How many there are."""
        return sum(1 for _ in self)


def _read(path: Path, like: Any) -> Any:
    """A tree of the structure of `like`; shapes may differ."""
    try:
        return read_tree(path, like)
    except ValueError as error:
        raise ConfigError(
            f"the workdir keeps rounds or slices of another model ({error}); start in "
            "a fresh one."
        ) from error
