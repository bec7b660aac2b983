"""Checkpoints of a running phase, by orbax; models and kept trees, in safetensors.

A checkpoint is one orbax step: the arrays by their paths in the tree, and a JSON spec
from which the caller builds the tree, so that a cut model resumes as it was.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from jax.experimental import multihost_utils

from fuprune.config import ConfigError
from fuprune.errors import FupruneError, InputError, MissingFileError
from fuprune.files import write_whole
from fuprune.run import export, processes
from fuprune.unlearning.job import Checkpoint
from fuprune.unlearning.rounds import KeptRound

MODEL_FILE = "model.safetensors"
KEPT_ROUNDS = "kept_rounds"  # the folder, in a workdir, of rounds of its training
_LOGGER = logging.getLogger(__name__)


class DiskFullError(FupruneError, OSError):
    """A save that the disk had no room for; what was saved before is untouched."""


@contextlib.contextmanager
def room_for(what: str | os.PathLike) -> Iterator[None]:
    """Raises `DiskFullError` if the disk is full, also where a library only says so."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            full = getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            if full or "No space left on device" in str(cause):
                raise DiskFullError(
                    f"no room on the disk for {what}; free some and run the same "
                    "command again: it continues from the last good checkpoint."
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise


def write_tree(path: Path, tree: Any) -> None:
    """Writes the arrays of a tree; only process 0 does."""
    leaves = {name: np.asarray(leaf, order="C") for name, leaf in _leaves(tree).items()}
    if jax.process_index() == 0:
        with room_for(path):
            write_whole(path, safetensors.numpy.save(leaves))


def read_tree(path: Path, like: Any) -> Any:
    """What `write_tree` wrote, in the structure of `like`; shapes may differ."""
    names, found = list(_leaves(like)), safetensors.numpy.load_file(path)
    if set(names) != set(found):
        raise ValueError(f"it holds other arrays than {', '.join(names)[:100]}")
    leaves = [found[name] for name in names]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _leaves(tree) -> dict[str, Any]:
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in pairs}


def save(
    directory: Path, step: int, tree: Any, *, spec: Mapping[str, Any], keep: int = 2
) -> None:
    """Saves one step, then drops the oldest beyond `keep`; raises as `write_tree`."""
    if jax.process_index() != 0:
        return
    import orbax.checkpoint as ocp  # seconds to import, so only on first use

    arrays = {name: np.asarray(leaf) for name, leaf in _leaves(tree).items()}
    items = ocp.args.Composite(
        spec=ocp.args.JsonSave(dict(spec)), state=ocp.args.StandardSave(arrays)
    )
    with room_for(f"checkpoint {step} in {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        with _manager(directory, keep) as manager:
            # Later steps could not be read, or the run would have gone on from them.
            for later in [other for other in manager.all_steps() if other >= step]:
                manager.delete(later)
            manager.save(step, args=items, force=True)


def restore(
    directory: Path, make_target: Callable[[dict[str, Any]], Any]
) -> tuple[int, Any, dict[str, Any]] | None:
    """Restores the newest readable step: (step, tree of host arrays, spec), or None.

    `make_target` gives, from the spec, a tree of the structure, shapes and types that
    were saved; an InputError of it is raised. All processes call it.
    """
    step, found = -1, None
    if jax.process_index() == 0 and directory.is_dir():
        step, found = _newest(directory, make_target)
    # All processes resume from the same step, whatever each one can see.
    step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
    if step < 0:
        return None
    if found is None:
        with _manager(directory) as manager:
            found = _read(manager, step, make_target)
    return (step, *found)


def save_model(path: str | os.PathLike, model: Any, variables: Any) -> None:
    """Saves a model and its weights in the directory `path`; only process 0 writes."""
    if jax.process_index() == 0:
        with room_for(path):
            export.save_safetensors(Path(path) / MODEL_FILE, model, variables)


def model_file(path: str | os.PathLike) -> Path:
    """Where the weights of a saved model are: in its directory, or the file itself."""
    path = Path(path)
    return path / MODEL_FILE if path.is_dir() else path


def load(path: str | os.PathLike, **options: Any) -> tuple[Any, Any]:
    """Loads a saved model as `(model, variables)`.

    Args:
      path: a directory that a run wrote under `models/`, or a safetensors file.
      **options: `conv`, `dtype` and `factory`, as in `load_safetensors`.

    Example:
      >>> import tempfile, jax, jax.numpy as jnp, fuprune
      >>> images = jnp.zeros((1, 8, 8, 1))
      >>> model = fuprune.create("resnet8", num_classes=10, input_shape=(8, 8, 1))
      >>> folder = tempfile.mkdtemp()
      >>> fuprune.save_model(folder, model, model.init(jax.random.key(0), images))
      >>> model, variables = fuprune.load(folder)
      >>> model.apply(variables, images, train=False).shape
      (1, 10)
    """
    file = model_file(path)
    if not file.is_file():
        raise MissingFileError(
            f"there is no saved model at {path}; give a directory with {MODEL_FILE}."
        )
    return export.load_safetensors(file, **options)


def _newest(directory: Path, make_target) -> tuple[int, Any]:
    """The newest step that can be read, and what is in it; (-1, None) without one."""
    with _manager(directory) as manager:
        for step in sorted(manager.all_steps(), reverse=True):
            try:
                return step, _read(manager, step, make_target)
            except InputError:
                raise
            # Whatever orbax, its JSON or its arrays say of a cut or missing file.
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                _LOGGER.warning("%s/%d cannot be read (%s).", directory, step, reason)
    return -1, None


def _read(manager, step: int, make_target) -> tuple[Any, Any]:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(spec=ocp.args.JsonRestore())
    spec = manager.restore(step, args=args).spec
    target = make_target(spec)
    wanted = _leaves(target)
    empty = {name: np.zeros(x.shape, x.dtype) for name, x in wanted.items()}
    args = ocp.args.Composite(state=ocp.args.StandardRestore(empty))
    found = manager.restore(step, args=args).state
    for name, leaf in wanted.items():
        if (found[name].shape, found[name].dtype) != (leaf.shape, leaf.dtype):
            raise ValueError(f"{name} is {found[name].dtype}{list(found[name].shape)}")
    leaves = [found[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(target), leaves), spec


def _manager(directory: Path, keep: int | None = None):
    """An orbax manager of this process alone: 0 writes, and each reads by itself."""
    import orbax.checkpoint as ocp

    alone = jax.process_index()
    return ocp.CheckpointManager(
        directory.absolute(),  # orbax refuses relative paths
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,
            # Of a save that was cut short; a reader leaves it to the writer.
            cleanup_tmp_directories=keep is not None,
            enable_async_checkpointing=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=alone,
                active_processes={alone},
                barrier_sync_key_prefix=f"fuprune{alone}",
            ),
        ),
    )


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
        kept = _read_like(self._paths[index], self._like)
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
        found = _read_like(self._folder / name, self._like)
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


def _read_like(path: Path, like: Any) -> Any:
    """A tree of the structure of `like`; shapes may differ."""
    try:
        return read_tree(path, like)
    except ValueError as error:
        raise ConfigError(
            f"the workdir keeps rounds or slices of another model ({error}); start in "
            "a fresh one."
        ) from error
