"""Picture files of any size and kind as one array: the rule by which they are fitted.

If all pictures have one size, they are kept as they are. Otherwise each is
cut to the square in its middle and scaled (bilinearly) to S x S pixels; S is the
shortest side of any training picture, or what the user asks for. Pictures stay grey if
all of them are; otherwise all become RGB (transparency is dropped).
"""

import io
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fuprune.data.dataset import DamagedDataError

_GREY = {"1", "L", "LA", "I;16", "I", "F"}


class Fit(NamedTuple):
    """What every picture becomes."""

    height: int
    width: int
    mode: str  # "L" or "RGB"
    resize: bool  # whether pictures of another size are scaled and cut


def choose_fit(headers: Iterable[tuple[int, int, str]], size: int | None) -> Fit:
    """The common shape of pictures, by the rule of this module.

    Args:
      headers: (width, height, Pillow mode) of every picture.
      size: The side that the user asks for, or None.
    """
    seen = Counter(headers)
    grey = all(mode in _GREY for _, _, mode in seen)
    mode = "L" if grey else "RGB"
    sizes = {(width, height) for width, height, _ in seen}
    if size is not None:
        return Fit(size, size, mode, True)
    if len(sizes) == 1:
        ((width, height),) = sizes
        return Fit(height, width, mode, False)
    side = min(min(pair) for pair in sizes)
    return Fit(side, side, mode, True)


def read_header(source: Any, origin: object) -> tuple[int, int, str]:
    """(width, height, mode) of a picture, without decoding it.

    Args:
      source: A path or the bytes of a picture file.
      origin: What an error names.
    """
    with _open(source, origin) as picture:
        return (*picture.size, picture.mode)


def decode(source: Any, fit: Fit, origin: object) -> np.ndarray:
    """One picture as [H, W, C] uint8.

    Args:
      source: A path or the bytes of a picture file.
      fit: From `choose_fit`.
      origin: What an error names.
    """
    from PIL import Image

    with _open(source, origin) as picture:
        try:
            if picture.mode != fit.mode:
                picture = picture.convert(fit.mode)
            else:
                picture.load()
        except (OSError, ValueError, SyntaxError) as error:
            raise _unreadable(origin, error) from error
        width, height = picture.size
        if (width, height) != (fit.width, fit.height):
            if not fit.resize:
                raise DamagedDataError(
                    f"{origin}: has {width} x {height} pixels, but the training images "
                    f"have {fit.width} x {fit.height}; give a size, as in ?size=64."
                )
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            # Cut first: a filter at the border then sees nothing from outside.
            square = picture.crop((left, top, left + side, top + side))
            picture = square.resize((fit.width, fit.height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, np.uint8)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def decode_all(sources: Sequence[Any], fit: Fit, origins: Sequence[object]):
    """All pictures as [N, H, W, C] uint8, in order."""
    channels = 3 if fit.mode == "RGB" else 1
    images = np.empty((len(sources), fit.height, fit.width, channels), np.uint8)
    for place, (source, origin) in enumerate(zip(sources, origins, strict=True)):
        images[place] = decode(source, fit, origin)
    return images


def _open(source: Any, origin: object):
    from PIL import Image, UnidentifiedImageError

    path_or_stream = source
    if isinstance(source, bytes):
        path_or_stream = io.BytesIO(source)
    elif not isinstance(source, str | pathlib.Path):
        raise DamagedDataError(f"{origin}: is not a picture but {type(source)}.")
    try:
        return Image.open(path_or_stream)
    except (
        OSError,
        ValueError,
        SyntaxError,
        UnidentifiedImageError,
        Image.DecompressionBombError,
    ) as error:
        raise _unreadable(origin, error) from error


def _unreadable(origin: object, error: Exception) -> DamagedDataError:
    text = str(error).splitlines() or [type(error).__name__]
    return DamagedDataError(f"{origin}: is not a readable picture ({text[0][:150]}).")
