"""A package that declares parts under entry points is found by name."""

import json
import os
import subprocess
import sys

METHOD = """
from fuprune.options import option, options
from fuprune.unlearning.method import method

@options
class Options:
    times: int = option(2, "how often nothing is done", ge=1)

@method("do_nothing", serves=("classes", "clients"), options=Options)
def do_nothing(job, o):
    return job.recover(job.variables, notes={"times": o.times})

def mean_activation(a, target):
    return a[target]

def make_network(num_classes, input_shape):
    import flax.linen as nn
    return nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(num_classes)])

def make_dataset():
    import numpy as np
    from fuprune.data.dataset import from_arrays
    images, labels = np.zeros((8, 6, 6, 1), np.uint8), np.arange(8) % 4
    return from_arrays(images, labels, test_images=images, test_labels=labels)
"""
ENTRY_POINTS = """
[fuprune.methods]
do_nothing = idle
broken = idle.that_is_not_there
[fuprune.scores]
mean_activation = idle:mean_activation
[fuprune.networks]
idle_net = idle:make_network
[fuprune.datasets]
idle_data = idle:make_dataset
"""
USE = """
import json, jax
from fuprune.config import KEYS, default, update
from fuprune.data.sources import class_names
from fuprune.run.build import factory
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.scores import SCORES
from tests.unlearning.small import SmallNet, forget_by, initial, small_data

assert "do_nothing.times" in KEYS and "mean_activation" in SCORES
config = default()
update(config, {"model.name": "idle_net", "data.name": "idle_data"})
assert factory(config) == "idle:make_network" and len(class_names("idle_data")) == 4
given = SmallNet(), initial(SmallNet()), small_data(), (1,)
result = forget_by("do_nothing", *given, times=3)
cut = forget_by("class_pruning", *given, rate=0.3, score="mean_activation")
assert len(cut.notes["cuts"][0]["cut"]["conv2"]) > 0
try:
    forget_by("do_nothing", *given, times=0)
except ValueError as error:
    print(json.dumps([dict(result.notes), str(error), list(METHODS)]))
"""


def test_an_installed_package_brings_a_method_and_a_score(repository, tmp_path):
    """Installed is a package whose folder on the path has its metadata beside it."""
    (tmp_path / "idle.py").write_text(METHOD)
    facts = tmp_path / "idle-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: idle\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(tmp_path), str(repository)])
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    notes, refusal, names = json.loads(done.stdout)
    assert notes == {"times": 3} and "do_nothing" in names and "retrain" in names
    assert refusal.startswith("do_nothing.times is 0; allowed: ")
    assert "idle.that_is_not_there cannot be used: ModuleNotFoundError" in done.stderr
