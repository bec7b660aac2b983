"""Networks that people bring: other conventions, NNX, and networks cut by tracing."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx

from fuprune.audit import AuditData, AuditOptions, audit
from fuprune.audit.outputs import depths_of, heads_of, logits_of
from fuprune.data.dataset import Dataset
from fuprune.models.adapt import adapt, variables_of
from fuprune.surgery import compact, make_plan
from tests.audit.conftest import preprocess

OPTIONS = AuditOptions(relearn_steps=2, batch_size=8, relearn_draws=1)


class SmallNNX(nnx.Module):
    """A convolution, a norm, dropout and a head, as an NNX user writes it."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 6, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.norm(self.conv(images))).mean((1, 2))
        return self.head(self.dropout(x))


@pytest.fixture(scope="module")
def data() -> AuditData:
    generator = np.random.default_rng(0)

    def draw(per_class):
        labels = np.repeat(np.arange(4), per_class).astype(np.int32)
        images = generator.integers(0, 256, (len(labels), 6, 6, 1)).astype(np.uint8)
        return Dataset(images, labels)

    return AuditData(draw(8), draw(6), preprocess)


def test_nnx_modules_are_audited_and_cut_ones_beside_them(data):
    raw, *others = (SmallNNX(nnx.Rngs(seed)) for seed in range(5))
    scores = {"conv": np.arange(6.0)}
    plan = make_plan(scores, 0.34)
    example = preprocess(data.test.images[:2])
    slim, _ = compact(raw, None, plan, example=example)
    network = adapt(raw)
    traced = compact(network, variables_of(raw), plan, example=example)
    found = audit(
        {"module": (others[0], None), "slim": (slim, None), "traced": traced},
        [(other, None) for other in others[1:]],
        (raw, None),
        data,
        (3,),
        jax.random.key(0),
        options=OPTIONS,
    )
    # The same network cut twice gives the same numbers.
    for row in found.rows:
        assert row.models["slim"].values == row.models["traced"].values, row.name
    assert {"probe_early", "probe_last", "relearn"} <= {r.name for r in found.rows}
    weights = found.row("weight_distance_to_raw").models
    assert weights["module"].values[0] > 0 and weights["slim"].values == [None]


def test_outputs_of_an_nnx_module_are_its_own(data):
    module = SmallNNX(nnx.Rngs(0))
    model = adapt(module), variables_of(module)
    module.eval()
    images = preprocess(data.test.images)
    # Batches that do not fill up are padded, and the padding is cut off.
    found = logits_of(model, data.test.images, preprocess, size=9)
    np.testing.assert_allclose(found, module(images), atol=1e-5)
    seen = depths_of(model, data.test.images, preprocess, size=9)
    features = nnx.relu(module.norm(module.conv(images))).mean((1, 2))
    np.testing.assert_allclose(seen["last"], features, atol=1e-5)
    expected = np.asarray(module.conv(images)).mean((1, 2))
    np.testing.assert_allclose(seen["early"], expected, atol=1e-5)
    assert heads_of(model, images) == (("head",),)


class Headless(nn.Module):
    """Its logits come from a convolution, and no layer comes before."""

    @nn.compact
    def __call__(self, images):
        return nn.Conv(4, (6, 6), padding="VALID")(images)[:, 0, 0]


def test_a_network_without_a_dense_layer_is_audited_by_what_it_has(data):
    model = Headless()
    nets = [
        (model, model.init(jax.random.key(seed), preprocess(data.test.images[:1])))
        for seed in range(5)
    ]
    found = audit(
        {"mine": nets[0]},
        nets[2:],
        nets[1],
        data,
        (3,),
        jax.random.key(0),
        options=OPTIONS,
    )
    assert heads_of((adapt(model), nets[0][1]), data.test.images[:1]) == ()
    assert found.row("relearn") is not None and found.row("probe_last") is not None
