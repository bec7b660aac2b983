"""Evaluation of a split: the matrix, and one compilation for one architecture."""

import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.preprocess import to_float
from fuprune.federated.evaluate import _make_count, make_evaluator
from fuprune.federated.sharded import make_client_mesh
from tests.compilations import counted
from tests.tiny import TinyNet, tiny_dataset, tiny_variables


def test_the_matrix_counts_every_image_and_no_padding():
    """Ten images in batches of four: two of padding are in no cell."""
    dataset, model = tiny_dataset(10), TinyNet()
    variables = tiny_variables()
    found = make_evaluator(model, dataset, num_classes=4, batch_size=4)(variables)
    logits = model.apply(variables, jnp.asarray(dataset.images, jnp.float32) / 255.0)
    expected = np.zeros((4, 4), np.int64)
    np.add.at(expected, (dataset.labels, np.argmax(logits, axis=-1)), 1)
    np.testing.assert_array_equal(found.confusion, expected)


def test_an_equal_model_is_evaluated_without_compiling_again():
    """A run makes an evaluator for each stage; most stages share a network."""
    dataset = tiny_dataset(12)
    make_evaluator(TinyNet(), dataset, num_classes=4)(tiny_variables())
    other = tiny_variables(seed=1)
    with counted() as programs:
        found = make_evaluator(TinyNet(), dataset, num_classes=4)(other)
    assert not programs
    fresh = make_evaluator(
        TinyNet(), dataset, num_classes=4, preprocess=lambda key, x: x / 255.0
    )(other)
    assert found.loss == pytest.approx(fresh.loss, rel=1e-5)


def test_batches_of_a_mesh_meet_in_no_collective():
    """All are in flight at once: devices that met in several could wait for ever."""
    model, variables = TinyNet(), tiny_variables()
    count = _make_count(model, 4, to_float, make_client_mesh())
    images, labels = jnp.zeros((8, 6, 6, 1), jnp.uint8), jnp.zeros(8, jnp.int32)
    program = count.lower(variables, images, labels).as_text()
    assert "stablehlo" in program
    for collective in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter"):
        assert collective not in program
