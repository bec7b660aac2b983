"""What a stranger gets: the wheel, installed outside the repository, and what it does.

Dependencies come from the environment of the tests; of fuprune itself nothing does.
"""

import os
import subprocess
import sys
import tarfile

import pytest

import fuprune
from tests.integration.command import SMALL

ONE_ROUND = (
    "--config.model.name=resnet8",
    "--config.train.rounds=1",
    "--config.fine_tune.rounds=1",
    "--config.fine_tune.schedule=constant",
)

# Runs whose models the source archive has: those that configs and the README load.
ARCHIVED_MODELS = {
    "cifar10_resnet20_raw",
    "cifar10_resnet20_class9",
    "cifar10_resnet20_class9_retrained",
}


class Installed:
    """A wheel in a folder of its own, and an empty folder to work in."""

    def __init__(self, site, home):
        self.site, self.home = site, home

    def run(self, *command):
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.home,
            env={**os.environ, "PYTHONPATH": str(self.site), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=500,
        )

    def fuprune(self, *arguments):
        """The installed script."""
        return self.run(str(self.site / "bin" / "fuprune"), *arguments)


def build(folder, repository, kind):
    """Builds with what is installed, without a network."""
    command = ["-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(
        [sys.executable, *command, str(repository)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(tmp_path_factory, pytestconfig):
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build(folder / "dist", pytestconfig.rootpath, "wheel")
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    target = ["--target", str(folder / "site"), str(wheel)]
    subprocess.run([sys.executable, *command, *target], check=True)
    (folder / "home").mkdir()
    return Installed(folder / "site", folder / "home")


def test_package_is_the_installed_one_and_whole(installed):
    done = installed.run("-c", "import fuprune; print(fuprune.__file__)")
    assert done.stdout.startswith(str(installed.site)), done.stderr
    inside = installed.site / "fuprune"
    for name in ("py.typed", "__init__.pyi", "report/page.css"):
        assert (inside / name).is_file(), name
    assert list(inside.glob("kernels/*.cc"))
    assert not (installed.site / "tests").exists()


def test_version_and_help(installed):
    assert installed.fuprune("--version").stdout == f"fuprune {fuprune.__version__}\n"
    text = installed.run("-m", "fuprune.main", "--help").stdout
    text = installed.run("-m", "fuprune.main", "--help").stdout
    assert "  train.rounds = 20 " in text and "prune: " in text


def test_shipped_configs_are_found_and_checked(installed, repository):
    source = (
        "from fuprune import config\n"
        "for name, path in config.shipped_configs().items():\n"
        "    assert '_configs' in str(path)\n"
        "    config.validate(config.load_config(name)[1])\n"
        "    print(name)\n"
    )
    done = installed.run("-c", source)
    names = {path.stem for path in (repository / "configs").glob("*.py")}
    assert set(done.stdout.split()) == names, done.stderr
    done = installed.fuprune("--config", "cifar11")
    assert "cifar10_resnet, " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_quickstart_runs_and_reports_in_an_empty_folder(installed):
    for name in ("a", "b"):
        done = installed.fuprune(*SMALL, *ONE_ROUND, "--workdir", f"runs/{name}")
        assert done.returncode == 0, done.stderr[-3000:]
    assert (installed.home / "runs" / "a" / "report").is_dir()
    done = installed.fuprune("report", "runs/a", "runs/b")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (installed.home / "runs" / "joined").is_dir()


def test_archives_are_fit_for_an_index_and_hold_what_the_tests_need(
    tmp_path, repository
):
    source = build(tmp_path / "dist", repository, "sdist")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = ("tests/conftest.py", "configs/quickstart.py", "docs/guide.md")
    wanted += ("launch/sweep.py", "benchmarks/README.md", "results/README.md")
    assert names >= {*wanted, "Makefile", "LICENSE", ".ci/run", "pyproject.toml"}
    models = {name.split("/")[1] for name in names if name.endswith(".safetensors")}
    assert models == ARCHIVED_MODELS
