"""Arguments that make no sense, each refused where it enters, in one line."""

import re

import jax
import numpy as np
import pytest

from fuprune.data import federated
from fuprune.data.dataset import Dataset, from_arrays
from fuprune.data.federated import federate, sample_cohort
from fuprune.data.partition import (
    bias_partition,
    dirichlet_partition,
    hold_out,
    natural_partition,
    pathological_partition,
)
from fuprune.data.sources import load
from fuprune.errors import FupruneError
from tests.data.tiny_sets import arrays

MASK = np.array([False, True, False])


def changed(deal, **arguments):
    """A partition of three examples, with other arguments."""
    good = dict(labels=[0, 1, 2], num_clients=2, num_classes=3, seed=0, **arguments)
    return lambda **changes: deal(**{**good, **changes})


bias = changed(bias_partition, bias=0.5)
dirichlet = changed(dirichlet_partition)
pathological = changed(pathological_partition, classes_per_client=2)


def dealt(*parts):
    """Three clients of ten images, unless parts are given."""
    dataset = Dataset(np.zeros((10, 2, 2, 1), np.uint8), np.arange(10) % 5)
    return federate(dataset, parts or [np.arange(4), [], np.array([9])])


def drawn(size, data=None):
    return sample_cohort(jax.random.key(0), data or dealt(), size)


def owned(**changes):
    images, labels = arrays()
    return from_arrays(**{"images": images, "labels": labels, **changes})


def zeros(*shape, dtype=np.uint8):
    return np.zeros(shape, dtype)


CALLS = [
    # How examples are dealt.
    (bias, dict(bias=1.5), r"bias is 1\.5.*\[0, 1\]"),
    (bias, dict(bias=np.nan), "bias is nan"),
    (bias, dict(num_clients=0), "num_clients is 0"),
    (bias, dict(num_clients=2.5), r"num_clients is 2\.5"),
    *(
        (bias, dict(labels=labels), r"labels have shape.*\[0, 2\]")
        for labels in ([3], [0.5], [[0]], [-1, 0])
    ),
    *((dirichlet, dict(alpha=a), "alpha is") for a in (0.0, -1.0, np.inf, np.nan)),
    (pathological, dict(classes_per_client=4), "classes_per_client=4 cannot.*most 3"),
    (pathological, dict(classes_per_client=0), "classes_per_client is 0"),
    (pathological, dict(num_clients=1), "1 clients with classes_per_client=2 cannot"),
    *(
        (natural_partition, dict(clients=np.array(ids)), "Client ids are")
        for ids in ([0.5, 1.0], [[1], [2]], [], [True, False])
    ),
    *(
        (
            hold_out,
            dict(parts=[np.arange(3)], labels=np.zeros(3, int), share=share, seed=0),
            f"share is {share}",
        )
        for share in (-0.1, 1.0, np.nan)
    ),
    # Federations and cohorts.
    (federate, dict(dataset=Dataset(zeros(1, 1, 1, 1), zeros(1)), parts=[]), "empty"),
    *((dealt, [part], "run from 0 to 9") for part in ([-1], [10], MASK)),
    (federated.drop_classes, [dealt(), iter([0.5])], r"classes names"),
    # A mask would name 0 and 1.
    *(
        (getattr(federated, f"{verb}_{what}"), [dealt(), ids], rf"{what} names")
        for verb, what in (
            ("drop", "clients"),
            ("keep", "clients"),
            ("take", "clients"),
            ("drop", "examples"),
            ("keep", "examples"),
        )
        for ids in (MASK, [1.5])
    ),
    (federated.take_clients, [dealt(), [3]], "ids lie in"),
    *((drawn, [size], f"A cohort of {size}.*3 clients") for size in (0, 4)),
    (drawn, [2, federated.drop_clients(dealt(), range(3))], "0 of 3 clients"),
    # Names of sets.
    *(
        (load, dict(name=name, split="train"), "a name as TFDS writes it")
        for name in ("../etc", "", "a b", "/cifar10")
    ),
    (load, dict(name="digits", split="validation"), "'train' or 'test'"),
    (load, dict(name="npz:", split="train"), "colon"),
    (load, dict(name="hf:", split="train"), "colon"),
    (load, dict(name="folder:x?size=0", split="train"), "'0'"),
    # Arrays that somebody brings.
    (owned, dict(images=zeros(30, 5, 4, 3, dtype=np.float32)), "float32.*uint8"),
    (owned, dict(images=zeros(30, 60)), r"\(30, 60\).*\[N, H, W, 3\]"),
    (owned, dict(images=zeros(30, 5, 4, 7)), r"\(30, 5, 4, 7\)"),
    (owned, dict(images=zeros(30, 0, 4, 3)), "no pixel"),
    (owned, dict(labels=np.arange(29)), r"\(29,\).*\[30\]"),
    (owned, dict(labels=np.arange(30) / 2), "float64.*integers"),
    (owned, dict(labels=np.arange(30) - 1), "from -1 to 28"),
    (owned, dict(labels=np.arange(30) % 3 * 2), "up to 4.*class 1 has no image"),
    (owned, dict(labels=np.arange(30) % 2 * 10**9), "class 1 has no image"),
    (owned, dict(labels=zeros(30, dtype=int)), "all of one class"),
    (owned, dict(labels=np.arange(30)), "no class has five examples"),
    (owned, dict(class_names=["a", "b"]), "2 class names.*up to 2"),
    (owned, dict(test_images=zeros(1, 5, 4, 3)), "give both or neither"),
    (owned, dict(test_labels=zeros(1, dtype=int)), "give both or neither"),
    (
        owned,
        dict(test_images=zeros(1, 9, 4, 3), test_labels=[0]),
        r"\(9, 4, 3\).*one shape",
    ),
    (owned, dict(columns={"client": np.arange(3)}), r"'client'.*\(3,\).*\[30\]"),
]


@pytest.mark.parametrize("call, arguments, message", CALLS)
def test_what_makes_no_sense_is_refused_in_one_line(call, arguments, message):
    keywords = arguments if isinstance(arguments, dict) else {}
    with pytest.raises(FupruneError) as error:
        call(*(() if keywords else arguments), **keywords)
    text = str(error.value)
    assert re.search(message, text), text
    assert "\n" not in text and len(text) < 400
