"""Nothing in the package can turn a file into code, by what its source calls."""

import json
import pathlib
import subprocess
import sys

import fuprune

PACKAGE = pathlib.Path(fuprune.__file__).parent
# pickle, marshal, exec, eval, unsafe YAML, archives, shells, other programs.
RULES = "S102,S202,S301,S302,S307,S403,S404,S506,S602,S604,S605"
# A file handed to these becomes code, so each has one known place and reason.
KNOWN_PLACES = {
    "S404": {
        "kernels/build.py",  # the compiler
        "flower/launch.py",  # Flower's server and clients on this machine
        "run/provenance.py",  # git, for the commit
    },
    "import_module(": {
        "models/brought.py",  # a factory that the caller or the run's config names
        "unlearning/methods.py",  # this package's own functions, by its own table
    },
    "exec_module(": {"config.py"},  # a config file named on the command line
    "CDLL(": {"kernels/build.py"},  # the kernels' own library
    "__import__(": set(),
    "allow_pickle=True": set(),
    "cloudpickle": set(),
    "torch.load": set(),
}


def test_nothing_in_the_package_can_turn_a_file_into_code():
    command = ["ruff", "check", "--isolated", "--ignore-noqa", "--preview"]
    done = subprocess.run(
        [sys.executable, "-m", *command, f"--select={RULES}", "--output-format=json"],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
    )
    found = [
        (row["code"], pathlib.Path(row["filename"])) for row in json.loads(done.stdout)
    ]
    places = {(code, path.relative_to(PACKAGE).as_posix()) for code, path in found}
    for path in sorted(PACKAGE.rglob("*.py")):
        # The process itself is no file.
        text = path.read_text().replace("CDLL(None)", "")
        name = path.relative_to(PACKAGE).as_posix()
        places |= {(what, name) for what in KNOWN_PLACES if what in text}
    unknown = {x for x in places if x[1] not in KNOWN_PLACES.get(x[0], ())}
    assert found and unknown == set()
