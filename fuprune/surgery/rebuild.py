"""What rebuilds a model, as plain data: of the zoo, brought by a user, or cut.

A spec is one of

    {"name": "resnet20", "num_classes": ..., "channels": ..., ...}       of the zoo
    {"factory": "package.module:factory", "num_classes": ..., "input_shape": ...}
    {"base": <spec>, "input_shape": ..., "cuts": [...]}                  channels gone
    {"base": <spec>, "input_shape": ..., "pinned": [...]}                channels zeroed
    {"member": <spec>, "size": ..., "vote": ...}                         an ensemble

It is data and never code: a factory that it names is used only if the caller gives it.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fuprune.errors import InputError
from fuprune.models import zoo
from fuprune.models.brought import BroughtNetwork, Factory, bring
from fuprune.models.ensemble import Ensemble
from fuprune.surgery.arrays import names
from fuprune.surgery.slim import CutNetwork, PinnedNetwork, SlimNetwork

MAX_DEPTH = 8  # of specs inside each other
MAX_MEMBERS = 1000  # of an ensemble


def spec(model: Any) -> dict[str, Any]:
    """Returns what rebuilds a model with `from_spec`, fit for JSON.

    Raises:
      InputError: nothing does, because nobody said what makes the network.
    """
    if hasattr(model, "wiring"):
        return zoo.spec(model)
    if isinstance(model, BroughtNetwork):
        return {
            "factory": model.factory,
            "num_classes": model.num_classes,
            "input_shape": list(model.input_shape),
        }
    if isinstance(model, Ensemble):
        member = spec(model.member)
        return {"member": member, "size": model.size, "vote": model.vote}
    if isinstance(model, CutNetwork):
        cuts = [
            {
                "path": list(path),
                "shape": list(shape),
                "axes": {str(axis): list(ids) for axis, ids in axes},
            }
            for path, shape, axes in model.cuts
        ]
        kind = "pinned" if isinstance(model, PinnedNetwork) else "cuts"
        shape = list(model.input_shape)
        return {"base": spec(model.base), "input_shape": shape, kind: cuts}
    raise InputError(
        f"model is a {type(getattr(model, 'module', model)).__name__}, and nothing "
        "says how to make it again; write a function of num_classes and input_shape "
        "that returns it, and give fuprune.bring(that function, num_classes=..., "
        "input_shape=...)."
    )


def from_spec(
    spec: Any,
    *,
    factory: Factory | None = None,
    conv: str = "xla",
    dtype: Any = jnp.float32,
) -> Any:
    """Returns the model that a spec describes, checking every value in it.

    Args:
      spec: what `spec` returned, perhaps read from a file.
      factory: that of a network which a user brought: the function, or its name if the
        module may be imported. Without it no module is imported, whatever the spec
        says.
      conv: implementation of the convolution, for a model of the zoo.
      dtype: type the convolutions compute in, for a model of the zoo.
    """
    return _from_spec(spec, factory, conv, dtype, 0)


def _from_spec(spec, factory, conv, dtype, depth):
    if depth > MAX_DEPTH:
        raise InputError(f"model spec is nested deeper than {MAX_DEPTH} levels.")

    def inner(spec):
        return _from_spec(spec, factory, conv, dtype, depth + 1)

    keys = spec if isinstance(spec, dict) else ()
    if "factory" in keys:
        return _brought(spec, factory)
    if "member" in keys:
        return _ensemble(spec, inner)
    if "base" in keys:
        return _cut(spec, inner)
    return zoo.from_spec(spec, conv=conv, dtype=dtype)


def _check_keys(spec: dict, *keys: str) -> None:
    if sorted(spec) != sorted(keys):
        raise InputError(
            f"model spec has {sorted(spec)}, but must have {', '.join(keys[:-1])} and "
            f"{keys[-1]}."
        )


def _cut(spec, inner: Callable) -> CutNetwork:
    kind = "pinned" if "pinned" in spec else "cuts"
    _check_keys(spec, "base", "input_shape", kind)
    base = inner(spec["base"])
    try:
        cuts = tuple(_cuts_of_variable(entry) for entry in spec[kind])
        input_shape = tuple(int(n) for n in spec["input_shape"])
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(
            f"model spec has {kind} that cannot be read: {type(error).__name__}."
        ) from error
    network = PinnedNetwork if kind == "pinned" else SlimNetwork
    cut = network(base, cuts, input_shape)
    _check_places(cut)
    return cut


def _cuts_of_variable(entry):
    """An entry of `PathCuts` from its form in JSON."""
    shape, axes = tuple(int(n) for n in entry["shape"]), []
    for name, ids in entry["axes"].items():
        axis, ids = int(name), tuple(int(i) for i in ids)
        # Everything here takes kept indices to increase; disorder would give wrong
        # numbers rather than an error.
        increasing = all(a < b for a, b in itertools.pairwise(ids))
        inside = 0 <= axis < len(shape) and ids and ids[0] >= 0
        if not (inside and increasing and ids[-1] < shape[axis]):
            raise InputError(
                f"model spec keeps {list(ids)} along axis {axis} of"
                f" {'/'.join(map(str, entry['path']))}, which has shape"
                f" {list(shape)}; allowed: increasing indices inside it."
            )
        axes.append((axis, ids))
    return tuple(map(str, entry["path"])), shape, tuple(axes)


def _ensemble(spec, inner: Callable) -> Ensemble:
    _check_keys(spec, "member", "size", "vote")
    size = zoo.integer(spec["size"], "size")
    if not 1 <= size <= MAX_MEMBERS or not isinstance(spec["vote"], str):
        raise InputError(
            f"model spec has size {size} and vote {spec['vote']!r:.80}, but must have "
            f"1 to {MAX_MEMBERS} members and a word."
        )
    return Ensemble(inner(spec["member"]), size, spec["vote"])


def _brought(spec, factory) -> BroughtNetwork:
    _check_keys(spec, "factory", "num_classes", "input_shape")
    named = spec["factory"]
    if not isinstance(named, str):
        raise InputError(f"model spec has factory {named!r:.80}, but must name one.")
    # A file's word is not enough to import code: the caller has to name it, too.
    if factory is None or isinstance(factory, str) and factory != named:
        given = "none was given" if factory is None else f"{factory!r} was given"
        raise InputError(
            f"the model is made by the factory {named[:200]!r}, which a file may not "
            f"have imported, and {given}; if you trust that code, pass "
            "factory= its name, or set model.name to it in a run."
        )
    return bring(
        factory,
        num_classes=zoo.integer(spec["num_classes"], "num_classes"),
        input_shape=zoo.integers(spec["input_shape"], "input_shape"),  # type: ignore
    )


def _check_places(cut: CutNetwork) -> None:
    """Refuses cuts of variables that the uncut network does not have."""
    said = getattr(cut.base, "input_shape", cut.input_shape)
    if tuple(said) != cut.input_shape:
        raise InputError(
            f"model spec cuts a network for {cut.input_shape} images, but its base is "
            f"for {tuple(said)}."
        )
    # By shapes alone, so that a crafted spec cannot ask for a huge array; two images,
    # because networks may squeeze a batch of one.
    images = jax.ShapeDtypeStruct((2, *cut.input_shape), jnp.float32)
    variables = jax.eval_shape(cut.base.init, jax.random.key(0), images)
    pairs, _ = jax.tree_util.tree_flatten_with_path(variables)
    shapes = {names(path): tuple(leaf.shape) for path, leaf in pairs}
    for path, shape, _ in cut.cuts:
        if shapes.get(path) != shape and not isinstance(cut.base, SlimNetwork):
            raise InputError(
                f"model spec cuts {'/'.join(path)[:200]} of shape {list(shape)}, but "
                f"the network has {list(shapes.get(path, ())) or 'none'} there."
            )
