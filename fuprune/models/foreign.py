"""Networks of other libraries in the form of `models.adapt`: Equinox, haiku, Keras.

No library is imported here unless the network comes from it. What holds its own arrays,
as Equinox's modules and Keras's models do, is drawn anew by `init` (`drawn_like`), and
`adapt.variables_of` reads what it holds. Layers are named by the paths of their arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from fuprune.models.adapt import (
    Network,
    Variables,
    drawn_like,
    first_result,
    parameters,
    read_convention,
)


def library_of(model: Any) -> str | None:
    """Which of these libraries a network comes from, if from any."""
    homes = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    return next((name for name in NETWORKS if name in homes), None)


def adapt_foreign(model: Any) -> Network:
    """A network of one of these libraries."""
    return NETWORKS[library_of(model) or ""](model)


class HaikuNetwork(Network):
    """What `hk.transform` gives, with or without state, which is "batch_stats"."""

    def __init__(self, transformed: Any):
        """Reads how the transformed function is called."""
        self.transformed = transformed
        names = parameters(transformed.apply)
        self.takes = {name for name in ("state", "rng") if name in names}
        function = getattr(transformed.init, "_original_fn", None)
        self.convention = read_convention(parameters(function), None)

    def __eq__(self, other):
        """By the functions."""
        return isinstance(other, HaikuNetwork) and self.transformed == other.transformed

    def __hash__(self):
        """By the functions."""
        return hash(self.transformed)

    def init(self, key, images, train: bool = False) -> dict[str, Any]:
        """Fresh variables."""
        del train  # in training: haiku's norms make their statistics there alone
        chosen = self.convention.arguments(True)
        made = self.transformed.init(key, images, **chosen)
        if "state" in self.takes:
            return {"params": made[0], "batch_stats": made[1]}
        return {"params": made}

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and its state or {} unless `mutable` is False."""
        given = [variables["params"]]
        if "state" in self.takes:
            given.append(variables.get("batch_stats", {}))
        if "rng" in self.takes:
            given.append(rngs["dropout"] if rngs else jax.random.key(0))
        result = self.transformed.apply(
            *given, images, **self.convention.arguments(train, mask)
        )
        new = {}
        if "state" in self.takes:
            result, state = result
            new = {"batch_stats": state}
        logits = first_result(result)
        return logits if mutable is False else (logits, new)


class HoldingNetwork(Network):
    """A network that holds its arrays; equal to itself alone."""

    def __init__(self, model: Any):
        """Reads the arrays."""
        self.model = model
        self.convention = read_convention(parameters(type(model).__call__), None)
        self.given = self.read()

    def read(self) -> dict[str, Any]:
        """The arrays that the network holds."""
        raise NotImplementedError

    def init(self, key, images, train: bool = False) -> Variables:
        """Variables drawn in place of those it holds."""
        del images, train
        return drawn_like(self.given, key)


class EquinoxNetwork(HoldingNetwork):
    """An Equinox module of one image, channels first, and perhaps of a `key`."""

    def read(self) -> dict[str, Any]:
        """Its arrays by their paths."""
        import equinox  # pyright: ignore[reportMissingImports]

        arrays, self.static = equinox.partition(self.model, equinox.is_array)
        pairs, self.tree = jax.tree_util.tree_flatten_with_path(arrays)
        self.paths = [
            tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
            for path, _ in pairs
        ]
        values = {path: x for path, (_, x) in zip(self.paths, pairs, strict=True)}
        return {"params": traverse_util.unflatten_dict(values)}

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and {} unless `mutable` is False."""
        import equinox  # pyright: ignore[reportMissingImports]

        flat = traverse_util.flatten_dict(variables["params"])
        arrays = jax.tree.unflatten(self.tree, [flat[path] for path in self.paths])
        module = equinox.combine(arrays, self.static)
        module = equinox.nn.inference_mode(module, value=not train)
        key = rngs["dropout"] if rngs else jax.random.key(0)
        takes_key = "key" in parameters(type(self.model).__call__)
        chosen = self.convention.arguments(train, mask)

        def one(image, key):
            return module(image, **chosen, **({"key": key} if takes_key else {}))

        keys = jax.random.split(key, len(images))
        logits = first_result(jax.vmap(one)(jnp.moveaxis(images, -1, 1), keys))
        return logits if mutable is False else (logits, {})


class KerasNetwork(HoldingNetwork):
    """A Keras model on the JAX backend; what it does not train is "batch_stats"."""

    def read(self) -> dict[str, Any]:
        """Its variables by their paths."""
        return {
            name: traverse_util.unflatten_dict(
                {tuple(v.path.split("/")): jnp.asarray(v.value) for v in variables}
            )
            for name, variables in self.kinds().items()
        }

    def kinds(self) -> dict[str, list]:
        """Its variables by collection."""
        return {
            "params": self.model.trainable_variables,
            "batch_stats": self.model.non_trainable_variables,
        }

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and its new statistics unless `mutable` is False."""
        del mask, rngs
        held = [
            [flat[tuple(v.path.split("/"))] for v in kind]
            for name, kind in self.kinds().items()
            for flat in [traverse_util.flatten_dict(variables.get(name, {}))]
        ]
        result, new = self.model.stateless_call(*held, images, training=train)
        logits = first_result(result)
        if mutable is False:
            return logits
        paths = [tuple(v.path.split("/")) for v in self.kinds()["batch_stats"]]
        found = traverse_util.unflatten_dict(dict(zip(paths, new, strict=True)))
        return logits, {"batch_stats": found}


NETWORKS: dict[str, Any] = {
    "haiku": HaikuNetwork,
    "equinox": EquinoxNetwork,
    "keras": KerasNetwork,
}
