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
    images, labels = np.asarray(dataset.images), np.asarray(dataset.labels)
    outputs = functools.partial(capture, model)
    # Sizes of the maps, without computing any.
    shapes = jax.eval_shape(outputs, variables, prepare(None, images[:1]))
    layer = _telling_layer(scores, {name: x.shape[1] for name, x in shapes.items()})
    order = np.argsort(-np.asarray(scores[layer]), kind="stable")
    most, least = int(order[0]), int(np.argmin(scores[layer]))
    firsts = {u: np.flatnonzero(labels == u) for u in np.unique(labels)}
    chosen = [*firsts.pop(target, [])[:2], *(places[0] for places in firsts.values())]
    chosen = np.array(chosen[:number])
    output = jax.jit(lambda *seen: outputs(*seen)[layer])
    maps = output(variables, prepare(None, images[chosen]))
    maps = np.maximum(maps, 0.0).astype(np.float32)
    arrays = {
        "images": images[chosen],
        "labels": labels[chosen].astype(np.int32),
        "maps_most": maps[..., most],
        "maps_least": maps[..., least],
    }
    if len(order) > 3:
        arrays["maps_next"] = np.moveaxis(maps[..., order[1:3]], -1, 0)
    return FeatureMaps(layer, most, least, arrays)


def _telling_layer(scores, sides: Mapping[str, int]) -> str:
    """The layer whose best channel stands out most from its average.

    The stem, which is first and sees edges and colours, is left out, and so are layers
    whose maps are too small to show anything.
    """
    layers = list(scores)[1:] or list(scores)
    visible = [layer for layer in layers if sides.get(layer, 0) >= MIN_SIDE]
    layers = visible or [max(layers, key=lambda layer: sides.get(layer, 0))]
    # The last of equal ones.
    return max(reversed(layers), key=lambda x: np.max(scores[x]) * len(scores[x]))
