"""Images and feature maps as PNGs inside the page (Figure 2 of the paper)."""

import base64
import io

import numpy as np
from PIL import Image

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
    Image.fromarray(np.ascontiguousarray(pixels), "RGB").save(
        buffer, format="PNG", optimize=False, compress_level=9
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode(
        "ascii"
    )
