"""What travels: a JSON header, and a tree of arrays as one safetensors file.

A tree is made of dictionaries, lists, tuples, None, arrays and typed keys; its form is
JSON in the file's metadata. Flower sends every array by requests of its own, so that
the hundred small ones of a network would take longer on their way than a client takes
to train. Nothing in a message is ever executed or unpickled.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from flwr.app import Array, ArrayRecord, RecordDict
from safetensors import SafetensorError

from fuprune.errors import InputError

PROTOCOL = 5  # of what headers hold; both sides must speak the same
_UNREADABLE = (AttributeError, LookupError, MemoryError, OverflowError)
_UNREADABLE += (RecursionError, SafetensorError, TypeError, ValueError)


class MessageError(InputError):
    """A message that is not what this protocol sends."""


class Blob:
    """A tree as the bytes that travel, made once for all who get it."""

    def __init__(self, tree: Any):
        arrays: list[np.ndarray] = []
        form = json.dumps(_form(tree, arrays))
        named = {str(i): np.asarray(x, order="C") for i, x in enumerate(arrays)}
        self.data = safetensors.numpy.save(named, {"form": form})
        self.digest = hashlib.sha256(self.data).hexdigest()  # which model it is


def digest(tree: Any) -> str:
    """SHA-256 of a tree's form and values: which model a message is about."""
    return Blob(tree).digest


def pack(header: Mapping[str, Any], tree: Any = None) -> RecordDict:
    """A JSON-able header and a tree of arrays as the content of a message."""
    blob = tree if isinstance(tree, Blob) else Blob(tree)
    text = json.dumps(dict(header), allow_nan=False).encode()
    parts = {"header": text, "tree": blob.data}
    arrays = {n: Array("uint8", (len(x),), "bytes", x) for n, x in parts.items()}
    return RecordDict({"message": ArrayRecord(arrays)})


def unpack(content: RecordDict, *, limit: float = np.inf) -> tuple[dict[str, Any], Any]:
    """The header and the tree that `pack` was given; arrays are NumPy's.

    A message of another form, or of more bytes than `limit`, is a MessageError.
    """
    try:
        parts = content.array_records["message"]
        text, blob = parts["header"].data, parts["tree"].data
        if (size := len(text) + len(blob)) > limit:
            raise MessageError(f"the message has {size} bytes, {limit} at most.")
        header = {**json.loads(text)}
        # The file begins with the length of its own header.
        described = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        arrays = safetensors.numpy.load(blob)
        tree = _tree(json.loads(described["__metadata__"]["form"]), arrays)
    except MessageError:
        raise
    except _UNREADABLE as error:
        kind = type(error).__name__
        raise MessageError(f"the message cannot be read ({kind}).") from error
    # Values that no form claims would escape every later check.
    if arrays:
        raise MessageError("the message holds other values than it says.")
    return header, tree


def plain(tree: Any) -> Any:
    """The tree as `unpack` would give it: NamedTuples are tuples, maps are dicts."""
    if isinstance(tree, Mapping):
        return {str(name): plain(child) for name, child in tree.items()}
    if isinstance(tree, list | tuple):
        return (list if isinstance(tree, list) else tuple)(map(plain, tree))
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
    kind = "array"
    # A typed key of JAX, which is not imported to find out.
    if str(getattr(tree, "dtype", "")).startswith("key<"):
        import jax

        kind, tree = "key", jax.random.key_data(tree)
    array = np.asarray(tree)
    if array.dtype.kind not in "biuf":
        raise MessageError(f"an array of {array.dtype} cannot travel; use numbers.")
    arrays.append(array)
    return {kind: len(arrays) - 1}


def _tree(form: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The tree of a form; takes its arrays out of `arrays`."""
    if form is None:
        return None
    ((kind, value),) = form.items()
    if kind == "map":
        return {str(name): _tree(child, arrays) for name, child in value.items()}
    if kind in ("list", "tuple"):
        made = [_tree(child, arrays) for child in value]
        return made if kind == "list" else tuple(made)
    array = arrays.pop(str(value))
    if kind == "array" and array.dtype.kind in "biuf":
        return array
    if kind == "key":
        import jax

        return jax.random.wrap_key_data(jax.numpy.asarray(array, jax.numpy.uint32))
    raise MessageError(f"the message's tree has a {kind!r:.40} in it.")
