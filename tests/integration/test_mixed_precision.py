"""bfloat16 computation with float32 state learns all the digits as well."""

import json

import pytest

from tests.integration.command import finish


@pytest.mark.slow
def test_bfloat16_reaches_the_accuracy_of_float32_on_the_digits(tmp_path):
    accuracy = {}
    for dtype in ("float32", "bfloat16"):
        workdir = tmp_path / dtype
        flags = (
            "--config.phases=pretrain",
            f"--config.runtime.dtype={dtype}",
            "--config.data.limit=0",
            "--config.model.name=resnet20",
            "--config.partition.clients=20",
            "--config.train.rounds=12",
        )
        finish(workdir, *flags, small=(), timeout=1800)
        results = json.loads((workdir / "results.json").read_text())
        accuracy[dtype] = results["stages"][0]["accuracy"]
    print(accuracy)
    # 355 test images: one standard error of the difference is about a point.
    assert accuracy["float32"] > 0.95
    assert abs(accuracy["bfloat16"] - accuracy["float32"]) < 0.02
