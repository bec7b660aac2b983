import pytest

from fuprune.run import trackers


def test_tensorboard_gets_the_numbers_of_a_row(tmp_path):
    pytest.importorskip("tensorboardX")
    with trackers.tensorboard(tmp_path) as on_row:
        on_row({"phase": "pretrain", "round": 3, "loss": 0.5, "bad": float("nan")})
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"pretrain/loss" in data and b"bad" not in data
