import hypothesis
import numpy as np
from hypothesis import strategies as st

from fuprune.data.normalisation import (
    channel_statistics,
    channel_sums,
    constant_statistics,
    statistics_of_sums,
)
from fuprune.data.partition import iid_partition
from fuprune.data.sources import load
from tests import reference_data


def draw(seed, number=40, shape=(3, 2, 2)):
    rng = np.random.default_rng(seed)
    images = rng.integers(rng.integers(1, 257), size=(number, *shape)).astype(np.uint8)
    return images, rng.integers(4, size=number).astype(np.int32)


def test_channel_statistics_are_those_of_numpy():
    images, _ = draw(0, 9_000)
    images[..., 1] = 7
    assert statistics_of_sums(channel_sums(images, [[], []])) == ((0, 0), (1, 1))
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, [(images[..., 0] / 255).std(), 1.0], rtol=1e-6)


@hypothesis.given(
    seed=st.integers(0, 9_999),
    clients=st.integers(1, 9),
    forget=st.sets(st.integers(0, 3), max_size=3),
)
def test_uploads_equal_their_loop_twin(seed, clients, forget):
    images, labels = draw(seed)
    parts = iid_partition(labels, num_clients=clients, seed=seed)
    uploads = channel_sums(images, parts, labels=labels, without_classes=forget)
    twin = reference_data.channel_sums(images, labels, parts, forget)
    assert uploads.dtype == np.int64
    assert uploads.tolist() == twin


@hypothesis.given(seed=st.integers(0, 9_999), clients=st.integers(1, 50))
def test_federated_statistics_are_the_central_ones_to_the_bit(seed, clients):
    images, labels = draw(seed)
    parts = iid_partition(labels, num_clients=clients, seed=seed)
    assert statistics_of_sums(channel_sums(images, parts)) == channel_statistics(images)


def test_a_class_left_out_leaves_no_trace():
    images, labels = draw(1)
    parts = iid_partition(labels, num_clients=5, seed=0)

    def statistics():
        return statistics_of_sums(
            channel_sums(images, parts, labels=labels, without_classes=(2,))
        )

    before = statistics()
    images[labels == 2] = 255
    assert statistics() == before
    assert channel_statistics(images) != before


def test_constants_do_not_depend_on_the_data():
    assert constant_statistics("cifar10:3.0.2", 3).mean == (0.4914, 0.4822, 0.4465)
    assert constant_statistics("cifar10", 1) == ((0.5,), (0.25,))
    assert constant_statistics("npz:mnist.npz", 1) == ((0.5,), (0.25,))


def test_the_constants_of_the_digits_are_theirs():
    mean, std = channel_statistics(load("digits", split="train").images)
    known = constant_statistics("digits", 1)
    np.testing.assert_allclose([*mean, *std], [*known.mean, *known.std], atol=6e-5)
