"""From the config's words to a request, and the images that judge it.

A request is checked before anything is trained. Whatever its kind, the report has two
sets. For classes the U-set are test images of the forgotten classes and the R-set those
of the others. Clients and examples have no test images of their own, so the U-set are
the forgotten training images themselves and the R-set the whole test split, which is
also the held-out data that the audit compares them with.
"""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.data.federated import FederatedDataset
from fuprune.results import RequestRow
from fuprune.unlearning.request import (
    ForgetRequest,
    check_request,
    describe_request,
    forgotten,
)


def make_request(config, data: FederatedDataset, numbers: np.ndarray) -> ForgetRequest:
    """The request of a config, checked against its federation.

    `numbers`, [N], are those of the pool's images, as the training split counts them;
    -1 for places that hold no image.

    Raises:
      InputError: it cannot be served by this federation.
    """
    kind = configuration.request_kind(config)
    if kind == "classes":
        return ForgetRequest(classes=configuration.classes(config))
    if kind == "clients":
        request = ForgetRequest(clients=configuration.read(config, "unlearn.clients"))
        return check_request(request, data)
    wanted = read_examples(config.unlearn.examples)
    # The pool may be in another order than the split that the user counts in.
    order = np.argsort(numbers, kind="stable")
    places = np.searchsorted(numbers, wanted, sorter=order)
    # A number beyond the last lands on it, and the comparison below tells.
    found = order[np.minimum(places, len(order) - 1)]
    missing = np.flatnonzero(numbers[found] != wanted)
    if missing.size:
        raise ConfigError(
            f"unlearn.examples names training image {wanted[missing[0]]}, which no "
            "client trains on: it is out of range, held out by data.validation, or "
            "left out by data.limit."
        )
    return check_request(ForgetRequest(examples=tuple(found.tolist())), data)


def read_examples(path: str) -> np.ndarray:
    """Numbers of training images from a text file, separated by space or line.

    Raises:
      ConfigError: the file is missing, is empty or holds something else.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"unlearn.examples is {path!r}, where there is no file; allowed: a text "
            "file of training image numbers."
        )
    words = file.read_text("utf-8", errors="replace").replace(",", " ").split()
    wrong = next((w for w in words if not (w.isascii() and w.isdigit())), None)
    if wrong is not None or not words:
        seen = "nothing" if wrong is None else f"{wrong[:40]!r}"
        raise ConfigError(
            f"unlearn.examples is {path!r}, which holds {seen}; allowed: numbers of "
            "training images from 0."
        )
    # More digits than any training set has images would not fit an int64.
    return np.unique(np.asarray([int(word[:18]) for word in words], np.int64))


def pool_places(data: FederatedDataset, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Which image each place of the pool holds, as `parts` count them; [N] int64.

    The pool may be in another order than the images that `parts` indexed; -1 is a place
    without an image.
    """
    rows = np.asarray(jax.device_get(data.rows))
    found = np.full(data.labels.shape[0], -1, np.int64)
    for row, part in zip(rows, parts, strict=True):
        found[row[: len(part)]] = part
    return found


def forgotten_images(
    request: ForgetRequest, data: FederatedDataset, places: np.ndarray
) -> np.ndarray:
    """The training images that a request for clients or examples names.

    `places` are those of the pool, as `pool_places` gives them.

    Returns:
      [F] increasing indices that `parts` count by; none for a request of classes.
    """
    if request.kind == "classes":
        return np.zeros(0, np.int64)
    named = forgotten(data, request)
    rows, lengths = jax.device_get((named.rows, named.lengths))
    held = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    return np.sort(places[np.concatenate(held)])


def describe_sets(request: ForgetRequest, images: int, tested: int) -> RequestRow:
    """The request as the record keeps it, with what U-set and R-set are."""
    if request.kind == "classes":
        u_set = "test images of the forgotten classes"
        r_set = "test images of the other classes"
    else:
        u_set = f"the {images} training images of {describe_request(request)}"
        r_set = f"the {tested} test images, which nobody trained on"
        if request.kind == "examples":
            u_set = f"the {images} forgotten training images"
    return RequestRow(request.kind, list(request.targets), u_set, r_set)
