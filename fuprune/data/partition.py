"""How examples are dealt to clients: drawn from a seed, or as the data says.

Every partition is disjoint, and all but one from a file cover the examples. A client
may receive nothing. Drawn partitions give K int32 arrays of ascending example indices.
"""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from fuprune.errors import InputError, first_line

# Keeps the draws of `hold_out` apart from those that dealt the examples.
_HOLD_OUT = 1


def bias_partition(
    labels: np.ndarray,
    *,
    num_clients: int,
    num_classes: int,
    bias: float,
    seed: int,
) -> list[np.ndarray]:
    """Deals examples with the paper's degree of non-IID-ness q (section 6).

    It is from Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning", 2020. Clients are split at random into M groups of equal size (to within
    one), one for each class. An example of class m goes to group m with probability q
    and to each other group with probability (1 - q) / (M - 1), then to a client of that
    group chosen uniformly. q = 1 / M is IID; q = 1 gives every client one class.

    With fewer clients than classes some groups have no client. An example whose
    group came out empty goes to one of the inhabited groups, chosen uniformly.

    Args:
      labels: [N] integers in [0, num_classes).
      num_clients: K.
      num_classes: M, the paper's U.
      bias: q in [0, 1].
      seed: The same seed gives the same partition.
    """
    _at_least_one(num_clients=num_clients)
    labels = _checked_labels(labels, num_classes)
    if not 0.0 <= bias <= 1.0:
        raise InputError(f"bias is {bias}, but q is a probability in [0, 1].")
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_clients)
    # Column by column: is it biased, which other group, which group instead of an
    # empty one, which member. All four are drawn for every example, so that an
    # example's draws do not depend on the labels before it.
    draws = rng.random((len(labels), 4))

    # From 1 to M - 1, so that "elsewhere" is never the example's own group.
    offset = 1 + np.floor(draws[:, 1] * (num_classes - 1)).astype(np.int64)
    elsewhere = (labels + offset) % num_classes
    group = np.where(draws[:, 0] < bias, labels, elsewhere)
    if num_classes == 1:
        group = labels

    # Group g holds clients order[g], order[g + M], order[g + 2M], ...: the groups
    # that fewer clients than classes leave empty are the last ones.
    inhabited = min(num_clients, num_classes)
    instead = np.floor(draws[:, 2] * inhabited).astype(np.int64)
    group = np.where(group < inhabited, group, instead)
    size = (num_clients - 1 - group) // num_classes + 1
    member = np.floor(draws[:, 3] * size).astype(np.int64)
    return _split(order[group + member * num_classes], num_clients)


def dirichlet_partition(
    labels: np.ndarray,
    *,
    num_clients: int,
    num_classes: int,
    alpha: float,
    seed: int,
) -> list[np.ndarray]:
    """Deals each class over the clients in Dirichlet(alpha) proportions.

    It is from Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification", 2019. A small alpha gives a class
    to few clients, a large one comes close to IID.
    """
    _at_least_one(num_clients=num_clients)
    labels = _checked_labels(labels, num_classes)
    if not 0.0 < alpha < np.inf:
        raise InputError(f"alpha is {alpha}, but it must be positive and finite.")
    rng = np.random.default_rng(seed)
    owner = np.zeros(len(labels), np.int64)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = _dirichlet(rng, alpha, num_clients)
        edges = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
        # The last edge is a sum of K roundings: set it, so that nobody is left out.
        edges[-1] = len(members)
        place = np.arange(len(members))
        # Client k holds the places from edge k - 1 up to edge k. Equal edges, a share
        # that rounds to nothing, are passed over by "right".
        owner[members] = np.searchsorted(edges, place, side="right")
    return _split(owner, num_clients)


def iid_partition(
    labels: np.ndarray, *, num_clients: int, seed: int
) -> list[np.ndarray]:
    """Shuffles the examples and cuts them into K parts equal to within one."""
    _at_least_one(num_clients=num_clients)
    owner = np.empty(len(labels), np.int64)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    owner[shuffled] = np.arange(len(labels)) % num_clients
    return _split(owner, num_clients)


def pathological_partition(
    labels: np.ndarray,
    *,
    num_clients: int,
    num_classes: int,
    classes_per_client: int,
    seed: int,
) -> list[np.ndarray]:
    """Gives every client examples of k classes only, and each class to equally many.

    It is like the split of McMahan et al. ("Communication-Efficient Learning of Deep
    Networks from Decentralized Data", 2017), but a client has exactly k =
    `classes_per_client` different classes, whose clients share its examples equally, to
    within one. K * k must be at least the number of classes, so that all are dealt.
    """
    share = classes_per_client
    _at_least_one(num_clients=num_clients, classes_per_client=share)
    labels = _checked_labels(labels, num_classes)
    if not num_classes / num_clients <= share <= num_classes:
        raise InputError(
            f"{num_clients} clients with classes_per_client={share} cannot hold all "
            f"{num_classes} classes: give more clients, or at most {num_classes} each."
        )
    rng = np.random.default_rng(seed)
    # Clients take k classes after each other from one permutation of the classes
    # after another. One who is in the middle when a permutation ends takes first
    # what it does not have yet.
    laps: list[np.ndarray] = []
    for start in range(0, num_clients * share, num_classes):
        lap = rng.permutation(num_classes)
        begun = start % share
        if begun:
            # `begun` slots of that client lie at the end of the lap before.
            had = np.isin(lap, laps[-1][-begun:])
            lap = np.concatenate([lap[~had], lap[had]])
        laps.append(lap)
    slots = np.concatenate(laps)[: num_clients * share]
    client = np.arange(len(slots)) // share
    owner = np.zeros(len(labels), np.int64)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        # Never empty: the first lap names every class, and K * k >= U was checked.
        holders = client[slots == label]
        owner[members] = holders[np.arange(len(members)) % len(holders)]
    return _split(owner, num_clients)


def natural_partition(clients: np.ndarray) -> list[np.ndarray]:
    """Gives every client the examples that are its own, as FEMNIST's writers.

    `clients` [N], strings or integers, says whose each example is; the parts are in the
    order of the sorted ids.
    """
    clients = np.asarray(clients)
    if clients.ndim != 1 or clients.dtype.kind not in "iuUS" or not clients.size:
        raise InputError(
            f"Client ids are {clients.dtype} of shape {clients.shape}, but strings or "
            "integers of shape [N] are needed, one per example."
        )
    ids, owner = np.unique(clients, return_inverse=True)
    return _split(owner, len(ids))


def read_partition(path: str | os.PathLike, num_examples: int) -> list[np.ndarray]:
    """Reads who holds which of N examples: one line of a text file per client.

    A line holds a client's example numbers from 0 on, with spaces or commas between
    them; an empty line is a client without examples; lines that begin with # are
    skipped. No example is listed twice; some may belong to no client.
    """
    try:
        lines = pathlib.Path(path).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The partition {path} cannot be read ({first_line(error)})."
        ) from error
    parts = []
    holder = np.zeros(num_examples, np.int64)  # the line that listed it; 0 is none
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        part = []
        for word in line.replace(",", " ").split():
            # `int` refuses words of thousands of digits, and no set needs more than 18.
            image = int(word) if word.isdecimal() and len(word) < 19 else num_examples
            if image >= num_examples:
                raise InputError(
                    f"{path}, line {number}: {word!r} is not the number of a training "
                    f"image: they run from 0 to {num_examples - 1}."
                )
            if holder[image]:
                raise InputError(
                    f"{path}, line {number}: image {image} is listed twice, first in "
                    f"line {holder[image]}."
                )
            holder[image] = number
            part.append(image)
        parts.append(np.array(sorted(part), np.int32))
    if not holder.any():
        raise InputError(f"The partition {path} gives no image to any client.")
    return parts


def hold_out(
    parts: Sequence[np.ndarray], labels: np.ndarray, share: float, seed: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Takes a share in [0, 1) of every client's examples away, as validation data.

    Gives the clients' remaining indices, and those taken away, ascending. Each client
    gives up `share` of its examples, rounded down or up, and the same holds for each
    class of each client; all together give up at most the share. A client that has
    anything keeps at least one example. (Systematic sampling: every 1/share-th example,
    client after client, in random order by class.)
    """
    if not 0.0 <= share < 1.0:
        raise InputError(f"share is {share}, but a part of the data is in [0, 1).")
    if share == 0:
        return list(parts), np.empty(0, np.int32)
    sizes = np.array([len(part) for part in parts], np.int64)
    held = np.concatenate([np.asarray(part, np.int64) for part in parts])
    owner = np.repeat(np.arange(len(parts)), sizes)
    rng = np.random.default_rng([seed, _HOLD_OUT])
    # A client's classes come in an order of its own: with one order for all, clients
    # of equal make-up would all give the same class.
    own = np.asarray(labels, np.int64)[held]
    _, group = np.unique(owner * (1 + own.max(initial=0)) + own, return_inverse=True)
    class_order = rng.random(len(held))[group]
    # The last key counts first: by client, then by class in the client's own order.
    line = np.lexsort((rng.random(len(held)), group, class_order, owner))
    whole, rest = divmod(len(held) * share, 1.0)
    # From a start below 1 - rest on, the line has exactly `whole` ticks.
    ticks = np.floor(np.arange(len(held) + 1) * share + (1 - rest) * rng.random())
    taken = np.zeros(len(held), bool)
    taken[line[np.flatnonzero(np.diff(ticks))[: int(whole)]]] = True

    # A client that gave everything gets its first example back.
    kept = sizes - np.bincount(owner[taken], minlength=len(parts))
    emptied = (kept == 0) & (sizes > 0)
    taken[(np.cumsum(sizes) - sizes)[emptied]] = False
    kept += emptied
    remaining = np.split(held[~taken].astype(np.int32), np.cumsum(kept)[:-1])
    return remaining, np.sort(held[taken]).astype(np.int32)


def drop_unheld(
    parts: Sequence[np.ndarray], num_examples: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The held examples' ascending indices [H], and the parts as indices into them."""
    is_held = np.zeros(num_examples, bool)
    is_held[np.concatenate([np.asarray(part, np.int64) for part in parts])] = True
    place = np.cumsum(is_held, dtype=np.int32) - 1
    return np.flatnonzero(is_held), [place[part] for part in parts]


def _dirichlet(rng: np.random.Generator, alpha: float, size: int) -> np.ndarray:
    """One draw, by the logarithms of gamma draws: a tiny alpha does not underflow."""
    # Gamma(alpha) = Gamma(alpha + 1) * U^(1 / alpha).
    logarithms = np.log(rng.standard_gamma(alpha + 1.0, size))
    logarithms += np.log1p(-rng.random(size)) / alpha
    # At alpha near the smallest float every logarithm may be -inf.
    top = logarithms.max()
    if not np.isfinite(top):
        return np.eye(size)[rng.integers(size)]
    shares = np.exp(logarithms - top)
    return shares / shares.sum()


def _split(owner: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """[N] owners -> for each client, the ascending int32 indices it owns."""
    # Stable, so that each client's indices ascend.
    by_owner = np.argsort(owner, kind="stable").astype(np.int32)
    edges = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return np.split(by_owner, edges)


def _checked_labels(labels: np.ndarray | Sequence[int], num_classes: int) -> np.ndarray:
    """The labels as [N] int64, or an InputError when one is not a class."""
    found = np.asarray(labels).astype(np.int64)
    wrong = found.ndim != 1 or np.any((found != labels) | (found < 0))
    if wrong or found.max(initial=-1) >= num_classes:
        raise InputError(
            f"labels have shape {found.shape}, but one integer per example is needed, "
            f"and with num_classes={num_classes} each is in [0, {num_classes - 1}]."
        )
    return found


def _at_least_one(**counts: int) -> None:
    for name, value in counts.items():
        if value != int(value) or value < 1:
            raise InputError(f"{name} is {value}, but must be an integer from 1.")
