"""From channel scores to a plan: which output channels each layer keeps (Eq. 9).

A plan is static data on the host. It knows no architecture: layers are names, channels
are positions.
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fuprune.errors import InputError, check_choice
from fuprune.files import write_whole

SCOPES = ("global", "layer", "balanced")
ORDERS = ("highest", "lowest", "random")


class PrunePlan(NamedTuple):
    """Which channels each layer keeps. Static data on the host.

    Channels are positions in the layer as it is, which for an already compacted layer
    are not the ids of the uncut network. A layer that is absent is kept whole.
    """

    keep: dict[str, np.ndarray]  # layer -> increasing positions, [kept] int
    spared: dict[str, int] = {}  # layer -> cuts not made for min_channels or round_to

    def save(self, path: str | os.PathLike) -> None:
        """Writes the kept channels as JSON, to be edited and read by `load_plan`."""
        keep = {layer: np.asarray(ids).tolist() for layer, ids in self.keep.items()}
        write_whole(path, json.dumps(keep, indent=1).encode())


def load_plan(path: str | os.PathLike) -> PrunePlan:
    """Reads a plan that `PrunePlan.save` wrote, or one that was written by hand."""
    try:
        found = json.loads(pathlib.Path(path).read_text())
        return PrunePlan({layer: np.array(ids) for layer, ids in found.items()})
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} holds no plan ({error}); it must be JSON that maps layers to lists"
            " of kept channels."
        ) from error


def make_plan(
    scores: Mapping[str, Any],
    rate: float,
    *,
    scope: str = "global",
    order: str = "highest",
    min_channels: int = 1,
    round_to: int = 1,
    seed: int = 0,
) -> PrunePlan:
    """Chooses the channels to cut from their scores.

    Args:
      scores: layer -> [C], TF-IDF of each channel. Ties fall to the earlier layer of
        this mapping, then to the lower channel.
      rate: R of the paper, the share of channels to cut, in [0, 1).
      scope: "global" ranks all channels together, as the paper does; TF sums to one in
        each layer, so narrow layers are cut first. "balanced" multiplies each layer's
        scores by its width before. "layer" cuts the same share of every layer, rounded
        by the largest remainder.
      order: "highest" cuts the highest scores (the paper), "lowest" the lowest (the
        authors' code), "random" any, as a control.
      min_channels: a cut that would leave a layer fewer is not made, nor replaced by
        another, and is counted in `spared`.
      round_to: what is left of a layer is rounded up to a multiple of it, or to the
        whole layer: its last cuts are not made, and count as spared.
      seed: of "random".

    Returns:
      A plan with an entry for each layer of `scores`. In every scope it cuts
      floor(rate * channels) of all channels together, less the spared ones.
    """
    values = {layer: np.asarray(score) for layer, score in scores.items()}
    _check_choices(values, rate, scope, order, min_channels, round_to)
    values = {layer: score.astype(np.float64) for layer, score in values.items()}
    if scope == "balanced":
        values = {layer: score * score.size for layer, score in values.items()}
    generator = np.random.default_rng(seed)
    # One ranking per layer, or one for all with the same number of cuts.
    groups = {(layer,): number for layer, number in _equal_shares(values, rate).items()}
    if scope != "layer":
        groups = {tuple(values): sum(groups.values())}
    keep = {layer: np.ones(score.size, bool) for layer, score in values.items()}
    spared = dict.fromkeys(values, 0)
    removed: dict[str, list[int]] = {layer: [] for layer in values}
    for group, number in groups.items():
        channels = [(layer, c) for layer in group for c in range(values[layer].size)]
        ranked = np.concatenate([values[layer] for layer in group] or [np.zeros(0)])
        if order == "random":
            ranking = generator.permutation(len(channels))
        else:
            # Stable, so that ties fall as the docstring promises; negated rather than
            # reversed, which would turn ties round.
            ranking = np.argsort(-ranked if order == "highest" else ranked, stable=True)
        for layer, channel in (channels[i] for i in ranking[:number]):
            if np.count_nonzero(keep[layer]) > min_channels:
                keep[layer][channel] = False
                removed[layer].append(channel)
            else:
                spared[layer] += 1
    for layer, cut in removed.items():
        while cut and np.count_nonzero(keep[layer]) % round_to:
            keep[layer][cut.pop()] = True
            spared[layer] += 1
    return PrunePlan({k: np.flatnonzero(kept) for k, kept in keep.items()}, spared)


def _equal_shares(values, rate: float) -> dict[str, int]:
    """How many channels each layer gives: whole numbers, by the largest remainder."""
    # 0.29 * 100 is 28.999999999999996, and 29 was meant.
    quotas = {layer: rate * score.size + 1e-9 for layer, score in values.items()}
    shares = {layer: math.floor(quota) for layer, quota in quotas.items()}
    total = math.floor(rate * sum(score.size for score in values.values()) + 1e-9)
    # Rounded, so that equal remainders tie and fall to the earlier layer.
    by_remainder = sorted(
        values, key=lambda layer: round(shares[layer] - quotas[layer], 6)
    )
    for layer in by_remainder[: total - sum(shares.values())]:
        shares[layer] += 1
    return shares


def _check_choices(values, rate, scope, order, min_channels, round_to):
    if not 0 <= rate < 1:
        raise InputError(f"rate is {rate}, but must be at least 0 and below 1.")
    check_choice("scope", scope, SCOPES)
    check_choice("order", order, ORDERS)
    for name, value in (("min_channels", min_channels), ("round_to", round_to)):
        if value < 1:
            raise InputError(f"{name} is {value}, but must be at least 1.")
    for layer, score in values.items():
        if score.ndim != 1 or not score.size or not np.all(np.isfinite(score)):
            raise InputError(
                f"scores of layer {layer!r} are {score.tolist()!s:.80}, but must be one"
                " finite number per channel; look for a diverged model."
            )


def check_kept(layer: str, keep: np.ndarray, size: int) -> None:
    """Refuses kept channels that a layer of `size` channels does not have."""
    numbers = keep.ndim == 1 and keep.size and np.issubdtype(keep.dtype, np.integer)
    if not (numbers and keep[0] >= 0 and keep[-1] < size and np.all(np.diff(keep) > 0)):
        raise InputError(
            f"plan keeps {keep.tolist()!s:.80} of layer {layer!r}, which has {size}"
            " channels, but must keep a list of one or more of their positions, in"
            " increasing order."
        )
