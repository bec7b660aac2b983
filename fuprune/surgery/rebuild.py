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

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pydantic

from fuprune.errors import InputError
from fuprune.models import zoo
from fuprune.models.brought import BroughtNetwork, Factory, bring
from fuprune.models.ensemble import Ensemble
from fuprune.models.layers import ConvolutionalNetwork
from fuprune.surgery.cutting import pin, plan_cuts
from fuprune.surgery.plan import PrunePlan
from fuprune.surgery.slim import SlimNetwork

MAX_DEPTH = 8  # of specs inside each other


class _Spec(pydantic.BaseModel):
    """The types in a spec of any kind; what is built of them checks the values."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    name: str = ""
    factory: str = ""
    num_classes: int = 0
    input_shape: list[int] = []
    norm: str = "batch"
    base: dict | None = None
    channels: dict[str, list[int]] = {}
    filled: dict[str, list[int]] | None = None
    member: dict | None = None
    size: int = pydantic.Field(1, ge=1, le=1000)
    vote: str = "softmax"


def spec(model: Any) -> dict[str, Any]:
    """Returns what rebuilds a model with `from_spec`, fit for JSON.

    How a model of the zoo computes (`conv`, `dtype`) is each run's own choice.
    """
    if isinstance(model, ConvolutionalNetwork | BroughtNetwork):
        shape = list(model.input_shape)
        sizes = {"num_classes": model.num_classes, "input_shape": shape}
        if isinstance(model, BroughtNetwork):
            return {"factory": model.factory, **sizes}
        name = f"{type(model).__name__.lower()}{model.depth}"
        return {"name": name, **sizes, "norm": model.norm, "channels": {}}
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
        module may be imported, which nothing else allows.
      conv: as in `zoo.create`.
      dtype: as in `zoo.create`.
    """
    return _build(spec, factory, {"conv": conv, "dtype": dtype})


def _build(spec, factory, options, depth=0, inside=False):
    if depth > MAX_DEPTH:
        raise InputError(f"model spec is nested deeper than {MAX_DEPTH} levels.")
    try:
        found = _Spec.model_validate(spec)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"model spec has {first['input']!r:.80} at"
            f" {'.'.join(map(str, first['loc'])) or 'its top'}: {first['msg']}."
        ) from error
    sizes: Any = dict(num_classes=found.num_classes, input_shape=found.input_shape)
    if found.factory:
        return _brought(found.factory, factory, sizes)
    if found.member is not None:
        if inside:  # a thousand networks of a thousand each would never end loading
            raise InputError("model spec has an ensemble whose members are ensembles.")
        member = _build(found.member, factory, options, depth + 1, True)
        return Ensemble(member, found.size, found.vote)
    if found.base is not None:
        model = _build(found.base, factory, options, depth + 1, inside)
        shape = tuple(found.input_shape)
    else:
        model = zoo.create(found.name, norm=found.norm, **sizes, **options)
        shape = model.input_shape
    is_filled = found.filled is not None
    kept = (found.filled if is_filled else found.channels) or {}
    if found.base is None and not kept:
        return model
    channels = tuple((layer, tuple(ids)) for layer, ids in kept.items())
    return _cut_to(model, channels, shape, is_filled)


# An audit loads many models with the same cuts, and tracing one takes a second.
@functools.lru_cache(maxsize=16)
def _cut_to(base, channels, input_shape, filled) -> SlimNetwork:
    said = tuple(getattr(base, "input_shape", input_shape))
    if said != input_shape:
        raise InputError(
            f"model spec cuts a network for {input_shape} images, but its base is for"
            f" {said}."
        )
    images = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    shapes = jax.eval_shape(base.init, jax.random.key(0), images)
    plan = PrunePlan({layer: np.asarray(ids) for layer, ids in channels})
    if filled:
        return pin(base, shapes, plan, example=images)
    return plan_cuts(base, shapes, plan, images).network


def _brought(named: str, factory, sizes) -> BroughtNetwork:
    # A file's word is not enough to import code: the caller has to name it, too.
    if factory is None or isinstance(factory, str) and factory != named:
        given = "none was given" if factory is None else f"{factory!r} was given"
        raise InputError(
            f"the model is made by the factory {named[:200]!r}, which a file may not "
            f"have imported, and {given}; if you trust that code, pass "
            "factory= its name, or set model.name to it in a run."
        )
    return bring(factory, **sizes)
