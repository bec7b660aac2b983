"""Picture files of any size and kind as one array.

If all pictures have one size, they are kept as they are. Otherwise each is
cut to the square in its middle and scaled (bilinearly) to S x S pixels; S is the
shortest side of any training picture, or what the user asks for. Pictures stay grey if
all of them are; otherwise all become RGB (transparency is dropped).
"""

import contextlib
import io
import logging
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fuprune.data.dataset import (
    DamagedDataError,
    LabelledSet,
    checked_labels,
    from_arrays,
)
from fuprune.errors import first_line

_GREY = {"1", "L", "LA", "I;16", "I", "F"}
_LOGGER = logging.getLogger(__name__)


class Fit(NamedTuple):
    """What every picture becomes."""

    height: int
    width: int
    mode: str  # "L" or "RGB"
    resize: bool  # whether pictures of another size are scaled and cut


class Pictures(NamedTuple):
    """The pictures of one split, before they are decoded."""

    sources: Sequence[Any]  # a path or the bytes of each
    origins: Sequence[object]  # what an error names, for each
    labels: np.ndarray  # [N]


def read_pictures(
    train: Pictures,
    test: Pictures | None,
    *,
    size: int | None,
    class_names: Sequence[str] | None,
    columns: Mapping[str, np.ndarray],
    origin: object,
) -> LabelledSet:
    """Decodes both splits and makes a set of them, as `from_arrays` does.

    The sizes of the training pictures decide what all pictures become, by the rule of
    `pictures`; if `size` is given, it is the side of all images.
    """
    # Before decoding, which takes minutes.
    train = _with_checked_labels(train, f"{origin} (train)")
    if test is not None:
        test = _with_checked_labels(test, f"{origin} (test)")
    fit = choose_fit(map(read_header, train.sources, train.origins), size)
    if fit.resize:
        _LOGGER.info(
            "%s: pictures are cut to squares of %d x %d pixels.",
            origin,
            fit.width,
            fit.height,
        )
    return from_arrays(
        decode_all(train, fit),
        train.labels,
        test_images=None if test is None else decode_all(test, fit),
        test_labels=None if test is None else test.labels,
        class_names=class_names,
        columns=columns,
        origin=origin,
    )


def _with_checked_labels(pictures: Pictures, origin: str) -> Pictures:
    labels, number = np.asarray(pictures.labels), len(pictures.sources)
    return pictures._replace(labels=checked_labels(labels, number, None, origin))


def decode_all(pictures: Pictures, fit: Fit) -> np.ndarray:
    """All pictures of a split as [N, H, W, C] uint8, in order."""
    number = len(pictures.sources)
    _check_room(number, fit, pictures.origins[0])
    channels = 3 if fit.mode == "RGB" else 1
    images = np.empty((number, fit.height, fit.width, channels), np.uint8)
    for place, (source, origin) in enumerate(
        zip(pictures.sources, pictures.origins, strict=True)
    ):
        images[place] = decode(source, fit, origin)
    return images


def _check_room(number: int, fit: Fit, first: object) -> None:
    """Refuses what would not fit in memory, before the first picture is decoded."""
    needed = number * fit.height * fit.width * (3 if fit.mode == "RGB" else 1)
    free = free_memory()
    if free is not None and needed > free:
        raise DamagedDataError(
            f"{first} and {number - 1} more pictures take {needed / 1e9:.1f} GB as"
            f" {fit.width} x {fit.height} pixels, but {free / 1e9:.1f} GB are free;"
            " choose smaller ones, as in ?size=64."
        )


def free_memory() -> int | None:
    """Bytes of the host that are free, or None where the system does not say."""
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
        (line,) = [x for x in text.splitlines() if x.startswith("MemAvailable:")]
        return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None


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
                if picture.mode[0] in "IF":  # 16 or 32 bits per pixel
                    _check_fits_bytes(np.asarray(picture), origin)
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


def _check_fits_bytes(values: np.ndarray, origin: object) -> None:
    # Pillow would clip them: a whole picture of 16 bits becomes white.
    if np.any(values != np.clip(np.rint(values), 0, 255)):
        raise DamagedDataError(
            f"{origin}: has pixels from {values.min()} to {values.max()}, but whole "
            "numbers from 0 to 255 are needed; convert it to 8 bits once."
        )
