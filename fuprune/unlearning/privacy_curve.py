"""What privacy costs the method: the same cut from exact and from noised statistics.

One point of accuracy against epsilon. The same clients are captured in the same order,
their class statistics pass through clipping and the Gaussian noise of `privacy.py`, and
the channels then cut (Eqs. 6-9) are compared with those of the exact statistics.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.data.federated import FederatedDataset
from fuprune.federated.server import ServerState
from fuprune.federated.train import FitResult
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.privacy import describe_privacy, make_protect, noise_scales
from fuprune.unlearning.protocol import Variables


class PrivateCut(NamedTuple):
    """The model after a cut from noised statistics, not yet fine-tuned."""

    model: Any
    variables: Variables
    overlap: float  # share of the channels of the exact cut that this one cuts too
    statement: Mapping[str, Any]  # the accountant's, from `describe_privacy`


def private_cut(
    model,
    variables: Variables,
    data: FederatedDataset,
    classes: tuple[int, ...],
    *,
    key: jax.Array,
    epsilon: float,
    delta: float,
    clip: float,
    secure: bool = False,
    min_count: int = 0,
    recapture: bool = True,
    **pruning,
) -> PrivateCut:
    """Cut `classes` from (epsilon, delta)-DP statistics, and compare the cut.

    The budget is for all releases together; with `recapture` there is one for each
    class. `clip` is the L2 bound of one example's activations over all layers. The
    exact cut is not clipped, so clipping alone can keep the overlap below 1. `secure`
    sums the statistics under pairwise masks, and classes with fewer than `min_count`
    examples are suppressed. The key chooses the participants and draws the noise: with
    the same key another epsilon scales the same draw, so a curve over epsilon shows
    nothing else. Further options are those of `class_pruning`.
    """
    terms: dict[str, Any] = dict(clip=clip, releases=len(classes) if recapture else 1)
    scales = noise_scales(epsilon, delta, **terms)
    protect = make_protect(secure=secure, scales=scales, min_count=min_count)
    # The same key for both, so that participants and ties are the same.
    exact, noised = (
        METHODS["class_pruning"](
            model,
            variables,
            data,
            classes,
            key=key,
            fine_tune=_as_it_is,
            recapture=recapture,
            **pruning,
            **protection,
        )
        for protection in ({}, {"clip": clip, "protect": protect})
    )
    wanted = _cut_channels(exact.notes)
    kept = len(wanted & _cut_channels(noised.notes))
    return PrivateCut(
        noised.model,
        noised.variables,
        kept / len(wanted) if wanted else 1.0,
        describe_privacy(scales, delta, **terms),
    )


def _as_it_is(model, variables, data, key, objective=None) -> FitResult:
    """A fine-tune of no rounds."""
    del model, data, key, objective
    return FitResult(ServerState(variables, (), jnp.int32(0)), [], None)


def _cut_channels(notes: Mapping[str, Any]) -> set[tuple[str, int]]:
    return {
        (layer, channel)
        for cut in notes["cuts"]
        for layer, channels in cut["cut"].items()
        for channel in channels
    }
