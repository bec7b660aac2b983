"""The run's own methods, as the audit turns them on its shadow models.

Shadow models are small stand-ins for the raw model, and each is unlearned once for each
method; so a method is called as in the run, with the run's options, except for what
would cost as much as the run: one client holds all images, fine-tuning is the audit's
few steps, and channels are masked where the run may cut them, so that all shadow models
run the programs that are compiled already.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit import AuditOptions
from fuprune.audit.options import UnlearnShadow
from fuprune.audit.unlearned_shadow import fine_tune
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset, federate
from fuprune.federated.server import ServerState
from fuprune.federated.train import FitResult
from fuprune.run import build
from fuprune.run.loop import Experiment
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.protocol import UnlearnError


def shadow_methods(
    this: Experiment,
    model: Any,
    methods: Mapping[str, str],
    head: Mapping[str, str],
    options: AuditOptions,
) -> dict[str, UnlearnShadow]:
    """A function per candidate that unlearns a shadow model as the raw one was.

    Args:
      this: the run.
      model: the network of the raw model, which shadow models share.
      methods: candidate -> the name of its method.
      head: the option that names the last layer, if the network has one.
      options: of the audit.

    Returns:
      The functions, for candidates whose method needs no record of a training: shadow
      models have none.
    """
    # One function for all seeds of a method: they then share one attack.
    made = {
        method: _make(this, model, method, head, options)
        for method in set(methods.values())
        if not METHODS[method].needs
    }
    return {name: made[method] for name, method in methods.items() if method in made}


def _make(
    this: Experiment,
    model: Any,
    method: str,
    head: Mapping[str, str],
    options: AuditOptions,
) -> UnlearnShadow:
    settings = build.method_options(this.setup, method)
    # A federation of one client has no others to draw from or to spread.
    settings |= {"participants": None, "backend": "loop", "mesh": None, **head}
    # The short steps that follow are no training of a model of its own.
    settings["train"] = None
    # All shadow models keep one shape, and so share one program.
    if "surgery" in settings:
        settings["surgery"] = "mask"
    settings = {n: x for n, x in settings.items() if n in METHODS[method].options}

    def prepare(images):
        return this.federation.prepare(None, images)

    def unlearn(module, variables, key: jax.Array, data: Dataset):
        def tune(network, start, left: FederatedDataset, key, objective=None):
            # A masked network is the same network with parameters held at zero.
            del network
            if objective is not None:
                raise UnlearnError(
                    f"{method} trains with an objective of its own, which the short "
                    "fine-tuning of shadow models does not know"
                )
            kept = jax.tree.map(_not_masked, variables["params"], start["params"])
            tuned = fine_tune(
                module, start, key, _images_of(left), prepare, options, kept=kept
            )
            return FitResult(ServerState(tuned, None, jnp.int32(1)), [], None)

        found = METHODS[method](
            model,
            variables,
            _one_client(data),
            this.classes,
            key=key,
            fine_tune=tune,
            **settings,
        )
        return module, found.variables

    return unlearn


def _one_client(data: Dataset) -> FederatedDataset:
    """A federation of one client, padded to a power of two.

    Shadow models differ by a few images; of one size they share compiled programs.
    """
    size = len(data.labels)
    # Padding lies behind `length`, so no program reads it.
    padding = 2 ** (size - 1).bit_length() - size
    images, labels = (
        np.pad(part, [(0, padding)] + [(0, 0)] * (part.ndim - 1))
        for part in map(np.asarray, data)
    )
    whole = federate(Dataset(images, labels), [np.arange(size + padding)])
    return whole._replace(lengths=jnp.asarray([size], whole.lengths.dtype))


def _images_of(data: FederatedDataset) -> Dataset:
    """All clients' images, one after the other."""
    pairs = zip(np.asarray(data.rows), np.asarray(data.lengths), strict=True)
    rows = np.concatenate([row[:length] for row, length in pairs])
    return Dataset(np.asarray(data.images)[rows], np.asarray(data.labels)[rows])


def _not_masked(before: Any, after: Any) -> np.ndarray:
    """1 where a parameter is not zero, or was zero before as well."""
    kept = (np.asarray(after) != 0) | (np.asarray(before) == 0)
    return kept.astype(np.float32)
