"""Checkpoints of a running phase, and saved models, as plain data with checksums.

A checkpoint is one orbax step holding the arrays and a JSON spec from which the tree to
restore into is built (the model's widths among it), so a cut model resumes as it was.
Once orbax has committed a step, the SHA-256 of each of its files is written beside it;
a step without that manifest, or that disagrees with it, is never used.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune import export
from fuprune.errors import FupruneError, InputError, MissingFileError
from fuprune.files import UNFINISHED, write_whole

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
    """Saves one step, then drops the oldest beyond `keep`.

    In a run of several processes all call it and process 0 writes. A step that exists
    and is intact is left as it is; one that is damaged is written anew.

    The tree is of arrays, typed keys included; `spec`, which is JSON-able, is what
    `restore` hands to `make_target`.

    Raises:
      DiskFullError: if there is no room; the earlier steps stay.
    """
    if jax.process_index() != 0:
        return
    directory = Path(directory).absolute()  # orbax refuses relative paths
    # Names and host arrays only: what is read back needs neither the classes of the
    # tree nor the devices it was on.
    arrays = {name: _to_host(leaf) for name, leaf in _flatten(tree).items()}
    record = {"spec": dict(spec), "arrays": _shapes(tree)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        if step in _steps(directory):
            if _damage(directory, step) is None:
                return
            _delete(directory, step)
        _write_step(directory, step, arrays, record)
        _write_manifest(directory, step)
    except Exception as error:
        if not _is_disk_full(error):
            raise
        _sweep(directory)
        raise DiskFullError(
            f"no room on the disk for checkpoint {step} in {directory}; free some and "
            "run the same command again: it continues from the last good checkpoint."
        ) from error
    for old in _steps(directory)[: -max(keep, 1)]:
        _delete(directory, old)


def latest(directory: str | os.PathLike) -> int | None:
    """Returns the newest intact step, or None; damaged ones are logged."""
    step = -1
    if jax.process_index() == 0:
        step = _newest_intact(Path(directory).absolute())
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        # All processes must resume from the same step, whatever each one can see.
        step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
    return None if step < 0 else step


def restore(
    directory: str | os.PathLike, make_target: Callable[[dict[str, Any]], Any]
) -> tuple[int, Any, dict[str, Any]] | None:
    """Restores the newest intact step: (step, tree of host arrays, spec), or None.

    `make_target` gives, from the spec, a tree of arrays or `jax.ShapeDtypeStruct`s of
    the structure, shapes and types that were saved.

    Raises:
      ValueError: if the target does not fit what was saved: the spec or the code that
        reads it is wrong, so no older step is tried.
    """
    directory = Path(directory).absolute()
    step = latest(directory)
    if step is None:
        return None
    record = _read(directory, step, spec=_orbax_args().JsonRestore()).spec
    target = make_target(record["spec"])
    _check_fits(_shapes(target), record["arrays"], directory / str(step))
    leaves, arrays = _flatten(target), {}
    if leaves:
        empty = {name: _empty(leaf) for name, leaf in leaves.items()}
        arrays = _read(
            directory, step, state=_orbax_args().StandardRestore(empty)
        ).state
    restored = [_from_host(arrays[name], leaf) for name, leaf in leaves.items()]
    structure = jax.tree.structure(target)
    return step, jax.tree.unflatten(structure, restored), record["spec"]


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
        if not _is_disk_full(error):
            raise
        raise DiskFullError(
            f"no room on the disk for the model {path}; free some and run the same "
            "command again."
        ) from error


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


def _flatten(tree) -> dict[str, Any]:
    """Leaves by path: orbax then sees one dictionary, whatever NamedTuples it was."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path): leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        for path, leaf in pairs
    }


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_host(leaf) -> np.ndarray:
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(jax.device_get(leaf))


def _from_host(array: np.ndarray, like):
    if not _is_key(like):
        return array
    # `key_impl` takes an array of keys, not the ShapeDtypeStruct of one.
    implementation = jax.random.key_impl(jax.numpy.empty((), like.dtype))
    return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)


def _empty(leaf) -> np.ndarray:
    if _is_key(leaf):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return np.zeros(leaf.shape, leaf.dtype)


def _shapes(tree) -> dict[str, str]:
    """Shape and type of each leaf, as in float32[3,3,16,16]."""
    return {
        name: f"{leaf.dtype}{list(leaf.shape)}".replace(" ", "")
        for name, leaf in _flatten(tree).items()
    }


def _check_fits(wanted: Mapping[str, str], saved: Mapping[str, str], where) -> None:
    for name in sorted(wanted.keys() | saved.keys()):
        if wanted.get(name) != saved.get(name):
            raise InputError(
                f"{where} holds {saved.get(name, 'nothing')} at {name}, but the target "
                f"built from its spec has {wanted.get(name, 'nothing')}."
            )


def _orbax_args():
    import orbax.checkpoint as ocp  # seconds to import, so only on first use

    return ocp.args


def _manager(directory: Path):
    import orbax.checkpoint as ocp

    # Each process is on its own: process 0 writes without waiting for the others, and
    # each reads without them.
    alone = jax.process_index()
    return ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            create=False,
            # A reader must not remove what process 0 is writing; `_sweep` does it.
            cleanup_tmp_directories=False,
            enable_async_checkpointing=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=alone,
                active_processes={alone},
                barrier_sync_key_prefix=f"fuprune{alone}",
            ),
        ),
    )


def _write_step(directory: Path, step: int, arrays, record) -> None:
    args = _orbax_args()
    items: dict[str, Any] = {"spec": args.JsonSave(record)}
    # orbax refuses an empty tree.
    if arrays:
        items["state"] = args.StandardSave(arrays)
    with _quiet(), _manager(directory) as manager:
        # By force: a damaged step may be older than the newest, and orbax would not
        # save it otherwise.
        if not manager.save(step, args=args.Composite(**items), force=True):
            raise RuntimeError(f"orbax did not save step {step} in {directory}.")


@contextlib.contextmanager
def _quiet():
    """Keeps orbax's threads from printing tracebacks of errors it also raises."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read(directory: Path, step: int, **items):
    with _manager(directory) as manager:
        return manager.restore(step, args=_orbax_args().Composite(**items))


def _steps(directory: Path) -> list[int]:
    """Steps that orbax has committed, ascending."""
    if not directory.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in directory.iterdir()
        if entry.name.isascii() and entry.name.isdigit() and entry.is_dir()
    )


def _manifest(directory: Path, step: int) -> Path:
    return directory / f"{step}.sha256.json"


def _write_manifest(directory: Path, step: int) -> None:
    digests = _digests(directory / str(step))
    text = json.dumps(digests, indent=1, sort_keys=True)
    write_whole(_manifest(directory, step), text)


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(folder).as_posix()] = digest
    return digests


def _damage(directory: Path, step: int) -> str | None:
    """What is wrong with a step, or None."""
    recorded = None
    try:
        recorded = json.loads(_manifest(directory, step).read_text())
    except FileNotFoundError:
        return "its save was not finished"
    except ValueError:
        pass
    if not isinstance(recorded, dict):
        return "its list of checksums is unreadable"
    actual = _digests(directory / str(step))
    for name in sorted(recorded.keys() | actual.keys()):
        if recorded.get(name) != actual.get(name):
            state = "lost" if name not in actual else "not what was written"
            return f"the file {name} is {state}"
    return None


def _newest_intact(directory: Path) -> int:
    steps = _steps(directory)
    # Checksums are read only until one step is good: a step may be large.
    for step in reversed(steps):
        damage = _damage(directory, step)
        if damage is None:
            return step
        _LOGGER.warning(
            "checkpoint %s cannot be used: %s; trying the one before it.",
            directory / str(step),
            damage,
        )
    if steps:
        _LOGGER.warning(
            "no usable checkpoint is left in %s; this phase starts from its beginning.",
            directory,
        )
    return -1


def _delete(directory: Path, step: int) -> None:
    # In this order a kill in between leaves a step that is known to be unusable.
    _manifest(directory, step).unlink(missing_ok=True)
    shutil.rmtree(directory / str(step))


def _sweep(directory: Path) -> None:
    """Removes what a save that was cut short left behind."""
    for pattern in ("*.orbax-checkpoint-tmp*", f".*{UNFINISHED}"):
        for path in directory.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether the disk was full, also where a library reports it in words only."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        text = str(error)
        if "No space left on device" in text or "Disk quota exceeded" in text:
            return True
        error = error.__cause__ or error.__context__
    return False
