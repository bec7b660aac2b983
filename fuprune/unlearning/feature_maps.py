"""What a channel sees: feature maps on real images, as in the paper's Figure 2.

The most and the least telling channel of one layer, by TF-IDF for the class to forget,
are shown on images of that class and of others.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fuprune.surgery import capture

MIN_SIDE = 4  # pixels


class FeatureMaps(NamedTuple):
    """Channels of a layer on n images."""

    layer: str
    most: int  # channel with the highest score
    least: int  # channel with the lowest
    # images, labels, maps_most, maps_least [n, h, w]; maps_next [2, n, h, w] are those
    # of the second and the third highest score.
    arrays: dict[str, np.ndarray]


def telling_feature_maps(
    model,
    variables,
    dataset,
    scores: Mapping[str, Sequence[float]],
    *,
    target: int,
    prepare,
    number: int = 6,
) -> FeatureMaps:
    """Maps of the channels that say most and least about `target`.

    On `number` images of the dataset, two of the class first. `scores`, layer -> [C_l],
    are the raw model's; `prepare` is `(key, uint8 images) -> float images`.
    """
    first = prepare(None, np.asarray(dataset.images)[:1])
    outputs = functools.partial(capture, model)
    # Sizes of the maps, without computing any.
    shapes = jax.eval_shape(outputs, variables, first)
    layer = _telling_layer(scores, {name: x.shape[1] for name, x in shapes.items()})
    values = np.asarray(scores[layer])
    most, least = int(np.argmax(values)), int(np.argmin(values))
    labels = np.asarray(dataset.labels)
    others = [u for u in np.unique(labels) if u != target]
    chosen = list(np.flatnonzero(labels == target)[:2])
    chosen += [int(np.flatnonzero(labels == u)[0]) for u in others]
    chosen = np.array(chosen[:number])
    images = np.asarray(dataset.images)[chosen]
    output = jax.jit(lambda *seen: outputs(*seen)[layer])
    maps = np.maximum(output(variables, prepare(None, images)), 0.0)
    arrays = {
        "images": images,
        "labels": labels[chosen].astype(np.int32),
        "maps_most": maps[..., most].astype(np.float32),
        "maps_least": maps[..., least].astype(np.float32),
    }
    if len(values) > 3:
        following = np.argsort(-values, kind="stable")[1:3]
        arrays["maps_next"] = np.moveaxis(maps[..., following], -1, 0).astype(
            np.float32
        )
    return FeatureMaps(layer, most, least, arrays)


def _telling_layer(scores, sides: Mapping[str, int]) -> str:
    """The layer whose best channel stands out most from its average.

    The stem is left out, and so are layers whose maps are too small to show anything.
    """
    # The first layer of the mapping is the stem, which sees edges and colours.
    layers = list(scores)[1:] or list(scores)
    visible = [layer for layer in layers if sides.get(layer, 0) >= MIN_SIDE]
    layers = visible or [max(layers, key=lambda layer: sides.get(layer, 0))]
    return max(
        layers,
        key=lambda layer: (
            float(np.max(scores[layer])) * len(scores[layer]),
            layers.index(layer),
        ),
    )
