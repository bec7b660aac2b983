"""Processes that do not fit together: one clear line on each, and no hang."""

import jax
import pytest

from fuprune.run import processes
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
        ("", 2, 0),
        ("host:1", 0, 0),
        ("host:1", 2, -1),
        ("host", 2, 0),
        ("host:http", 2, 0),
        ("host:70000", 2, 0),
        ("host:1", 2, 2),
        ("host:1", -3, 0),
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


@pytest.mark.slow
def test_process_counts_that_differ(tmp_path):
    """Process 0 counts two, the others three: none of them waits for ever."""
    port = free_port()
    results = ends(
        [
            start_main(tmp_path / "a", *SMALL, *flags(port, number, i))
            for i, number in ((0, 2), (1, 3), (2, 3))
        ],
        timeout=300,
    )
    assert all(code != 0 for code, _ in results)


def test_configs_that_differ(tmp_path):
    """Every process says which keys."""
    port = free_port()
    results = ends(
        [
            start_main(tmp_path, *SMALL, f"--config.seed={i}", *flags(port, 2, i))
            for i in range(2)
        ],
        timeout=180,
    )
    for code, output in results:
        assert code == 2, output
        (line,) = errors(output)
        assert "the 2 processes have different configs: they differ in seed;" in line


def test_more_devices_than_clients_and_backends_of_one_process(tmp_path):
    """Two runs at once: four devices for three clients, and a host loop."""
    runs = [
        (free_port(), ("--config.train.cohort=3", "--config.runtime.devices=2")),
        (free_port(), ("--config.runtime.backend=loop",)),
    ]
    results = ends(
        [
            start_main(tmp_path / str(port), *SMALL, *extra, *flags(port, 2, i))
            for port, extra in runs
            for i in range(2)
        ],
        timeout=240,
    )
    for code, output in results[:2]:
        assert code == 2, output
        (line,) = errors(output)
        assert "the mesh has 4 devices, but train.cohort is 3 clients" in line
    for code, output in results[2:]:
        assert code == 2, output
        (line,) = errors(output)
        assert "runtime.backend is loop with 2 processes" in line


def test_workdirs_that_are_not_shared(tmp_path):
    """Each process writes elsewhere, as on hosts without a common filesystem."""
    port = free_port()
    results = ends(
        [start_main(tmp_path / str(i), *SMALL, *flags(port, 2, i)) for i in range(2)],
        timeout=240,
    )
    for code, output in results:
        assert code == 2, output
        (line,) = errors(output)
        assert "process 1 does not see" in line
        assert "a filesystem that all processes share" in line
