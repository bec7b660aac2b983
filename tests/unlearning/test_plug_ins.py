"""A package that declares a method under an entry point is found by name."""

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
"""
USE = """
import json, jax
from fuprune.config import KEYS
from fuprune.unlearning.methods import METHODS, select
from tests.unlearning.small import SmallNet, forget_by, initial, small_data

select("do_nothing")
assert "do_nothing.times" in KEYS
model = SmallNet()
result = forget_by("do_nothing", model, initial(model), small_data(), (1,), times=3)
try:
    forget_by("do_nothing", model, initial(model), small_data(), (1,), times=0)
except ValueError as error:
    print(json.dumps([dict(result.notes), str(error), list(METHODS)]))
"""


def install(site, name, code):
    (site / f"{name}.py").write_text(code)
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1")
    (about / "entry_points.txt").write_text(f"[fuprune.methods]\n{name} = {name}\n")


def test_an_installed_package_brings_a_method(repository, tmp_path):
    install(tmp_path, "idle_methods", METHOD)
    install(tmp_path, "broken_methods", "import something_that_is_not_there")
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
    assert refusal.startswith("do_nothing.times is 0; allowed: 1 or more")
    assert "broken_methods cannot be used: ModuleNotFoundError" in done.stderr
