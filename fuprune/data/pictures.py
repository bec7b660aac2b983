"""Picture files of any size and kind as one array.

If all pictures have one size, they are kept as they are. Otherwise each is
cut to the square in its middle and scaled (bilinearly) to S x S pixels; S is the
shortest side of any training picture, or what the user asks for. Pictures stay grey if
all of them are; otherwise all become RGB (transparency is dropped).
"""

import contextlib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
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


class Pictures(NamedTuple):
    """The pictures of one split, before they are decoded."""

    sources: Sequence[Any]  # a path or the bytes of each
    origins: Sequence[object]  # what an error names, for each
    labels: np.ndarray  # [N]


class _Form(NamedTuple):
    """What every picture becomes."""

    width: int
    height: int
    mode: str  # "L" or "RGB"
    resize: bool  # whether pictures of another size are scaled and cut


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
    # Labels first: to decode takes minutes.
    for split, name in ((train, "train"), (test, "test")):
        if split is not None:
            checked_labels(split.labels, len(split.sources), f"{origin} ({name})")
    form = _choose_form(train, size)
    if form.resize:
        side = f"{form.width} x {form.height}"
        _LOGGER.info("%s: pictures are cut to squares of %s pixels.", origin, side)
    return from_arrays(
        decode_all(train, form),
        train.labels,
        test_images=None if test is None else decode_all(test, form),
        test_labels=None if test is None else test.labels,
        class_names=class_names,
        columns=columns,
        origin=origin,
    )


def _choose_form(pictures: Pictures, size: int | None) -> _Form:
    """The common shape of pictures, by the rule of this module, from their headers."""
    sizes, modes = set(), set()
    for source, origin in zip(pictures.sources, pictures.origins, strict=True):
        with open_picture(source, None, origin) as picture:
            sizes.add(picture.size)
            modes.add(picture.mode)
    mode = "L" if modes <= _GREY else "RGB"
    if size is None and len(sizes) == 1:
        ((width, height),) = sizes
        return _Form(width, height, mode, False)
    side = size or min(map(min, sizes))
    return _Form(side, side, mode, True)


def decode_all(pictures: Pictures, form: _Form) -> np.ndarray:
    """All pictures of a split as [N, H, W, C] uint8, in order."""
    number, channels = len(pictures.sources), 3 if form.mode == "RGB" else 1
    needed = number * form.height * form.width * channels
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise DamagedDataError(
            f"{pictures.origins[0]} and {number - 1} more pictures take "
            f"{needed / 1e9:.1f} GB as {form.width} x {form.height} pixels, but this "
            f"machine has {memory / 1e9:.1f} GB; choose smaller ones, as in ?size=64."
        )
    images = np.empty((number, form.height, form.width, channels), np.uint8)
    for place, (source, origin) in enumerate(
        zip(pictures.sources, pictures.origins, strict=True)
    ):
        images[place] = _decode(source, form, origin)
    return images


def _decode(source: Any, form: _Form, origin: object) -> np.ndarray:
    """One picture as [H, W, C] uint8."""
    from PIL import Image

    with open_picture(source, form.mode, origin) as picture:
        width, height = picture.size
        if (width, height) != (form.width, form.height):
            if not form.resize:
                raise DamagedDataError(
                    f"{origin}: has {width} x {height} pixels, but the training images "
                    f"have {form.width} x {form.height}; give a size, as in ?size=64."
                )
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            # Cut first: a filter at the border then sees nothing from outside.
            square = picture.crop((left, top, left + side, top + side))
            picture = square.resize(
                (form.width, form.height), Image.Resampling.BILINEAR
            )
        return np.asarray(picture, np.uint8).reshape(form.height, form.width, -1)


@contextlib.contextmanager
def open_picture(source: Any, mode: str | None, origin: object) -> Iterator[Any]:
    """A Pillow picture, from a path or bytes, in a mode such as "RGB".

    None leaves it undecoded. DamagedDataError names the origin of what is no picture,
    or not a whole one.
    """
    from PIL import Image

    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    with contextlib.ExitStack() as opened:
        try:
            picture = opened.enter_context(Image.open(stream))
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
