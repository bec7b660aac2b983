import numpy as np

from fuprune.audit.options import ProbeOptions
from fuprune.audit.probe import Task, probe
from fuprune.run.probe_process import ProbeProcess


def make_task(seed: int) -> Task:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), 12)
    features = {
        layer: generator.normal(labels[:, None], 1.0, (48, width)).astype(np.float32)
        for layer, width in (("block/conv 1", 3), ("features", 8))
    }
    return Task(features, labels, (2,), ProbeOptions(draws=2), seed=5)


def test_other_process_finds_the_same_bits():
    tasks = {"raw": make_task(0), "class pruning": make_task(1)}
    with ProbeProcess() as process:
        found = process.begin(tasks)()
    assert found is not None and list(found) == list(tasks)
    for name, task in tasks.items():
        expected = probe(task)
        assert found[name].placements.keys() == expected.placements.keys()
        for place, pair in expected.placements.items():
            for values, wanted in zip(found[name].placements[place], pair, strict=True):
                np.testing.assert_array_equal(values, wanted)
        np.testing.assert_array_equal(found[name].few_shot, expected.few_shot)


def test_process_that_fails_answers_nothing():
    with ProbeProcess() as process:
        wrong = make_task(0)._replace(labels=np.zeros(3, np.int32))
        assert process.begin({"raw": wrong})() is None


def test_process_that_nobody_asks_ends():
    with ProbeProcess() as process:
        pass
    assert process._process.returncode is not None
