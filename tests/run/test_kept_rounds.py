"""What forgetting keeps on disk: rounds of a training, and slices of SISA."""

import numpy as np
import pytest

from fuprune.config import ConfigError
from fuprune.run import checkpoint
from fuprune.unlearning.rounds import KeptRound
from fuprune.unlearning.sisa import Checkpoint

TREE = {"params": {"a": np.ones((2, 3), np.float32)}, "batch_stats": {"m": np.ones(2)}}


def test_kept_rounds_come_back_in_their_order(tmp_path):
    rounds = [
        KeptRound(t, TREE, np.array([t, 1]), np.ones(2), {"a": np.full((2, 2, 3), t)})
        for t in (0, 10, 2)
    ]
    for kept in rounds:
        checkpoint.save_round(tmp_path / "kept", kept)
    found = checkpoint.RoundFiles(tmp_path / "kept", TREE)
    assert [kept.round_number for kept in found] == [0, 2, 10]
    np.testing.assert_array_equal(found[1].updates["a"], rounds[2].updates["a"])
    assert [kept.round_number for kept in found[1:]] == [2, 10]
    assert len(checkpoint.RoundFiles(tmp_path / "none", TREE)) == 0
    with pytest.raises(ConfigError, match="of another model"):
        checkpoint.RoundFiles(tmp_path / "kept", {"params": TREE["params"]})[0]


def test_slices_are_files_by_hash(tmp_path):
    files = checkpoint.CheckpointFiles(tmp_path / "sisa", TREE)
    assert "ab" not in files and len(files) == 0
    files["ab"] = Checkpoint(TREE, 7)
    assert files["ab"].images == 7 and list(files) == ["ab"]
    np.testing.assert_array_equal(files["ab"].variables["params"]["a"], 1)
    del files["ab"]
    with pytest.raises(KeyError):
        files["ab"]
