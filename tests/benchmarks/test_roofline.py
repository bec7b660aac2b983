"""The roofline counts every layer of a network, as often as it is there."""

import pathlib

import jax
import jax.numpy as jnp
import pytest

from fuprune.models import cost, zoo

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def roofline(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    import roofline

    return roofline


@pytest.mark.parametrize("net", ["resnet20", "vgg11"])
def test_layers_add_up_to_the_network(roofline, net):
    """The same products as the model's own count, dense layers aside."""
    model = zoo.create(net, num_classes=10)
    shapes = roofline.layer_shapes(model)
    counted = sum(
        number * 2 * 9 * inputs * outputs * (side // stride) ** 2
        for (side, inputs, outputs, stride), number in shapes.items()
    )
    costs = cost.layer_costs(model)
    assert counted == sum(costs[layer].flops for layer in model.output_sizes())


@pytest.mark.parametrize(
    ("side", "stride"), [(1, 1), (2, 1), (4, 1), (5, 1), (32, 1), (4, 2), (32, 2)]
)
def test_products_with_padding_are_not_counted(roofline, side, stride):
    """A kernel of ones over an image of ones counts the pixels that it meets."""
    ones = jnp.ones((1, side, side, 1))
    met = jax.lax.conv_general_dilated(
        ones,
        jnp.ones((3, 3, 1, 1)),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    assert roofline.pairs_per_axis(side, stride) ** 2 == int(met.sum())


@pytest.mark.parametrize("bfloat16", [0.0, 50e9])
def test_table_takes_shares_of_the_peak(roofline, bfloat16):
    """A layer at half the peak that fills half the step reads 50% twice."""
    seconds = {"float32": 0.25} | ({"bfloat16": 0.125} if bfloat16 else {})
    steps = {"float32": 1.0} | ({"bfloat16": 0.4} if bfloat16 else {})
    row = {"layer": "a", "what": "forward", "number": 2, "seconds": seconds}
    row |= {"flops": 12.5e9, "bytes": 1e9}
    peaks = dict.fromkeys(("multiply_adds", "multiply_adds_by_clock"), [100e9, 200e9])
    text = roofline.table(
        {
            "date": "now",
            "machine": {"cores": 2, "cpu": "c", "load_before": 0, "load_after": 0},
            "batch_size": 32,
            "peaks": peaks
            | {"bytes": [10e9, 10e9], "bfloat16_products": [bfloat16, 2 * bfloat16]},
            "nets": {"net": {"rows": [row], "step_seconds": steps}},
        }
    )
    half = "125.00" if bfloat16 else "-"
    assert f"| a | forward | 2 | 250.00 | 50 | 50% | 4.0 | 50.0% | {half} |" in text
    faster = "400.0 ms (2.50x as fast), its kernels alone 250.0 ms (2.00x)"
    assert (faster in text) == bool(bfloat16)
    assert "its kernels alone 500.0 ms (50%)" in text
    assert ("| products of bfloat16" in text) == bool(bfloat16)
    assert "(25%); convolutions run at 25% of the peak" in text
    # 32 images of 25 GFLOP in all: in a second, at 100 and at 50 GFLOP/s.
    assert "trains 32 images/s so; the network's products alone would allow 128" in text
    assert "at the peak, and 64 at the rate of oneDNN's best convolution" in text


@pytest.mark.slow
def test_everything_is_measured(roofline, tmp_path):
    report = roofline.main(["--smoke", "--output", str(tmp_path / "none.json")])
    rows = report["nets"]["resnet8"]["rows"]
    assert all(min(row["seconds"].values()) > 0 for row in rows)
    assert not (tmp_path / "none.json").exists()
