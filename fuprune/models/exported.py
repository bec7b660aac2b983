"""Networks as programs: the file format for those whose code is not ours.

A network that a user brought is rebuilt by its factory. One that has none is written as
the StableHLO of its own evaluation and training (`jax.export`), for any batch size. The
programs take the variables as arguments and can be differentiated once, so what comes
back is evaluated, trained and averaged like any network. It cannot be cut again: its
layers are inside the program.
"""

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import export

from fuprune.errors import InputError
from fuprune.models.adapt import Network, Variables

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# The check that a batch has the shape it should: the only call in our own exports.
_KNOWN_CALLS = ("@shape_assertion(",)


@dataclasses.dataclass(frozen=True)
class ExportedNetwork(Network):
    """A network read from a file of programs, in the form `models.adapt` describes.

    It is compared and hashed by its programs, of which Python keeps the hashes.
    """

    evaluation: bytes  # serialised (variables, images) -> logits
    training: bytes | None  # (variables, images, key data) -> logits, new statistics

    @functools.cached_property
    def _evaluate(self):
        return read_program(self.evaluation, "the program of its evaluation")

    @functools.cached_property
    def _train(self):
        if self.training is None:
            raise InputError(
                "this network was saved for evaluation only, because its training "
                "could not be exported; train it where its code is."
            )
        return read_program(self.training, "the program of its training")

    def check(self, where: str) -> None:
        """Reads both programs; `where` names the file in errors.

        Raises:
          InputError: one is no program, calls out of itself, or is not of the form
            that `export_network` gives it.
        """
        try:
            if len(self.input_shape) != 3 or self.num_classes < 1:
                raise ValueError("evaluation")
            variables = [x.shape for x in jax.tree.leaves(self.shapes())]
            if self.training is not None:
                given, _ = jax.tree.unflatten(self._train.in_tree, self._train.in_avals)
                same = [x.shape for x in jax.tree.leaves(given[0])] == variables
                if not same or len(given) != 3 or not self._train.has_vjp():
                    raise ValueError("training")
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        except Exception as error:  # Whatever a crafted program lacks.
            raise InputError(
                f"{where} holds programs of another form than fuprune's; write it with "
                "save_safetensors."
            ) from error

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(H, W, C) of one image."""
        return tuple(int(size) for size in self._arguments()[1].shape[1:])

    @property
    def num_classes(self) -> int:
        """Columns of the logits."""
        return int(self._evaluate.out_avals[0].shape[-1])

    def shapes(self) -> Variables:
        """Shapes of the variables that the programs take."""
        return _shapes(self._arguments()[0])

    def _arguments(self):
        found = self._evaluate
        (variables, images), _ = jax.tree.unflatten(found.in_tree, found.in_avals)
        return variables, images

    def init(self, key, images, train: bool = False):
        """Not possible: a program has no initialisation."""
        raise InputError(
            "this network is a program from a file, which cannot be initialised "
            "afresh; take the variables that were saved with it."
        )

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and {"batch_stats": ...} if `mutable`; takes no mask."""
        del mask
        variables = _plain(variables)
        if train:
            key = jax.random.key(0) if rngs is None else rngs["dropout"]
            logits, new = self._train.call(variables, images, jax.random.key_data(key))
        else:
            logits, new = self._evaluate.call(variables, images), {}
        return logits if mutable is False else (logits, new)


def export_network(
    model: Any, variables: Variables, input_shape: tuple[int, ...]
) -> ExportedNetwork:
    """Returns an adapted network as programs; of its variables only shapes matter."""
    images, shapes = any_images(input_shape), _shapes(_plain(variables))

    def evaluate(variables, images):
        return model.apply(variables, images, train=False)

    def train(variables, images, key):
        # A file's arguments are plain numbers, so the key travels as its data.
        rngs = {"dropout": jax.random.wrap_key_data(key)}
        logits, new = model.apply(
            variables, images, train=True, mutable=["batch_stats"], rngs=rngs
        )
        return logits, _plain(new)

    evaluation = write_program(evaluate, shapes, images)
    key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    try:
        # With its first derivative, which is all that training takes.
        training = write_program(train, shapes, images, key, vjp_order=1)
    except Exception:  # Whatever a network does that cannot be exported for any batch.
        training = None
    return ExportedNetwork(evaluation, training)


def any_images(input_shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """A batch of images of such a shape, of any size."""
    (batch,) = export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, *input_shape), jnp.float32)


def write_program(function: Callable, *shapes: Any, vjp_order: int = 0) -> bytes:
    """A function of such arguments as a StableHLO program that runs on any platform."""
    _require_flatbuffers()
    exported = export.export(jax.jit(function), platforms=_PLATFORMS)(*shapes)
    return bytes(exported.serialize(vjp_order=vjp_order))


def read_program(data: bytes, where: str) -> export.Exported:
    """Reads a program, and refuses one that would do more than compute.

    A call out of the program would reach native code with arguments from the file.
    """
    _require_flatbuffers()
    try:
        exported = export.deserialize(bytearray(data))
        # The gradient is a program of its own in the file, and is searched as well.
        programs = [exported.mlir_module()]
        if exported.has_vjp():
            programs.append(exported.vjp().mlir_module())
    except Exception as error:  # The decoder promises no particular one.
        raise InputError(
            f"{where} is not a StableHLO export: {type(error).__name__}."
        ) from error
    for program in programs:
        for call in re.findall(r"custom_call\b[ \t]*(\S{0,80})", program):
            if not call.startswith(_KNOWN_CALLS):
                raise InputError(
                    f"{where} calls out of itself, to {call!r}; write it with "
                    "fuprune.export."
                )
    return exported


def _require_flatbuffers() -> None:
    """Refuses to go on without what serialises programs."""
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError(
            "StableHLO files need the package flatbuffers; install fuprune[export]."
        )


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _plain(variables: Any) -> Any:
    """Variables as dictionaries, whatever mappings they were."""
    flat = traverse_util.flatten_dict(dict(variables))
    return traverse_util.unflatten_dict(flat)
