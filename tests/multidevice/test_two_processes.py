"""Two processes of two devices each, over gloo on loopback, against one process."""

import json

import chex
import numpy as np
import pytest

from fuprune.data.federated import federate
from tests.multidevice import rounds
from tests.multidevice.starting import ends, free_port, start


def run_pair(folder, **extra):
    """Both workers' facts and results."""
    coordinator = "" if extra else f"127.0.0.1:{free_port()}"
    workers = []
    for i in range(2):
        mine = {key: str(value).format(i=i) for key, value in extra.items()}
        output = folder / f"worker{i}"
        arguments = ["-m", "tests.multidevice.worker", coordinator, i, output]
        workers.append(start(arguments, **mine))
    for code, output in ends(workers):
        assert code == 0, output[-3000:]
    facts = [json.loads((folder / f"worker{i}.json").read_text()) for i in range(2)]
    return facts, [dict(np.load(folder / f"worker{i}.npz")) for i in range(2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return run_pair(tmp_path_factory.mktemp("pair"))


def test_two_processes_compute_what_one_does(pair):
    """FedAvg, FedSGD, capture statistics, Fisher sums and evaluation."""
    expected = rounds.everything(
        federate(rounds.train_set(), rounds.parts()), backend="map"
    )
    # What each holds of the state is equal, not only close.
    chex.assert_trees_all_equal(*pair[1])
    for results in pair[1]:
        assert results.keys() - expected.keys() == {"whole"}
        for name, value in expected.items():
            np.testing.assert_allclose(
                results[name], value, rtol=2e-4, atol=2e-5, err_msg=name
            )


def test_each_process_holds_only_its_own_clients_images(pair):
    facts, _ = pair
    assert [fact["devices"] for fact in facts] == [4, 4]
    assert all(fact["labels_everywhere"] for fact in facts)
    held = [set(fact["images_held"]) for fact in facts]
    assert held[0] | held[1] == set(range(90))
    assert not held[0] & held[1] and all(held)
    for fact in facts:
        assert fact["rows_held"] == fact["global_rows"] // 2
    for part in map(set, rounds.parts()):
        assert part <= held[0] or part <= held[1]


def test_a_pool_that_every_process_holds_trains_the_same(pair):
    """No exchange of images, and the same weights."""
    facts, results = pair
    assert [fact["whole_rows"] for fact in facts] == [90, 90]
    (name,) = (
        name
        for name in results[0]
        if all(part in name for part in ("fed_avg", "params", "conv1'", "kernel"))
    )
    np.testing.assert_allclose(
        results[0]["whole"], results[0][name], rtol=2e-4, atol=2e-5
    )


LAUNCHERS = {
    "srun": dict(
        SLURM_JOB_ID=free_port() % 4096,
        SLURM_STEP_NODELIST="127.0.0.1",
        SLURM_NTASKS=2,
        SLURM_PROCID="{i}",
        SLURM_LOCALID="{i}",
        SLURM_STEP_NUM_NODES=1,
    ),
    "mpirun": dict(
        OMPI_MCA_orte_hnp_uri=f"{4096 * (free_port() % 4096)}.0;tcp://127.0.0.1:4000",
        OMPI_COMM_WORLD_SIZE=2,
        OMPI_COMM_WORLD_RANK="{i}",
        OMPI_COMM_WORLD_LOCAL_RANK="{i}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_is_found_by_the_variables_that_it_sets(tmp_path, launcher):
    facts, _ = run_pair(tmp_path, **LAUNCHERS[launcher])
    assert [fact["process"] for fact in facts] == [0, 1]
