import errno
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

from fuprune.errors import InputError
from fuprune.models.fresh import init_variables
from fuprune.run import checkpoint
from fuprune.surgery import rebuild


class State(NamedTuple):
    params: dict
    opt_state: tuple
    round_number: jax.Array  # []


def make_state(width: int, value: float) -> State:
    params = {
        "stem/conv": jnp.full((3, width), value, jnp.bfloat16),
        "head": jax.random.normal(jax.random.key(0), (64, 64)),
    }
    return State(
        params,
        optax.sgd(0.1, momentum=0.9).init(params),
        jnp.int32(value),
    )


def target(spec):
    return jax.eval_shape(lambda: make_state(spec["width"], 0))


def save(directory, step, *, width=4, keep=2):
    state = make_state(width, step)
    checkpoint.save(directory, step, state, spec={"width": width}, keep=keep)
    return state


def some_file(directory, step):
    files = [p for p in (directory / str(step) / "state").rglob("*") if p.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_restored_tree_is_the_saved_one(tmp_path):
    saved = save(tmp_path, 3)
    step, state, spec = checkpoint.restore(tmp_path, target)
    assert (step, spec) == (3, {"width": 4})
    chex.assert_trees_all_equal_structs(saved, state)
    chex.assert_trees_all_equal(saved, state)
    assert state.params["stem/conv"].dtype == jnp.bfloat16


def test_spec_decides_the_shapes_restored_into(tmp_path):
    save(tmp_path, 1, width=4)
    save(tmp_path, 2, width=3)
    _, state, _ = checkpoint.restore(tmp_path, target)
    assert state.params["stem/conv"].shape == (3, 3)


def test_nothing_saved_restores_to_none(tmp_path):
    assert checkpoint.restore(tmp_path / "none", target) is None


def test_relative_directory_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("run", 1)
    assert checkpoint.restore("run", target)[0] == 1


def test_oldest_steps_are_dropped(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


@pytest.mark.parametrize("harm", ["truncate", "remove", "spec"])
def test_damaged_newest_step_is_reported_and_the_one_before_used(
    tmp_path, caplog, harm
):
    save(tmp_path, 1)
    save(tmp_path, 2)
    victim = some_file(tmp_path, 2)
    if harm == "truncate":
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    elif harm == "remove":
        victim.unlink()
    else:
        (tmp_path / "2" / "spec" / "metadata").write_text("[")
    step, state, _ = checkpoint.restore(tmp_path, target)
    assert step == 1 and state.round_number == 1
    said = [r for r in caplog.records if r.name == checkpoint.__name__]
    assert [record.levelname for record in said] == ["WARNING"]
    assert f"{tmp_path}/2 cannot be read" in caplog.text
    # The rounds after it are trained and saved again.
    save(tmp_path, 2)
    assert checkpoint.restore(tmp_path, target)[0] == 2


def test_all_steps_damaged_restores_to_none(tmp_path):
    save(tmp_path, 1)
    some_file(tmp_path, 1).unlink()
    assert checkpoint.restore(tmp_path, target) is None


def test_a_spec_that_is_refused_is_an_error_and_no_older_step_is_tried(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)

    def refuse(spec):
        raise InputError(f"no {spec}")

    with pytest.raises(InputError, match="no {'width': 4}"):
        checkpoint.restore(tmp_path, refuse)


def test_target_of_another_shape_is_not_filled(tmp_path):
    save(tmp_path, 1)
    other = jax.eval_shape(lambda: make_state(5, 0))
    assert checkpoint.restore(tmp_path, lambda spec: other) is None


def test_tree_without_arrays_is_saved(tmp_path):
    checkpoint.save(tmp_path, 0, {"nothing": ()}, spec={"done": True})
    assert checkpoint.restore(tmp_path, lambda spec: {"nothing": ()}) == (
        0,
        {"nothing": ()},
        {"done": True},
    )


def test_full_disk_is_one_error_and_the_last_good_step_stays(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: [OS error 28: No space left on device]")

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(checkpoint.DiskFullError, match="no room on the disk") as caught:
        save(tmp_path, 2)
    assert "\n" not in str(caught.value)
    assert checkpoint.restore(tmp_path, target)[0] == 1


def test_other_errors_of_a_save_are_not_called_a_full_disk(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise OSError(errno.EACCES, "denied")

    monkeypatch.setattr(ocp.CheckpointManager, "save", denied)
    with pytest.raises(OSError, match="denied") as caught:
        save(tmp_path, 1)
    assert not isinstance(caught.value, checkpoint.DiskFullError)


def test_kill_in_mid_save_leaves_the_step_before(tmp_path):
    program = """
        import os, signal, sys
        import numpy as np
        import orbax.checkpoint as ocp
        from fuprune.run import checkpoint

        directory = sys.argv[1]
        tree = {"a": np.arange(5)}
        checkpoint.save(directory, 1, tree, spec={})

        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        ocp.JsonCheckpointHandler.finalize = die
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


@pytest.mark.slow
def test_process_zero_writes_and_every_process_restores(tmp_path):
    program = """
        import sys
        import jax, numpy as np
        port, process, directory = sys.argv[1:]
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
        from fuprune.run import checkpoint

        tree = {"a": np.arange(4) + 10 * int(process)}
        checkpoint.save(directory, 1, tree, spec={})
        checkpoint.save(directory, 2, tree, spec={})
        jax.experimental.multihost_utils.sync_global_devices("saved")
        step, tree, _ = checkpoint.restore(directory, lambda _: tree)
        assert (step, tree["a"].tolist()) == (2, [0, 1, 2, 3]), (step, tree)
    """
    program = "import jax.experimental.multihost_utils\n" + textwrap.dedent(program)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(port), str(i), tmp_path])
        for i in range(2)
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0]


def test_saved_model_loads_as_itself(tmp_path):
    zoo = pytest.importorskip("fuprune.models.zoo")
    model = zoo.create("resnet20", num_classes=3, input_shape=(8, 8, 1))
    variables = init_variables(model, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    checkpoint.save_model(tmp_path / "raw", model, variables)
    loaded, restored = checkpoint.load(tmp_path / "raw")
    assert rebuild.spec(loaded) == rebuild.spec(model)
    chex.assert_trees_all_equal(restored, variables)


def test_absent_model_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no saved model at"):
        checkpoint.load(tmp_path / "absent")


def test_model_that_does_not_fit_on_the_disk_leaves_the_old_one(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.export, "save_safetensors", full)
    with pytest.raises(checkpoint.DiskFullError):
        checkpoint.save_model(tmp_path / "raw", None, None)
