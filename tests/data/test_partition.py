import zlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fuprune.data.partition import (
    bias_partition,
    dirichlet_partition,
    drop_unheld,
    hold_out,
    iid_partition,
    natural_partition,
    pathological_partition,
    read_partition,
)
from fuprune.errors import InputError
from tests import reference_data

PARTITIONS = {
    "bias": lambda labels, clients, classes, seed: bias_partition(
        labels, num_clients=clients, num_classes=classes, bias=0.6, seed=seed
    ),
    "dirichlet": lambda labels, clients, classes, seed: dirichlet_partition(
        labels, num_clients=clients, num_classes=classes, alpha=0.3, seed=seed
    ),
    "iid": lambda labels, clients, classes, seed: iid_partition(
        labels, num_clients=clients, seed=seed
    ),
    "pathological": lambda labels, clients, classes, seed: pathological_partition(
        labels,
        num_clients=clients,
        num_classes=classes,
        classes_per_client=min(classes, -(-classes // clients) + seed % 3),
        seed=seed,
    ),
}

# Checksums of what the published runs' code draws in one small case.
DRAWS = {
    "bias": 3031424698,
    "dirichlet": 2578700299,
    "iid": 1699279953,
    "pathological": 2275371666,
    "rest": 4176640143,
    "held": 2969777989,
}
SIZES = {
    "num_examples": st.integers(0, 120),
    "num_clients": st.integers(1, 30),
    "num_classes": st.integers(1, 12),
    "seed": st.integers(0, 2**32 - 1),
}


def draw_labels(num_examples, num_classes, seed=0):
    return np.random.default_rng(seed).integers(num_classes, size=num_examples)


@pytest.mark.parametrize("kind", PARTITIONS)
@hypothesis.given(**SIZES)
def test_partition_is_a_disjoint_cover(
    kind, num_examples, num_clients, num_classes, seed
):
    labels = draw_labels(num_examples, num_classes, seed)
    parts = PARTITIONS[kind](labels, num_clients, num_classes, seed)
    assert len(parts) == num_clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), range(num_examples))
    for part in parts:
        assert part.dtype == np.int32
        assert np.all(np.diff(part) > 0)


def test_draws_are_those_of_the_published_runs():
    """A run can only be repeated or resumed if a seed goes on meaning the same."""
    labels = np.arange(200) % 5
    drawn = {kind: deal(labels, 7, 5, 3) for kind, deal in PARTITIONS.items()}
    rest, held = hold_out(drawn["dirichlet"], labels, 0.1, 3)
    drawn |= {"rest": rest, "held": [held]}
    assert {
        name: zlib.crc32(np.concatenate([np.append(part, -1) for part in parts]))
        for name, parts in drawn.items()
    } == DRAWS


@hypothesis.given(**SIZES, bias=st.floats(0, 1))
def test_bias_partition_equals_its_loop_twin(
    num_examples, num_clients, num_classes, bias, seed
):
    labels = draw_labels(num_examples, num_classes, seed)
    parts = bias_partition(
        labels, num_clients=num_clients, num_classes=num_classes, bias=bias, seed=seed
    )
    twin = reference_data.bias_partition(labels, num_clients, num_classes, bias, seed)
    assert [part.tolist() for part in parts] == twin


def class_counts(labels, parts, num_classes):
    """[K, U] examples of each class at each client."""
    return np.stack([np.bincount(labels[p], minlength=num_classes) for p in parts])


def test_dirichlet_concentration_decides_how_many_clients_share_a_class():
    labels = draw_labels(20_000, 10)

    def largest_share(alpha):
        parts = dirichlet_partition(
            labels, num_clients=10, num_classes=10, alpha=alpha, seed=0
        )
        counts = class_counts(labels, parts, 10)
        return (counts.max(axis=0) / counts.sum(axis=0)).mean()

    assert largest_share(1e-300) == 1.0
    assert largest_share(0.01) > 0.8
    assert largest_share(1e6) < 0.11


def test_iid_parts_differ_in_size_by_one_at_most():
    parts = iid_partition(np.zeros(103, int), num_clients=10, seed=0)
    assert sorted(map(len, parts)) == [10] * 7 + [11] * 3


@hypothesis.given(**SIZES, share=st.floats(0, 0.99))
def test_held_out_examples_and_the_rest_are_a_disjoint_cover(
    num_examples, num_clients, num_classes, share, seed
):
    labels = draw_labels(num_examples, num_classes, seed)
    parts = PARTITIONS["dirichlet"](labels, num_clients, num_classes, seed)
    rest, held = hold_out(parts, labels, share, seed)
    assert len(held) <= share * num_examples
    np.testing.assert_array_equal(
        np.sort(np.concatenate([*rest, held])), range(num_examples)
    )
    for before, after in zip(parts, rest, strict=True):
        assert set(after.tolist()) <= set(before.tolist())
        assert np.all(np.diff(after) > 0)
        assert (len(after) > 0) == (len(before) > 0)
        gone = np.setdiff1d(before, after)
        low = np.floor(share * len(before))
        assert min(low, len(before) - 1) <= len(gone) <= low + 1
        for label in range(num_classes):
            had, gave = np.sum(labels[before] == label), np.sum(labels[gone] == label)
            assert gave <= np.ceil(share * had + 1e-9)


def test_every_class_is_held_out_in_its_share_even_from_tiny_clients():
    """A client of ten gives one of ten classes, and not every client the same."""
    labels = np.tile(np.arange(10), 1_000)
    parts = np.split(np.arange(10_000), 1_000)
    rest, held = hold_out(parts, labels, 0.1, 0)
    assert {len(part) for part in rest} == {9}
    # Binomial(1000, 1/10): a standard deviation is 9.5.
    np.testing.assert_allclose(np.bincount(labels[held]), 100, atol=40)


def test_examples_that_nobody_holds_are_dropped():
    parts = [np.array([5, 0]), np.array([], int), np.array([3])]
    held, renumbered = drop_unheld(parts, 6)
    assert held.tolist() == [0, 3, 5]
    assert [part.tolist() for part in renumbered] == [[2, 0], [], [1]]


@hypothesis.given(
    num_clients=st.integers(1, 30),
    num_classes=st.integers(1, 8),
    share=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_pathological_clients_have_k_classes_and_classes_equally_many_clients(
    num_clients, num_classes, share, seed
):
    hypothesis.assume(share <= num_classes <= num_clients * share)
    labels = np.repeat(np.arange(num_classes), num_clients + 3)
    parts = pathological_partition(
        labels,
        num_clients=num_clients,
        num_classes=num_classes,
        classes_per_client=share,
        seed=seed,
    )
    counts = class_counts(labels, parts, num_classes)
    # Every class has an example for each of its clients.
    assert np.all((counts > 0).sum(axis=1) == share)
    assert np.ptp((counts > 0).sum(axis=0)) <= 1
    for of_class in counts.T:
        assert np.ptp(of_class[of_class > 0]) <= 1


@pytest.mark.parametrize("kind", [str, int])
def test_natural_clients_have_what_is_theirs(kind):
    owners = np.array([kind(each) for each in (3, 1, 3, 2, 1)])
    parts = natural_partition(owners)
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2]]
    assert all(part.dtype == np.int32 for part in parts)


@hypothesis.given(num_clients=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_a_written_partition_is_read_back(tmp_path_factory, num_clients, seed):
    parts = iid_partition(np.zeros(20), num_clients=num_clients, seed=seed)[:-1] + [
        np.array([], np.int32)
    ]
    hypothesis.assume(any(len(part) for part in parts))
    path = tmp_path_factory.mktemp("partition") / "parts.txt"
    lines = [" ".join(map(str, part)) for part in parts]
    path.write_text("# images 0 to 19\n" + "\n".join(lines) + "\n")
    again = read_partition(path, 20)
    assert [part.tolist() for part in again] == [part.tolist() for part in parts]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n2, x\n", "line 2: 'x' is not the number of a training image.*0 to 9"),
        ("0 10\n", "line 1: '10' is not"),
        ("0\n-1\n", "line 2: '-1' is not"),
        ("1.5\n", "'1.5' is not"),
        ("9" * 30, "is not the number"),
        ("4 2 4\n", "line 1: image 4 is listed twice, first in line 1"),
        ("3 4\n5\n4 6\n", "line 3: image 4 is listed twice, first in line 1"),
        ("# nothing\n\n", "gives no image to any client"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_partition_file_that_cannot_be_is_refused_in_one_line(
    tmp_path, text, message
):
    path = tmp_path / "parts.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message) as error:
        read_partition(path, 10)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
