"""Where a run's numbers come from: config, versions and commit, in config.json.

The same file guards a workdir: a run with another config is refused there.
"""

import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fuprune import __version__
from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.errors import FupruneError
from fuprune.run.ledger import read_json


def describe_run(config) -> dict[str, Any]:
    """Everything needed to know, and repeat, what a run did."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    versions["fuprune"] = __version__
    return {
        "config": configuration.to_json(config),
        "versions": {**versions, "python": platform.python_version()},
        "commit": _commit(),
        "command": ["python", "-m", "fuprune.main", *sys.argv[1:]],
        "platform": f"{jax.default_backend()}, {jax.device_count()} device(s)",
    }


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            [git, "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def refuse_other_config(stored: Path, config) -> None:
    """Raise if `stored` is the record of a run with another config."""
    old = read_json(stored)
    if not isinstance(old, dict) or not isinstance(old.get("config"), dict):
        raise FupruneError(
            f"{stored} is not the record of a run; choose another --workdir."
        )
    keys = configuration.difference(old["config"], configuration.to_json(config))
    if keys:
        raise ConfigError(
            f"the workdir {stored.parent} holds a run with another value of "
            f"{', '.join(keys)}; choose another --workdir, or delete it."
        )
