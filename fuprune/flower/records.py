"""What travels: one JSON header and a tree of arrays, in Flower's records and back.

A tree is made of dictionaries, lists, tuples, None, arrays and typed keys; its form
goes into the header and its arrays into an `ArrayRecord`. All values of one dtype
travel as one long array: Flower sends every array by requests of its own, so that the
hundred small ones of a network take longer on their way than a client takes to train.
What comes in is read as data and checked: nothing in a message is ever executed or
unpickled.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fuprune.errors import InputError

PROTOCOL = 3  # of what headers hold; both sides must speak the same
MAX_DEPTH = 64
MAX_HEADER = 64 * 2**20  # characters


class MessageError(InputError):
    """A message that is not what this protocol sends."""


def pack(header: Mapping[str, Any], tree: Any = None) -> RecordDict:
    """A JSON-able header and a tree of arrays as the content of a message."""
    arrays: list[np.ndarray] = []
    form = _form(tree, arrays)
    kinds = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = json.dumps(
        {"header": dict(header), "form": form, "arrays": kinds}, allow_nan=False
    )
    joined = {
        dtype: Array.from_numpy_ndarray(
            np.concatenate([x.ravel() for x in arrays if x.dtype.str == dtype])
        )
        for dtype in sorted({x.dtype.str for x in arrays})
    }
    return RecordDict(
        {"json": ConfigRecord({"text": text}), "arrays": ArrayRecord(joined)}
    )


def unpack(content: RecordDict) -> tuple[dict[str, Any], Any]:
    """The header and the tree that `pack` was given; arrays are NumPy's.

    Raises:
      MessageError: the message is not of that form.
    """
    try:
        text = content.config_records["json"]["text"]
        if not isinstance(text, str) or len(text) > MAX_HEADER:
            raise MessageError("the message's header is no text, or too long.")
        plain = json.loads(text)
        record = content.array_records["arrays"]
        joined = {name: record[name].numpy() for name in record}
        arrays = _split(joined, plain["arrays"])
        header, form = plain["header"], plain["form"]
        if not isinstance(header, dict):
            raise MessageError("the message's header is no JSON object.")
        return header, _tree(form, arrays, 0)
    except MessageError:
        raise
    except Exception as error:  # no message may end the run, whatever NumPy says of it
        raise MessageError(
            f"the message cannot be read ({type(error).__name__}); it is of another "
            "program or version."
        ) from error


def _split(joined: Mapping[str, np.ndarray], kinds: Sequence[Any]) -> list[np.ndarray]:
    """The arrays that `pack` joined by dtype; `kinds` is dtype and shape of each."""
    for name, values in joined.items():
        # Numbers only, and under the type they have: arrays are looked up by it.
        if values.dtype.str != name or values.dtype.kind not in "biuf":
            raise MessageError(f"the message has {values.dtype} under {name!r:.40}.")
    taken = dict.fromkeys(joined, 0)
    arrays = []
    for dtype, shape in kinds:
        if not all(type(size) is int and size >= 0 for size in shape):
            raise MessageError(f"the message has an array of shape {shape!r:.80}.")
        start = taken[dtype]
        taken[dtype] = start + math.prod(shape)
        arrays.append(joined[dtype][start : taken[dtype]].reshape(shape))
    # Values that no array claims would escape every later check.
    if any(taken[name] != values.size for name, values in joined.items()):
        raise MessageError("the message holds other values than it says.")
    return arrays


def digest(tree: Any) -> str:
    """SHA-256 of a tree's form and values: which model a message is about."""
    arrays: list[np.ndarray] = []
    found = hashlib.sha256(json.dumps(_form(tree, arrays)).encode())
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def plain(tree: Any) -> Any:
    """The tree as `unpack` would give it: NamedTuples are tuples, maps are dicts."""
    if isinstance(tree, Mapping):
        return {str(name): plain(child) for name, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(plain(child) for child in tree)
    if isinstance(tree, list):
        return [plain(child) for child in tree]
    return tree


def _form(tree: Any, arrays: list[np.ndarray]) -> Any:
    """A tree's form in JSON; its arrays are appended to `arrays`."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        # Sorted as JAX flattens them, so that equal trees have equal digests.
        return {"map": {str(k): _form(tree[k], arrays) for k in sorted(tree)}}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_form(child, arrays) for child in tree]}
    if _is_key(tree):
        import jax

        arrays.append(np.asarray(jax.random.key_data(tree)))
        return {"key": len(arrays) - 1}
    array = np.asarray(tree)
    if array.dtype.kind not in "biuf":
        raise MessageError(f"an array of {array.dtype} cannot travel; use numbers.")
    arrays.append(array)
    return {"array": len(arrays) - 1}


def _is_key(value: Any) -> bool:
    """Whether it is a typed key of JAX, which is not imported to find out."""
    return str(getattr(value, "dtype", "")).startswith("key<")


def _tree(form: Any, arrays: list[np.ndarray], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise MessageError(f"the message's tree is deeper than {MAX_DEPTH} levels.")
    if form is None:
        return None
    ((kind, value),) = form.items()
    if kind == "map":
        return {str(k): _tree(v, arrays, depth + 1) for k, v in value.items()}
    if kind in ("list", "tuple"):
        made = [_tree(child, arrays, depth + 1) for child in value]
        return made if kind == "list" else tuple(made)
    if not isinstance(value, int) or value < 0:
        raise MessageError("the message names an array that it does not hold.")
    if kind == "key":
        import jax

        data = jax.numpy.asarray(arrays[value], jax.numpy.uint32)
        return jax.random.wrap_key_data(data)
    if kind == "array":
        return arrays[value]
    raise MessageError(f"the message's tree has a {kind!r:.40} in it.")
