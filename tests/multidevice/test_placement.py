"""Which host holds whose images."""

import types
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fuprune.data.federated import federate
from fuprune.run import data as run_data
from fuprune.run import machine as runtime
from tests.multidevice import rounds

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=12).map(
    lambda x: np.array(x, np.int32)
)
owners = st.lists(st.integers(0, 3), min_size=1, max_size=8).map(np.array)


@hypothesis.given(lengths, owners)
def test_each_image_lies_once_and_with_its_clients_host(lengths, owners):
    """For any order of devices in the mesh and any sizes of clients."""
    pool = run_data.deal_to_hosts(lengths, owners)
    assert pool.size % len(owners) == 0
    share = pool.size // len(owners)
    seen = []
    for client, length in enumerate(lengths):
        rows = pool.places[client, :length]
        hosts = owners[rows // share]
        assert (hosts == pool.host_of_client[client]).all()
        assert (pool.places[client, length:] == 0).all()
        seen.extend(rows)
    assert len(set(seen)) == len(seen) == lengths.sum()


def test_hosts_hold_about_the_same():
    """A hundred clients over four hosts, neighbours together."""
    sizes = np.random.default_rng(0).integers(1, 50, 100)
    pool = run_data.deal_to_hosts(sizes, np.repeat(np.arange(4), 2))
    held = np.bincount(pool.host_of_client, weights=sizes)
    assert np.ptp(held) <= 2 * sizes.max()
    assert pool.size <= sizes.sum() + 8 * sizes.max()
    assert (np.diff(pool.host_of_client) >= 0).all()


def test_a_pool_over_hosts_gives_every_client_its_own_images():
    """What a client reads through the pool of two hosts is what it was dealt."""
    dataset, parts = rounds.train_set(), rounds.parts()
    on_host = federate(dataset, parts, place=np.asarray)
    devices = [types.SimpleNamespace(process_index=host) for host in (0, 1, 1, 0)]
    mesh: Any = types.SimpleNamespace(devices=np.array(devices))
    (first, places), (second, same) = (
        run_data.split_over_hosts(
            on_host, runtime.Runtime(mesh, "auto", "xla", host, 2)
        )
        for host in (0, 1)
    )
    np.testing.assert_array_equal(places, same)
    np.testing.assert_array_equal(first.rows, second.rows)
    # What one host has is zero at the other.
    images = first.images + second.images
    for client, part in enumerate(parts):
        rows = first.rows[client, : len(part)]
        np.testing.assert_array_equal(rows, places[part])
        np.testing.assert_array_equal(images[rows], dataset.images[part])
        np.testing.assert_array_equal(first.labels[rows], dataset.labels[part])


@pytest.mark.parametrize(
    "options, cohort, size",
    [(dict(), 3, 3), (dict(), 0, 8), (dict(devices=8), 8, 8)],
    ids=["capped", "unknown", "exact"],
)
def test_a_choice_of_ours_never_exceeds_the_cohort(options, cohort, size):
    options = dict(backend="shard_map", conv="xla", compilation_cache="", **options)
    assert runtime.start(cohort=cohort, **options).mesh.size == size
