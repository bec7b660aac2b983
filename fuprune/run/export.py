"""Models out of the project and back: safetensors for weights, StableHLO to run.

Both are single files of plain data. A safetensors file carries the spec that rebuilds
the model, widths included, and is checked against it when read; a StableHLO file is a
compiled-anywhere function from images to logits with any batch size.
"""

import dataclasses
import functools
import importlib.util
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util
from jax import export

from fuprune.errors import InputError, MissingFileError, MissingPackageError
from fuprune.files import write_whole
from fuprune.models.adapt import Variables, adapt, own_variables
from fuprune.models.brought import Factory
from fuprune.models.ensemble import Ensemble
from fuprune.surgery import SlimNetwork, rebuild

FORMAT = "fuprune-model-1"
_LOGGER = logging.getLogger(__name__)
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# The check that a batch has the shape it should: the only call in our own exports.
_KNOWN_CALLS = ("@shape_assertion(",)


def save_safetensors(path: str | os.PathLike, model: Any, variables: Variables) -> None:
    """Writes a model to one safetensors file, which is replaced whole or not at all.

    Args:
      path: the file.
      model: a model of the zoo or one that `bring` made, compacted or not.
      variables: its "params" and "batch_stats"; for an NNX module None, meaning those
        it holds. Names in the file are their paths, as in `params/stem/conv/kernel`.
    """
    variables = own_variables(model, variables)
    spec = rebuild.spec(model)
    # Not `ascontiguousarray`, which makes an array [1] of a single number.
    flat = {n: np.asarray(leaf, order="C") for n, leaf in _flatten(variables).items()}
    _check_arrays(model, flat, "variables")
    metadata = {"format": FORMAT, "spec": json.dumps(spec)}
    data = safetensors.numpy.save(flat, metadata=metadata)
    write_whole(path, _with_sorted_header(data))


def _with_sorted_header(data: bytes) -> bytes:
    # The library writes the metadata in an order that changes from call to call; the
    # same model is to give the same bytes.
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    # The format wants the arrays at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def load_safetensors(
    path: str | os.PathLike,
    *,
    conv: str = "xla",
    dtype: Any = jnp.float32,
    factory: Factory | None = None,
) -> tuple[Any, Variables]:
    """Reads what `save_safetensors` wrote.

    Every name, shape and type is checked against the spec in the file before use, and
    no Python code in the file is ever executed.

    Args:
      path: the file.
      conv: implementation of the convolution, "xla" or "onednn".
      dtype: type the convolutions compute in.
      factory: of a network that a user brought, the function that makes it, or its
        name `package.module:factory`, which must be the one in the file: the file's
        word is not enough to import it.
    """
    flat, metadata = _read_arrays(path)
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {metadata.get('format')!r}, but must have {FORMAT!r};"
            " write it with save_safetensors."
        )
    try:
        spec = json.loads(metadata.get("spec", ""))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} has a spec that is not JSON: {error}.") from error
    model = rebuild.from_spec(spec, factory=factory, conv=conv, dtype=dtype)
    _check_arrays(model, flat, path)
    broken = [name for name, array in flat.items() if not np.isfinite(array).all()]
    if broken:  # a model that diverged is saved and audited like any other
        _LOGGER.warning("%s has NaN or infinity in %s; it diverged.", path, broken[0])
    return model, traverse_util.unflatten_dict(jax.device_put(flat), sep="/")


def load_weights(path: str | os.PathLike, model: Any) -> Variables:
    """Reads the variables of a network from arrays that are named by their paths.

    Args:
      path: a safetensors file, such as `params/stem/kernel` or `params.stem.kernel`.
      model: a network that says its `input_shape`, against which they are checked.
    """
    flat = {n.replace(".", "/"): array for n, array in _read_arrays(path)[0].items()}
    _check_arrays(model, flat, path)
    return traverse_util.unflatten_dict(flat, sep="/")


def _read_arrays(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays and the metadata of a safetensors file."""
    if not Path(path).is_file():
        raise MissingFileError(f"there is no file {path}.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            return {
                name: file.get_tensor(name) for name in names
            }, file.metadata() or {}
    except (safetensors.SafetensorError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no readable safetensors file: {error}") from error


def _flatten(variables) -> dict[str, Any]:
    return traverse_util.flatten_dict(dict(variables), sep="/")


# An audit loads many models of one network, and tracing one takes a while.
@functools.lru_cache(maxsize=8)
def _expected_arrays(model) -> dict[str, Any]:
    image = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
    return _flatten(jax.eval_shape(model.init, jax.random.key(0), image))


def _check_arrays(model, flat, where):
    expected = _expected_arrays(model)
    for problem, names in (
        ("lacks", sorted(expected.keys() - flat.keys())),
        ("holds unexpected", sorted(flat.keys() - expected.keys())),
    ):
        if names:
            raise InputError(
                f"{where} {problem} {names[0]} (and {len(names) - 1} more)."
            )
    for name, array in expected.items():
        seen, wanted = (f"{x.dtype}{list(x.shape)}" for x in (flat[name], array))
        if seen != wanted:
            raise InputError(
                f"{where} holds {name} as {seen}, but the model has {wanted}."
            )


def export_stablehlo(
    model: Any,
    variables: Any,
    path: str | os.PathLike,
    *,
    input_shape: tuple[int, int, int] | None = None,
) -> None:
    """Writes the evaluation of a model, weights inside, to one StableHLO file.

    The function takes float32 images [B, H, W, C], normalised, for any B, and returns
    float32 logits; it runs on CPU, CUDA, ROCm and TPU. Convolutions are XLA's own.
    `input_shape` is (H, W, C) of one image, for a network that does not say it.
    """
    variables, model = own_variables(model, variables), adapt(model)
    model = _on_xla(model)
    shape = input_shape or getattr(model, "input_shape", None)
    if shape is None:
        raise InputError(
            "the network does not say which images it takes; pass their shape: "
            "export_stablehlo(..., input_shape=(32, 32, 3))."
        )
    _require_flatbuffers()
    (batch,) = export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
    program = export.export(
        jax.jit(lambda images: model.apply(variables, images)), platforms=_PLATFORMS
    )(images)
    write_whole(path, bytes(program.serialize()))


def _on_xla(model: Any) -> Any:
    """The model without oneDNN's calls, which tie a file to machines that have it."""
    if isinstance(model, SlimNetwork):
        return model.clone(base=_on_xla(model.base))
    if isinstance(model, Ensemble):
        return dataclasses.replace(model, member=_on_xla(model.member))
    return model.clone(conv="xla") if hasattr(model, "conv") else model


def load_stablehlo(path: str | os.PathLike) -> Callable[[jax.Array], jax.Array]:
    """Reads what `export_stablehlo` wrote, as a function from images to logits.

    The file is a program, if one that can only compute: a call out of it, which would
    reach native code with arguments from the file, is refused.
    """
    if not Path(path).is_file():
        raise MissingFileError(f"there is no file {path}.")
    _require_flatbuffers()
    try:
        program = export.deserialize(bytearray(Path(path).read_bytes()))
        text = program.mlir_module()
    except Exception as error:  # The decoder promises no particular one.
        raise InputError(f"{path} is not a StableHLO export: {error!r:.80}.") from error
    for call in re.findall(r"custom_call\b[ \t]*(\S{0,80})", text):
        if not call.startswith(_KNOWN_CALLS):
            raise InputError(
                f"{path} calls out of itself, to {call!r}; write it with "
                "export_stablehlo."
            )
    return jax.jit(program.call)


def _require_flatbuffers() -> None:
    """Refuses to go on without what serialises programs."""
    if importlib.util.find_spec("flatbuffers") is None:
        raise MissingPackageError("flatbuffers", "export", "a StableHLO file")
