"""Figure 2 of the paper: feature maps on real images, as PNGs inside the page."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from fuprune.report import page
from fuprune.report.markup import Markup, element
from fuprune.report.run_files import Run, class_name

_MOST_PICTURES = 10

# A perceptually even scale from dark blue to yellow that stays readable in grey print.
_SCALE = np.array(
    [
        [68, 1, 84],
        [65, 68, 135],
        [42, 120, 142],
        [34, 168, 132],
        [122, 209, 81],
        [253, 231, 37],
    ],
    dtype=np.float64,
)


def feature_map_figure(run: Run) -> Markup | None:
    """Figure 2: what the most and the least discriminative channel see."""
    maps = run.feature_maps
    if maps is None or not len(maps.images):
        return None
    amount = min(len(maps.images), _MOST_PICTURES)
    names = [class_name(run, int(label)) for label in maps.labels[:amount]]
    heads = [
        element(
            "th",
            {
                "scope": "col",
                "class": "forgotten" if int(label) in run.classes else None,
            },
            name,
        )
        for name, label in zip(names, maps.labels[:amount], strict=True)
    ]
    photographs = [
        (photograph(image), f"Image of {name}")
        for image, name in zip(maps.images[:amount], names, strict=True)
    ]
    rows = [_picture_row("image", photographs)]
    for title, channel, values in (
        ("most", maps.most, maps.maps_most[:amount]),
        ("least", maps.least, maps.maps_least[:amount]),
    ):
        finite = values[np.isfinite(values)]
        highest = float(finite.max()) if finite.size else 0.0
        drawn = [
            (
                heat_map(value, highest),
                f"Feature map of the {title} discriminative channel, image of {name}",
            )
            for value, name in zip(values, names, strict=True)
        ]
        words = f"{title} discriminative" + (f", channel {channel}" if channel else "")
        rows.append(_picture_row(words, drawn))
    table = element(
        "table",
        {"class": "maps"},
        element("thead", None, element("tr", None, element("td"), *heads)),
        element("tbody", None, *rows),
    )
    where = f" of layer {maps.layer}" if maps.layer else ""
    return page.figure(
        table,
        f"What two channels{where} see in real images",
        "Brighter is more active, on one scale per row. The most discriminative "
        "channel should light up for the forgotten class (in red) and stay dark for "
        "others. The paper's Figure 2.",
        sideways=True,
    )


def _picture_row(title: str, drawn: Sequence[tuple[str, str]]) -> Markup:
    return element(
        "tr",
        None,
        element("th", {"scope": "row"}, title),
        *(
            element("td", None, element("img", {"src": address, "alt": words}))
            for address, words in drawn
        ),
    )


def photograph(image: np.ndarray) -> str:
    """Encodes one image as a data URI.

    Args:
      image: [H, W, 1 or 3] uint8.

    Returns:
      A `data:image/png` address.
    """
    return _data_uri(np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image)


def heat_map(activations: np.ndarray, highest: float) -> str:
    """Encodes one feature map as a data URI.

    Args:
      activations: [h, w] floats; anything below zero is drawn as zero.
      highest: The value drawn brightest, shared by the maps that are compared.

    Returns:
      A `data:image/png` address.
    """
    shares = np.nan_to_num(activations, nan=0.0, posinf=0.0, neginf=0.0)
    shares = np.clip(shares / highest if highest > 0 else shares * 0, 0, 1)
    positions = shares * (len(_SCALE) - 1)
    below = np.minimum(positions.astype(np.int64), len(_SCALE) - 2)
    rest = (positions - below)[..., None]
    colours = _SCALE[below] * (1 - rest) + _SCALE[below + 1] * rest
    return _data_uri(np.round(colours).astype(np.uint8))


def _data_uri(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        buffer, format="PNG", optimize=False, compress_level=9
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode(
        "ascii"
    )
