import time

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.options import ProbeOptions
from fuprune.audit.probe import Task, probe
from fuprune.run import machine
from fuprune.run.auditing import probing_beside


def make_task(seed: int) -> Task:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), 12)
    features = {
        layer: generator.normal(labels[:, None], 1.0, (48, width)).astype(np.float32)
        for layer, width in (("block/conv 1", 3), ("features", 8))
    }
    return Task(features, labels, (2,), ProbeOptions(draws=2), seed=5)


def test_other_process_finds_the_same_bits_and_fails_in_silence():
    tasks = {"raw": make_task(0), "class pruning": make_task(1)}
    wrong = make_task(0)._replace(labels=np.zeros(3, np.int32))
    with probing_beside() as begin:
        found = begin(tasks)()
        assert begin({"raw": wrong})() is None
    assert found is not None and list(found) == list(tasks)
    for name, task in tasks.items():
        expected = probe(task)
        assert found[name].placements.keys() == expected.placements.keys()
        for place, pair in expected.placements.items():
            for values, wanted in zip(found[name].placements[place], pair, strict=True):
                np.testing.assert_array_equal(values, wanted)
        np.testing.assert_array_equal(found[name].few_shot, expected.few_shot)


def test_a_compiled_function_takes_time_once():
    @jax.jit
    def function(x):
        return jnp.sin(x) @ jnp.cos(x.T)

    start, before = time.monotonic(), machine.program_seconds()
    jax.block_until_ready(function(jnp.ones((3, 3))))
    taken = machine.program_seconds() - before
    assert 0 < taken <= time.monotonic() - start
    jax.block_until_ready(function(jnp.ones((3, 3))))
    assert machine.program_seconds() - before == taken
