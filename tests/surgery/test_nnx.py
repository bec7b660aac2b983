"""NNX modules are cut as Linen ones are, and come back as NNX modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fuprune import surgery
from fuprune.run import export
from fuprune.surgery import PrunePlan
from tests.surgery import networks

IMAGES = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype(np.float32)


def test_nnx_goes_in_and_out():
    module = networks.NNXNet(nnx.Rngs(0))
    plan = PrunePlan({"stem": np.array([0, 2, 5]), "blocks/0": np.array([1, 2])})
    images = jnp.asarray(IMAGES)
    small, state = surgery.compact(module, None, plan, example=images)
    masked = surgery.mask(module, None, plan, example=images)
    masked.eval()
    assert isinstance(small, nnx.Module)
    np.testing.assert_allclose(small(images), masked(images), atol=1e-6)
    small.train()
    before = np.asarray(small.batch_stats["norm"]["mean"][...])
    small(images)
    assert not np.array_equal(before, small.batch_stats["norm"]["mean"][...])
    assert len(jax.tree.leaves(state))


def test_a_slim_nnx_module_is_captured_cut_again_and_exported(tmp_path):
    images = jnp.asarray(IMAGES)
    plan = PrunePlan({"stem": np.array([0, 2, 5]), "blocks/0": np.array([1, 2])})
    small, _ = surgery.compact(networks.NNXNet(nnx.Rngs(0)), None, plan, example=images)
    assert surgery.capture(small, None, images)["blocks/0"].shape == (3, 8, 8, 2)
    assert surgery.kept_channels(small, None, example=images)["stem"] == (0, 2, 5)
    again = PrunePlan({"stem": np.array([1, 2])})
    assert "channels 3 -> 2" in surgery.explain(small, None, again, example=images)
    masked = surgery.mask(small, None, again, example=images)
    smaller, _ = surgery.compact(small, None, again, example=images)
    expected = smaller(images)
    np.testing.assert_allclose(expected, masked(images), atol=1e-6)
    with pytest.raises(ValueError, match="is a SlimModule, and nothing says how"):
        export.save_safetensors(tmp_path / "model.safetensors", smaller, None)
    export.export_stablehlo(smaller, None, tmp_path / "slim.stablehlo")
    loaded = export.load_stablehlo(tmp_path / "slim.stablehlo")
    np.testing.assert_allclose(loaded(images), expected, atol=1e-6)
    with pytest.raises(ValueError, match="pass their shape"):
        export.export_stablehlo(networks.NNXNet(nnx.Rngs(0)), None, tmp_path / "whole")
