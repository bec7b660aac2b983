"""What unlearning keeps on disk: rounds of a training, and methods' checkpoints.

One file per round or slice, written whole or not at all and read when it is needed, so
that memory holds one at a time. A resumed training writes the same rounds again.
"""

import shutil
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune.config import ConfigError
from fuprune.files import write_whole
from fuprune.run import processes
from fuprune.run.checkpoint import DiskFullError
from fuprune.unlearning.protocol import Checkpoint
from fuprune.unlearning.rounds import KeptRound, kept_bytes

KEPT_ROUNDS = "kept_rounds"  # their folder in the workdir


def check_room(config, variables, folder: Path) -> int:
    """Bytes that the kept rounds will take, if there is room for them in the workdir.

    `variables` are those of the model, or their shapes.

    Raises:
      ConfigError: there is not.
    """
    train = config.train
    needed = kept_bytes(
        variables,
        rounds=train.rounds,
        interval=train.history_interval,
        cohort=train.cohort,
    )
    whole = folder.absolute()
    place = next(path for path in (whole, *whole.parents) if path.exists())
    free = shutil.disk_usage(place).free
    # A run that continues has written a part of them already.
    written = sum(path.stat().st_size for path in folder.glob(f"{KEPT_ROUNDS}/*.npz"))
    if needed - written > free:
        raise ConfigError(
            f"train.history_interval is {train.history_interval}, with which the kept "
            f"rounds take {needed} bytes, but {place} has {free} left; raise it, lower "
            "train.cohort or train.rounds, or free some."
        )
    return needed


class RoundFiles(Sequence):
    """The kept rounds of a folder in their order; each is read when it is needed."""

    def __init__(self, folder: Path, variables: Any):
        """Finds the files; `variables` gives the structure of the trees in them."""
        self._paths = _numbered(folder)
        empty, params = np.empty(0), variables["params"]
        self._like = KeptRound(0, dict(variables), empty, empty, params)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._paths)

    def __getitem__(self, index):
        """One round, or a list of several."""
        if isinstance(index, slice):
            return [self._read(path) for path in self._paths[index]]
        return self._read(self._paths[index])

    def _read(self, path: Path) -> KeptRound:
        kept = _read_tree(path, self._like)
        return kept._replace(round_number=int(kept.round_number))


def _numbered(folder: Path) -> list[Path]:
    """The files of a folder that are called by a round, in order; none without it."""
    return sorted(folder.glob("[0-9]*.npz"))


def save_round(folder: Path, kept: KeptRound) -> None:
    """Writes one kept round; only process 0 does.

    Raises:
      DiskFullError: if there is no room; training stops, and nothing is left out.
    """
    if jax.process_index() == 0:
        _write_tree(folder / f"{kept.round_number:08d}.npz", kept)


class CheckpointFiles(MutableMapping):
    """A method's checkpoints in a folder: SISA's slices, FedEraser's replayed rounds.

    `on_write` is called after each, where a run that is to stop may raise.
    """

    def __init__(
        self, folder: Path, variables: Any, on_write: Callable[[], None] | None = None
    ):
        """`variables` gives the structure of the trees."""
        self._folder, self._on_write = folder, on_write
        self._like = Checkpoint(dict(variables), 0)

    def __getitem__(self, name: str) -> Checkpoint:
        """The checkpoint of that name."""
        path = self._path(name)
        if not path.is_file():
            raise KeyError(name)
        found = _read_tree(path, self._like)
        return found._replace(images=int(found.images))

    def __setitem__(self, name: str, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint."""
        if jax.process_index() == 0:
            _write_tree(self._path(name), jax.device_get(checkpoint))
        # The others read it at once.
        processes.await_file(self._path(name))
        if self._on_write is not None:
            self._on_write()

    def __contains__(self, name: object) -> bool:
        """Whether it was written."""
        return self._path(name).is_file()

    def __delitem__(self, name: str) -> None:
        """Deletes a checkpoint."""
        self._path(name).unlink()

    def __iter__(self) -> Iterator[str]:
        """All names."""
        return (path.stem for path in sorted(self._folder.glob("*.npz")))

    def __len__(self) -> int:
        """How many there are."""
        return sum(1 for _ in self)

    def _path(self, name: object) -> Path:
        return self._folder / f"{name}.npz"


def _write_tree(path: Path, tree: Any) -> None:
    _write(path, {f"leaf_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))})


def _read_tree(path: Path, like: Any) -> Any:
    """A tree of the structure of `like`; shapes may differ."""
    arrays, structure = _read(path), jax.tree.structure(like)
    names = [f"leaf_{i}" for i in range(structure.num_leaves)]
    if arrays.keys() != set(names):
        raise ConfigError(
            "the workdir keeps rounds or slices of another model; start in a fresh one."
        )
    return jax.tree.unflatten(structure, [arrays[name] for name in names])


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _write(path: Path, arrays: dict[str, Any]) -> None:
    try:
        write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore
    except OSError as error:
        raise DiskFullError(
            f"{path} could not be written ({error.strerror}); free some disk and run "
            "the same command again: it continues from the last good checkpoint."
        ) from error
