"""What rebuilds a model, as plain data: of the zoo, brought by a user, or cut.

A spec is one of

    {"name": "resnet20", "num_classes": ..., "channels": {...}, ...}     of the zoo
    {"factory": "package.module:factory", "num_classes": ..., "input_shape": ...}
    {"base": <spec>, "input_shape": ..., "channels": {...}}              channels gone
    {"base": <spec>, "input_shape": ..., "filled": {...}}                channels zeroed
    {"member": <spec>, "size": ..., "vote": ...}                         an ensemble

where channels map layers to the ids that are kept. It is data and never code: a factory
that it names is used only if the caller gives it.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fuprune.errors import InputError
from fuprune.models import zoo
from fuprune.models.brought import BroughtNetwork, Factory, bring
from fuprune.models.ensemble import Ensemble
from fuprune.models.layers import ConvolutionalNetwork
from fuprune.surgery.cutting import cut_to
from fuprune.surgery.slim import SlimNetwork

MAX_DEPTH = 8  # of specs inside each other
MAX_MEMBERS = 1000  # of an ensemble


def spec(model: Any) -> dict[str, Any]:
    """Returns what rebuilds a model with `from_spec`, fit for JSON.

    Raises:
      InputError: nothing does, because nobody said what makes the network.
    """
    if isinstance(model, ConvolutionalNetwork):
        return {**zoo.spec(model), "channels": {}}
    if isinstance(model, BroughtNetwork):
        return {
            "factory": model.factory,
            "num_classes": model.num_classes,
            "input_shape": list(model.input_shape),
        }
    if isinstance(model, Ensemble):
        member = spec(model.member)
        return {"member": member, "size": model.size, "vote": model.vote}
    if isinstance(model, SlimNetwork):
        base = spec(model.base)
        channels = {layer: list(ids) for layer, ids in model.channels}
        if isinstance(model.base, ConvolutionalNetwork) and not model.filled:
            return {**base, "channels": channels}
        kind = "filled" if model.filled else "channels"
        return {"base": base, "input_shape": list(model.input_shape), kind: channels}
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
    if "channels" not in keys:
        return zoo.from_spec(spec, conv=conv, dtype=dtype)
    whole = {key: value for key, value in spec.items() if key != "channels"}
    model: Any = zoo.from_spec(whole, conv=conv, dtype=dtype)
    channels = _channels(spec["channels"])
    return cut_to(model, channels, model.input_shape) if channels else model


def _check_keys(spec: dict, *keys: str) -> None:
    if sorted(spec) != sorted(keys):
        raise InputError(
            f"model spec has {sorted(spec)}, but must have {', '.join(keys[:-1])} and "
            f"{keys[-1]}."
        )


def _cut(spec, inner: Callable) -> SlimNetwork:
    kind = "filled" if "filled" in spec else "channels"
    _check_keys(spec, "base", "input_shape", kind)
    shape = zoo.integers(spec["input_shape"], "input_shape")
    return cut_to(
        inner(spec["base"]), _channels(spec[kind]), shape, filled=kind == "filled"
    )


def _channels(found) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if not isinstance(found, dict):
        raise InputError(
            f"model spec has channels {found!r:.80}, but must map layers to ids."
        )
    return tuple((layer, zoo.integers(ids, layer)) for layer, ids in found.items())


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
