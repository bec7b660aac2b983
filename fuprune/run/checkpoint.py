"""Checkpoints of a running phase, by orbax, and saved models.

A checkpoint is one orbax step: the arrays, and a JSON record with their shapes and a
spec, from which the caller builds the tree (the model's widths among it), so a cut
model resumes as it was.
"""

import errno
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune import export
from fuprune.errors import FupruneError, InputError, MissingFileError

MODEL_FILE = "model.safetensors"
_LOGGER = logging.getLogger(__name__)


class DiskFullError(FupruneError, OSError):
    """A save that the disk had no room for; what was saved before is untouched."""


def save(
    directory: str | os.PathLike,
    step: int,
    tree: Any,
    *,
    spec: Mapping[str, Any],
    keep: int = 2,
) -> None:
    """Saves one step, then drops the oldest beyond `keep`; only process 0 writes.

    The tree is of arrays; `spec`, which is JSON-able, is what `restore` hands to
    `make_target`.

    Raises:
      DiskFullError: if there is no room; the earlier steps stay.
    """
    if jax.process_index() != 0:
        return
    import orbax.checkpoint as ocp  # seconds to import, so only on first use

    arrays = {name: np.asarray(leaf) for name, leaf in _flatten(tree).items()}
    record = {"spec": dict(spec), "arrays": _shapes(tree), "crc32": _checksum(arrays)}
    items: dict[str, Any] = {"spec": ocp.args.JsonSave(record)}
    if arrays:  # orbax refuses an empty tree
        items["state"] = ocp.args.StandardSave(arrays)
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with _manager(directory, keep) as manager:
            # Later steps could not be read, or the run would have gone on from them.
            for later in [s for s in manager.all_steps() if s >= step]:
                manager.delete(later)
            manager.save(step, args=ocp.args.Composite(**items), force=True)
    except Exception as error:
        _raise_if_disk_full(error, f"checkpoint {step} in {directory}")
        raise


def restore(
    directory: str | os.PathLike, make_target: Callable[[dict[str, Any]], Any]
) -> tuple[int, Any, dict[str, Any]] | None:
    """Restores the newest readable step: (step, tree of host arrays, spec), or None.

    `make_target` gives, from the spec, a tree of arrays or `jax.ShapeDtypeStruct`s of
    the structure, shapes and types that were saved. All processes call it.

    Raises:
      InputError: if the target does not fit what was saved: the spec or the code that
        reads it is wrong, so no older step is tried.
    """
    from jax.experimental import multihost_utils

    step, saved = -1, None
    if jax.process_index() == 0 and Path(directory).is_dir():
        step, saved = _newest(directory)
    # All processes resume from the same step, whatever each one can see.
    step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
    if step < 0:
        return None
    record, arrays = _read(directory, step) if saved is None else saved
    target = make_target(record["spec"])
    wanted, found = _shapes(target), record["arrays"]
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise InputError(
                f"{directory}/{step} holds {found.get(name, 'nothing')} at {name}, but "
                f"the target built from its spec has {wanted.get(name, 'nothing')}."
            )
    leaves = [arrays[name] for name in _flatten(target)]
    return step, jax.tree.unflatten(jax.tree.structure(target), leaves), record["spec"]


def save_model(
    path: str | os.PathLike, model: Any, variables: Any, **options: Any
) -> None:
    """Saves a model and its weights in the directory `path`, whole or not at all.

    Only process 0 writes. `options` are those of `save_safetensors`.

    Raises:
      DiskFullError: if there is no room; a model saved there before stays.
    """
    if jax.process_index() != 0:
        return
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        export.save_safetensors(path / MODEL_FILE, model, variables, **options)
    except Exception as error:
        _raise_if_disk_full(error, f"the model {path}")
        raise


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


def _newest(directory: str | os.PathLike) -> tuple[int, Any]:
    """The newest step that can be read, and what is in it; (-1, None) without one."""
    with _manager(directory) as manager:
        steps = sorted(manager.all_steps(), reverse=True)
    for step in steps:
        try:
            return step, _read(directory, step)
        # Whatever orbax, its JSON or its arrays say of a file that is cut or missing.
        except Exception as error:
            _LOGGER.warning(
                "checkpoint %s/%d cannot be read (%s); trying the one before it.",
                directory,
                step,
                " ".join(str(error).split())[:200],
            )
    if steps:
        _LOGGER.warning(
            "no usable checkpoint is left in %s; this phase starts from its beginning.",
            directory,
        )
    return -1, None


def _read(directory: str | os.PathLike, step: int) -> tuple[dict[str, Any], Any]:
    """The record of a step and its arrays by name."""
    import orbax.checkpoint as ocp

    with _manager(directory) as manager:
        args = ocp.args.Composite(spec=ocp.args.JsonRestore())
        record, arrays = manager.restore(step, args=args).spec, {}
        if record["arrays"]:
            empty = {name: _empty(form) for name, form in record["arrays"].items()}
            args = ocp.args.Composite(state=ocp.args.StandardRestore(empty))
            arrays = manager.restore(step, args=args).state
    if record["crc32"] != _checksum(arrays):
        raise InputError("its arrays are not those that were saved")
    return record, arrays


def _manager(directory: str | os.PathLike, keep: int | None = None):
    """An orbax manager of this process alone: 0 writes, and each reads by itself."""
    import orbax.checkpoint as ocp

    alone = jax.process_index()
    return ocp.CheckpointManager(
        Path(directory).absolute(),  # orbax refuses relative paths
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


def _flatten(tree) -> dict[str, Any]:
    """Leaves by path: orbax then sees one dictionary, whatever NamedTuples it was."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path): leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        for path, leaf in pairs
    }


def _shapes(tree) -> dict[str, list[Any]]:
    """Type and shape of each leaf, as in ["float32", 3, 3, 16, 16]."""
    return {name: [str(x.dtype), *x.shape] for name, x in _flatten(tree).items()}


def _empty(form: list[Any]) -> np.ndarray:
    return np.zeros(form[1:], jax.numpy.dtype(form[0]))


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """Of all arrays: orbax finds files that are cut or missing, but no flipped bits."""
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(np.asarray(arrays[name]).tobytes(), total)
    return total


def _raise_if_disk_full(error: BaseException, what: str) -> None:
    """Raise `DiskFullError` if the disk was full, also where a library only says so."""
    cause: BaseException | None = error
    while cause is not None:
        full = getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or "No space left on device" in str(cause):
            raise DiskFullError(
                f"no room on the disk for {what}; free some and run the same command "
                "again: it continues from the last good checkpoint."
            ) from error
        cause = cause.__cause__ or cause.__context__
