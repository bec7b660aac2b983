import os
import signal
import socket
import subprocess
import sys
import textwrap
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from fuprune.config import ConfigError
from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.run import checkpoint
from fuprune.surgery import rebuild
from fuprune.unlearning.rounds import KeptRound
from fuprune.unlearning.sisa import Checkpoint


class State(NamedTuple):
    params: dict
    opt_state: tuple
    round_number: jax.Array  # []


def make_state(width: int, value: float) -> State:
    params = {
        "stem/conv": jnp.full((3, width), value),
        "head": jax.random.normal(jax.random.key(0), (64, 64)),
    }
    opt_state = optax.sgd(0.1, momentum=0.9).init(params)
    return State(params, opt_state, jnp.int32(value))


def target(spec):
    return jax.eval_shape(lambda: make_state(spec["width"], 0))


def save(directory, step, *, width=4, keep=2):
    state = make_state(width, step)
    checkpoint.save(directory, step, state, spec={"width": width}, keep=keep)
    return state


def test_restored_tree_is_the_saved_one(tmp_path):
    assert checkpoint.restore(tmp_path / "none", target) is None
    saved = save(tmp_path, 3)
    step, state, spec = checkpoint.restore(tmp_path, target)
    assert (step, spec) == (3, {"width": 4})
    chex.assert_trees_all_equal_structs(saved, state)
    chex.assert_trees_all_equal(saved, state)
    other = jax.eval_shape(lambda: make_state(5, 0))
    assert checkpoint.restore(tmp_path, lambda spec: other) is None


def test_oldest_steps_are_dropped(tmp_path):
    for step in (1, 2, 10, 9):
        save(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "9"]


@pytest.mark.parametrize("harm", ["truncate", "remove", "spec"])
def test_damaged_newest_step_is_reported_and_the_one_before_used(
    tmp_path, caplog, harm
):
    save(tmp_path, 1)
    save(tmp_path, 2)
    files = [p for p in (tmp_path / "2" / "state").rglob("*") if p.is_file()]
    victim = max(files, key=lambda path: path.stat().st_size)
    if harm == "truncate":
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    elif harm == "remove":
        victim.unlink()
    else:
        (tmp_path / "2" / "spec" / "metadata").write_text("[")
    step, state, _ = checkpoint.restore(tmp_path, target)
    assert step == 1 and state.round_number == 1
    assert f"{tmp_path}/2 cannot be read" in caplog.text
    # The rounds after it are trained and saved again.
    save(tmp_path, 2)
    assert checkpoint.restore(tmp_path, target)[0] == 2


def test_full_disk_is_one_error_and_the_last_good_step_stays(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: [OS error 28: No space left on device]")

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(checkpoint.DiskFullError, match="no room on the disk") as caught:
        save(tmp_path, 2)
    assert "\n" not in str(caught.value)
    assert checkpoint.restore(tmp_path, target)[0] == 1
    monkeypatch.setattr(checkpoint.export, "save_safetensors", full)
    with pytest.raises(checkpoint.DiskFullError):
        checkpoint.save_model(tmp_path / "raw", None, None)


def test_kill_in_mid_save_leaves_the_step_before(tmp_path):
    program = """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        import orbax.checkpoint as ocp
        from fuprune.run import checkpoint

        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        directory, tree = Path(sys.argv[1]), {"a": np.arange(5)}
        checkpoint.save(directory, 1, tree, spec={})
        ocp.StandardCheckpointHandler.finalize = die
        checkpoint.save(directory, 2, tree, spec={})
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert child.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) > 1, "the child died before it saved"
    step, tree, _ = checkpoint.restore(tmp_path, lambda _: {"a": np.arange(5)})
    assert step == 1 and tree["a"].tolist() == [0, 1, 2, 3, 4]
    checkpoint.save(tmp_path, 2, tree, spec={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"], "leftovers"


def test_saved_model_loads_as_itself(tmp_path):
    model = zoo.create("resnet20", num_classes=3, input_shape=(8, 8, 1))
    variables = init_variables(model, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    checkpoint.save_model(tmp_path / "raw", model, variables)
    loaded, restored = checkpoint.load(tmp_path / "raw")
    assert rebuild.spec(loaded) == rebuild.spec(model)
    chex.assert_trees_all_equal(restored, variables)
    with pytest.raises(FileNotFoundError, match="no saved model at"):
        checkpoint.load(tmp_path / "absent")


@pytest.mark.slow
def test_process_zero_writes_and_every_process_restores(tmp_path):
    program = """
        import sys
        from pathlib import Path
        import jax, numpy as np
        from jax.experimental import multihost_utils
        port, process, directory = sys.argv[1:]
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
        from fuprune.run import checkpoint

        tree = {"a": np.arange(4) + 10 * int(process)}
        checkpoint.save(Path(directory), 2, tree, spec={})
        multihost_utils.sync_global_devices("saved")
        step, tree, _ = checkpoint.restore(Path(directory), lambda _: tree)
        assert (step, tree["a"].tolist()) == (2, [0, 1, 2, 3]), (step, tree)
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", textwrap.dedent(program), port]
    children = [subprocess.Popen([*command, str(i), tmp_path]) for i in range(2)]
    assert [child.wait(timeout=120) for child in children] == [0, 0]


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
