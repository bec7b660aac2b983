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
import pytest

from fuprune.models.fresh import init_variables
from fuprune.run import checkpoint


class State(NamedTuple):
    params: dict
    opt_state: tuple
    round_number: jax.Array  # []
    key: jax.Array  # [] typed key


def make_state(width: int, value: float) -> State:
    params = {"stem/conv": jnp.full((3, width), value, jnp.bfloat16)}
    return State(
        params,
        optax.sgd(0.1, momentum=0.9).init(params),
        jnp.int32(value),
        jax.random.key(int(value)),
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
    chex.assert_trees_all_equal(saved._replace(key=()), state._replace(key=()))
    assert state.params["stem/conv"].dtype == jnp.bfloat16
    assert jnp.array_equal(
        jax.random.key_data(saved.key), jax.random.key_data(state.key)
    )
    assert jax.random.key_impl(state.key) == jax.random.key_impl(saved.key)


def test_spec_decides_the_shapes_restored_into(tmp_path):
    save(tmp_path, 1, width=4)
    save(tmp_path, 2, width=3)
    _, state, _ = checkpoint.restore(tmp_path, target)
    assert state.params["stem/conv"].shape == (3, 3)


def test_nothing_saved_restores_to_none(tmp_path):
    assert checkpoint.restore(tmp_path / "none", target) is None
    assert checkpoint.latest(tmp_path) is None


def test_relative_directory_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("run", 1)
    assert checkpoint.latest("run") == 1


def test_oldest_steps_are_dropped(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "3",
        "3.sha256.json",
        "4",
        "4.sha256.json",
    ]


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "add", "manifest"])
def test_damaged_newest_step_is_reported_and_the_one_before_used(
    tmp_path, caplog, harm
):
    save(tmp_path, 1)
    save(tmp_path, 2)
    victim = some_file(tmp_path, 2)
    data = bytearray(victim.read_bytes())
    if harm == "truncate":
        victim.write_bytes(data[: len(data) // 2])
    elif harm == "flip":
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    elif harm == "remove":
        victim.unlink()
    elif harm == "add":
        (victim.parent / "stranger").write_text("x")
    else:
        (tmp_path / "2.sha256.json").write_text("[")
    step, state, _ = checkpoint.restore(tmp_path, target)
    assert step == 1 and state.round_number == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{tmp_path / '2'} cannot be used" in caplog.text


def test_damaged_step_is_written_anew_and_intact_step_left_alone(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    before = (tmp_path / "1.sha256.json").stat().st_mtime_ns
    some_file(tmp_path, 2).write_bytes(b"")
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert checkpoint.latest(tmp_path) == 2
    assert (tmp_path / "1.sha256.json").stat().st_mtime_ns == before


def test_all_steps_damaged_is_said_and_restores_to_none(tmp_path, caplog):
    save(tmp_path, 1)
    (tmp_path / "1.sha256.json").unlink()
    assert checkpoint.restore(tmp_path, target) is None
    assert "its save was not finished" in caplog.text
    assert "starts from its beginning" in caplog.text


def test_target_of_another_shape_is_an_error_and_no_older_step_is_tried(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    with pytest.raises(ValueError, match=r"holds bfloat16\[3,4\] at .*stem"):
        checkpoint.restore(
            tmp_path, lambda spec: jax.eval_shape(lambda: make_state(5, 0))
        )
    with pytest.raises(ValueError, match="holds .* but the target"):
        checkpoint.restore(tmp_path, lambda spec: {"other": np.zeros(3)})


def test_tree_without_arrays_is_saved(tmp_path):
    checkpoint.save(tmp_path, 0, {"nothing": ()}, spec={"done": True})
    assert checkpoint.restore(tmp_path, lambda spec: {"nothing": ()}) == (
        0,
        {"nothing": ()},
        {"done": True},
    )


def test_full_disk_is_one_error_and_the_last_good_step_stays(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(directory, step, arrays, record):
        (directory / f"{step}.orbax-checkpoint-tmp").mkdir()
        raise ValueError("RESOURCE_EXHAUSTED: [OS error 28: No space left on device]")

    monkeypatch.setattr(checkpoint, "_write_step", full)
    with pytest.raises(checkpoint.DiskFullError, match="no room on the disk") as caught:
        save(tmp_path, 2)
    assert "\n" not in str(caught.value)
    assert checkpoint.latest(tmp_path) == 1
    assert not list(tmp_path.glob("*tmp*"))


def test_other_errors_of_a_save_are_not_called_a_full_disk(tmp_path, monkeypatch):
    def denied(*_):
        raise OSError(errno.EACCES, "denied")

    monkeypatch.setattr(checkpoint, "_write_step", denied)
    with pytest.raises(OSError, match="denied") as caught:
        save(tmp_path, 1)
    assert not isinstance(caught.value, checkpoint.DiskFullError)


def test_kill_in_mid_save_leaves_the_step_before(tmp_path):
    # The child dies by SIGKILL at each of the two seams of a save: inside orbax's, and
    # between its commit and the manifest.
    program = """
        import os, signal, sys
        import numpy as np
        from fuprune.run import checkpoint

        where, directory = sys.argv[1:]
        tree = {"a": np.arange(5)}
        checkpoint.save(directory, 1, tree, spec={})

        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        if where == "orbax":
            import orbax.checkpoint as ocp

            ocp.JsonCheckpointHandler.finalize = die
            ocp.StandardCheckpointHandler.finalize = die
        else:
            checkpoint._write_manifest = die
        checkpoint.save(directory, 2, tree, spec={})
    """
    for where in ("orbax", "manifest"):
        directory = tmp_path / where
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), where, directory],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        assert child.returncode == -signal.SIGKILL
        assert len(list(directory.iterdir())) > 2, "the child died before it saved"
        step, tree, _ = checkpoint.restore(directory, lambda _: {"a": np.arange(5)})
        assert step == 1 and tree["a"].tolist() == [0, 1, 2, 3, 4]
        checkpoint.save(directory, 2, tree, spec={})
        assert checkpoint.latest(directory) == 2
        assert len(list(directory.iterdir())) == 4, "leftovers of the killed save"


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
    assert zoo.spec(loaded) == zoo.spec(model)
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
