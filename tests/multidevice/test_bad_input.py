"""Processes that do not fit together: one clear line on each, and no hang."""

import jax
import pytest

from fuprune.run import machine, processes
from fuprune.run.processes import RuntimeSetupError, check_flags
from tests.multidevice.starting import SMALL, ends, errors, free_port, start_main


def flags(port, number, process_id):
    return (
        f"--coordinator=127.0.0.1:{port}",
        f"--num_processes={number}",
        f"--process_id={process_id}",
    )


@pytest.mark.parametrize(
    "given",
    [
        *(("", 2, 0), ("host:1", 0, 0), ("host:1", 2, -1), ("host", 2, 0)),
        *(("host:http", 2, 0), ("host:70000", 2, 0), ("host:1", 2, 2)),
    ],
)
def test_flags_that_do_not_fit(given):
    with pytest.raises(RuntimeSetupError, match="allowed: host:port of process 0, the"):
        check_flags(*given)


def test_no_flags_and_all_flags_are_fine():
    check_flags("", 0, -1)
    check_flags("[::1]:1234", 2, 1)


def test_one_process_needs_nothing():
    """Every question about the others has its answer at once."""
    assert processes.gather("text") == ["text"]
    assert processes.any_process(True) and not processes.any_process(False)
    processes.check_same_config({"a": 1})
    processes.leave(2)


@pytest.mark.parametrize(
    "launcher",
    [
        {},
        {"SLURM_NTASKS": "4"},  # inside sbatch, but not under srun
        {"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1"},
    ],
)
def test_a_process_that_nobody_started_with_others_is_alone(monkeypatch, launcher):
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert not processes.join()
    assert not jax.distributed.is_initialized()


def test_nobody_comes(tmp_path):
    """A process without a coordinator, and a coordinator without the other process."""
    short = "--config.runtime.join_seconds=4"
    results = ends(
        [
            start_main(tmp_path / "a", *SMALL, short, *flags(free_port(), 2, 1)),
            start_main(tmp_path / "b", *SMALL, short, *flags(free_port(), 2, 0)),
        ],
        timeout=180,
    )
    for number, (code, output) in zip((1, 0), results, strict=True):
        assert code == 2, output
        (line,) = errors(output)
        assert f"process {number} of 2 waited 4 s for all to meet at" in line
        assert "127.0.0.1" in line and "is process 0 running there" in line


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("seed", "the 2 processes have different configs: they differ in seed;"),
        ("workdir", "process 1 does not see"),
    ],
)
def test_what_differs_ends_both_processes_with_the_same_line(tmp_path, what, said):
    port = free_port()
    results = ends(
        [
            start_main(
                tmp_path / (str(i) if what == "workdir" else "both"),
                *SMALL,
                f"--config.seed={i if what == 'seed' else 0}",
                *flags(port, 2, i),
            )
            for i in range(2)
        ],
        timeout=240,
    )
    for code, output in results:
        assert code == 2, output
        (line,) = errors(output)
        assert said in line


def test_devices_and_backends_that_do_not_fit_are_refused(monkeypatch):
    options = dict(conv="xla", compilation_cache="", cohort=3)
    message = "the mesh has 8 devices, but train.cohort is 3 clients.*at most 3 dev"
    with pytest.raises(RuntimeSetupError, match=message):
        machine.start(backend="shard_map", devices=8, **options)
    monkeypatch.setattr(processes, "join", lambda *_, **__: True)
    with pytest.raises(RuntimeSetupError, match="runtime.backend is loop with"):
        machine.start(backend="loop", **options)
