"""Sums over clients: every example once, padding never, whatever the chunk."""

import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.federated import federate
from fuprune.unlearning.client_sums import limit_examples
from tests.tiny import tiny_dataset
from tests.unlearning.small import make_job

PARTS = [np.arange(0, 7), np.arange(7, 7), np.arange(7, 20)]


def count_and_add(model):
    def count(context, batch):
        pixels = jnp.sum(batch.images * 255.0, axis=(1, 2, 3))
        return {
            "pixels": context * jnp.sum(pixels),
            "labels": jnp.sum(batch.labels * batch.mask),
            "examples": jnp.sum(batch.mask),
        }

    return count


@pytest.mark.parametrize("backend", ["loop", "map", "vmap"])
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_every_example_is_summed_once(backend, chunk):
    dataset = tiny_dataset(24)
    data = federate(dataset, PARTS)
    run = make_job(None, None, data, backend=backend).sum(count_and_add, chunk=chunk)
    total, number = run(jnp.float32(2.0), data)
    assert number == 20 and total["examples"] == 20
    assert total["labels"] == dataset.labels[:20].sum()
    pixels = 2.0 * dataset.images[:20].astype(np.float64).sum()
    np.testing.assert_allclose(total["pixels"], pixels, rtol=1e-5)


def test_limit_takes_the_same_share_of_every_client_spread_over_its_row():
    data = federate(tiny_dataset(60), [np.arange(0, 40), np.arange(40, 60), []])
    limited = limit_examples(data, 30)
    assert limited.lengths.tolist() == [20, 10, 0]
    assert limited.rows.shape == data.rows.shape
    assert limited.rows[0, :20].tolist() == list(range(0, 40, 2))
    assert limited.rows[1, :10].tolist() == list(range(40, 60, 2))
    assert not limited.rows[0, 20:].any()


@pytest.mark.parametrize("limit", [1, 7, 59])
def test_limit_is_met_exactly(limit):
    data = federate(tiny_dataset(60), np.array_split(np.arange(60), 7))
    limited = limit_examples(data, limit)
    assert int(limited.lengths.sum()) == limit
    held = [
        index
        for row, n in zip(limited.rows.tolist(), limited.lengths.tolist(), strict=True)
        for index in row[:n]
    ]
    assert len(set(held)) == limit
