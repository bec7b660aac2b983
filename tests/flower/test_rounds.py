"""One algorithm, two transports: rounds and cuts equal the simulator's."""

import chex
import jax
import numpy as np
import pytest

from fuprune.data.federated import whole_cohort
from fuprune.flower.settings import read_config
from fuprune.run import assembly
from fuprune.run.machine import Runtime
from fuprune.unlearning.activations import collect, merge_activations
from fuprune.unlearning.class_pruning import server_proc
from tests.flower.small import CONFIG, FakeGrid, federation, remote, small_model

RATE = 0.1


def both(config_text, tmp_path):
    """The simulator's algorithm and data, and the same with clients behind a grid."""
    config = read_config(config_text)
    local = federation(config)
    model = small_model()
    clients, stand_in = remote(
        FakeGrid(tmp_path, config_text), config, learning_rate=RATE
    )
    schedule = assembly.Schedule(2, RATE)
    made = [
        assembly.make_algorithm(
            config, model, local._replace(data=data), runtime, schedule
        )
        for data, runtime in (
            (local.data, Runtime(None, "loop", "xla", 0, 1)),
            (stand_in, Runtime(None, clients, "xla", 0, 1)),
        )
    ]
    variables = assembly.initial_variables(model, jax.random.key(1))
    return made, (local.data, stand_in), variables, model, clients


@pytest.mark.parametrize(
    "options",
    [
        "train.algorithm=fed_avg",
        # Of two batches per client and epoch, the first.
        "train.algorithm=fed_avg train.local_epochs=2 train.local_steps=1",
        pytest.param(
            "train.algorithm=fed_sgd train.bn=recalibrate train.batch_size=0",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train.algorithm=fed_avg train.bn=local train.augment=True",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train.algorithm=fed_sgd train.aggregation=median", marks=pytest.mark.slow
        ),
    ],
)
def test_a_round_equals_the_simulators(options, tmp_path):
    algorithms, pools, variables, _, _ = both(f"{CONFIG} {options}", tmp_path)
    ends = []
    for algorithm, data in zip(algorithms, pools, strict=True):
        state = algorithm.init(variables)
        for number in range(2):
            key = jax.random.fold_in(jax.random.key(7), number)
            state, info = algorithm.round(state, whole_cohort(data), key)
        assert info.participants == 3 and not np.any(info.rejected)
        ends.append((state, info.loss, info.examples, info.seen))
    chex.assert_trees_all_close(*ends, atol=1e-5)


def test_a_cut_equals_the_simulators(tmp_path):
    _, (data, stand_in), variables, model, clients = both(CONFIG, tmp_path)
    config = read_config(CONFIG)
    prepare = federation(config).prepare
    plans = []
    for pool, backend in ((data, "loop"), (stand_in, clients)):
        collected = collect(
            model,
            variables,
            whole_cohort(pool),
            num_classes=10,
            preprocess=prepare,
            backend=backend,
        )
        assert collected.clients == [0, 1, 2] and not collected.rejected
        plans.append((merge_activations(collected.uploads), collected))
    chex.assert_trees_all_close(plans[0][0], plans[1][0], atol=1e-5)
    first, second = (server_proc(a, 3, 0.3).plan.keep for a, _ in plans)
    chex.assert_trees_all_equal(first, second)
