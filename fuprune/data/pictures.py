"""Picture files of any size and kind as one array: the rule by which they are fitted.

If all pictures have one size, they are kept as they are. Otherwise each is
cut to the square in its middle and scaled (bilinearly) to S x S pixels; S is the
shortest side of any training picture, or what the user asks for. Pictures stay grey if
all of them are; otherwise all become RGB (transparency is dropped).
"""

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fuprune.data.dataset import DamagedDataError
from fuprune.errors import first_line

_GREY = {"1", "L", "LA", "I;16", "I", "F"}


class Fit(NamedTuple):
    """What every picture becomes."""

    height: int
    width: int
    mode: str  # "L" or "RGB"
    resize: bool  # whether pictures of another size are scaled and cut


def choose_fit(headers: Iterable[tuple[int, int, str]], size: int | None) -> Fit:
    """The common shape of pictures with such headers, by the rule of this module.

    `size` is the side that the user asks for, or None.
    """
    seen = set(headers)
    mode = "L" if all(each in _GREY for _, _, each in seen) else "RGB"
    sizes = {(width, height) for width, height, _ in seen}
    if size is None and len(sizes) == 1:
        ((width, height),) = sizes
        return Fit(height, width, mode, False)
    side = size or min(min(pair) for pair in sizes)
    return Fit(side, side, mode, True)


def read_header(source: Any, origin: object) -> tuple[int, int, str]:
    """(width, height, mode) of a picture, a path or bytes, without decoding it."""
    with open_picture(source, None, origin) as picture:
        return (*picture.size, picture.mode)


def decode(source: Any, fit: Fit, origin: object) -> np.ndarray:
    """One picture, a path or bytes, as [H, W, C] uint8."""
    from PIL import Image

    with open_picture(source, fit.mode, origin) as picture:
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
        return pixels(picture)


def decode_all(sources: Sequence[Any], fit: Fit, origins: Sequence[object]):
    """All pictures as [N, H, W, C] uint8, in order."""
    channels = 3 if fit.mode == "RGB" else 1
    images = np.empty((len(sources), fit.height, fit.width, channels), np.uint8)
    for place, (source, origin) in enumerate(zip(sources, origins, strict=True)):
        images[place] = decode(source, fit, origin)
    return images


def pixels(picture: Any) -> np.ndarray:
    """An opened picture as [H, W, C] uint8."""
    found = np.asarray(picture, np.uint8)
    return found if found.ndim == 3 else found[..., None]


@contextlib.contextmanager
def open_picture(source: Any, mode: str | None, origin: object) -> Iterator[Any]:
    """A Pillow picture, from a path or bytes, in a mode such as "RGB".

    None leaves it undecoded. DamagedDataError names the origin of what is no picture,
    or not a whole one.
    """
    from PIL import Image

    path_or_stream = io.BytesIO(source) if isinstance(source, bytes) else source
    with contextlib.ExitStack() as opened:
        try:
            picture = opened.enter_context(Image.open(path_or_stream))
            if mode is not None:
                picture.load()
                picture = picture if picture.mode == mode else picture.convert(mode)
        # UnidentifiedImageError is an OSError.
        except (
            OSError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
        ) as error:
            raise DamagedDataError(
                f"{origin}: is not a readable picture ({first_line(error)})."
            ) from error
        yield picture
