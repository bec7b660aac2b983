"""One algorithm, two transports: rounds and cuts equal the simulator's."""

import chex
import jax
import numpy as np
import pytest

from fuprune.data.federated import whole_cohort
from fuprune.errors import InputError
from fuprune.flower.settings import read_config
from fuprune.run import build
from fuprune.surgery import compact, layer_names, make_plan
from fuprune.unlearning.activations import collect, merge_activations
from fuprune.unlearning.class_pruning import server_proc
from tests.flower.small import (
    CONFIG,
    FakeGrid,
    federation,
    make_setting,
    remote,
    small_model,
)

RATE = 0.1


def both(config_text, tmp_path, objective=None):
    """The simulator's algorithm and data, and the same with clients behind a grid."""
    config, local, model, variables = make_setting(config_text)
    clients, stand_in = remote(FakeGrid(tmp_path, config_text), config)
    schedule = build.Schedule(2, RATE)
    made = [
        build.make_algorithm(
            build.Setup(config, local._replace(data=data), backend),
            model,
            schedule,
            objective=objective,
        )
        for data, backend in ((local.data, "loop"), (stand_in, clients))
    ]
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
    chex.assert_trees_all_close(*two_rounds(algorithms, pools, variables), atol=1e-5)


@pytest.mark.parametrize(
    "algorithm", ["fed_avg", pytest.param("fed_sgd", marks=pytest.mark.slow)]
)
def test_a_teacher_travels_with_the_model(algorithm, tmp_path):
    text = (
        f"{CONFIG} train.algorithm={algorithm} fine_tune.distill_weight=0.9 "
        "fine_tune.distill_temperature=2"
    )
    # Not the student's own network: one that was cut before.
    whole = small_model()
    fresh = build.initial_variables(whole, jax.random.key(3))
    layer = layer_names(whole)[0]
    plan = make_plan({layer: np.arange(16.0)}, 0.25)
    teacher, variables = compact(whole, fresh, plan)
    masked = (3, 7)
    objective = build.fine_tune_objective(read_config(text), teacher, variables, masked)
    taught = both(text, tmp_path / "taught", objective)
    ends = two_rounds(*taught[:3])
    chex.assert_trees_all_close(*ends, atol=1e-5)
    alone = two_rounds(*both(text, tmp_path / "alone")[:3])
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ends[1], alone[1], atol=1e-3)
    with pytest.raises(InputError, match="no other than a teacher"):
        both(text, tmp_path / "untold", objective._replace(task=None))


def two_rounds(algorithms, pools, variables):
    """State and measures after two rounds of each algorithm, with the same keys."""
    ends = []
    for algorithm, data in zip(algorithms, pools, strict=True):
        state = algorithm.init(variables)
        for number in range(2):
            key = jax.random.fold_in(jax.random.key(7), number)
            state, info = algorithm.round(state, whole_cohort(data), key)
        assert info.participants == 3 and not np.any(info.rejected)
        ends.append((state, info.loss, info.examples, info.seen))
    return ends


def test_a_cut_equals_the_simulators(tmp_path):
    _, (data, stand_in), variables, model, clients = both(CONFIG, tmp_path)
    config = read_config(CONFIG)
    prepare = federation(config).prepare
    found = [
        collect(
            model,
            variables,
            whole_cohort(pool),
            num_classes=10,
            preprocess=prepare,
            backend=backend,
        )
        for pool, backend in ((data, "loop"), (stand_in, clients))
    ]
    assert all(one.clients == [0, 1, 2] and not one.rejected for one in found)
    first, second = (merge_activations(one.uploads) for one in found)
    chex.assert_trees_all_close(first, second, atol=1e-5)
    plans = [server_proc(one, 3, 0.3).plan.keep for one in (first, second)]
    chex.assert_trees_all_equal(*plans)
