"""What made a run, in config.json, and what a later start of it may change.

A run may be started several times in one workdir, and every start is recorded. What
would change a result that is there is refused; what only adds to the run, such as an
audit or a method, replaces the first start's config and command.
"""

import dataclasses
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fuprune import __version__, results
from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.results import Provenance, Start
from fuprune.run.build import unlearn_units
from fuprune.run.store import Store


def of_this_start(config, command: Sequence[str]) -> Provenance:
    """Everything needed to know, and repeat, what this start of a run does."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    versions |= {"fuprune": __version__, "python": platform.python_version()}
    start = Start(
        versions,
        _commit(),
        list(command),
        f"{jax.default_backend()}, {jax.device_count()} device(s)",
    )
    values = configuration.to_json(config)
    return Provenance(**vars(start), config=values, starts=[start])


def of_run(config, store: Store, command: Sequence[str]) -> Provenance:
    """What made the run: its first start, what the present one adds, and all starts."""
    present = of_this_start(config, command)
    if not (store.workdir / "config.json").exists():
        return present
    first = results.read_provenance(store.workdir)
    first = dataclasses.replace(first, starts=[*first.starts, *present.starts])
    begun = configuration.from_json(first.config)
    before, now = (set(configuration.phases(c)) for c in (begun, config))
    # What would change a result that is there was refused; these parts may differ.
    repeats = before <= now
    added = ("unlearn", "fine_tune", *(("audit", "phases") if repeats else ()))
    stored = first.config | {name: present.config[name] for name in added}
    if stored == first.config:
        return first
    command = present.command if repeats else first.command
    return dataclasses.replace(first, config=stored, command=command)


def refuse_other_config(store: Store, config: Any) -> bool:
    """Whether the config adds methods or seeds to the run that the workdir holds.

    As long as there is no audit, what only the audit reads may change, too; any other
    key with another value is a ConfigError.
    """
    workdir = store.workdir
    if not (workdir / "config.json").exists():
        return False
    stored = results.read_provenance(workdir).config
    keys = configuration.difference(stored, configuration.to_json(config))
    if not store.is_finished("audit"):
        keys = [key for key in keys if not configuration.is_of_audit_alone(key)]
    begun = configuration.from_json(stored)
    units, before = set(unlearn_units(config)), set(unlearn_units(begun))
    if before <= units:
        keys = [key for key in keys if key not in _UNITS]
    if not keys:
        return before < units
    raw = store.model("raw")
    way_out = "choose another --workdir, or delete it"
    if raw.exists():
        way_out += f"; --config.model.load={raw} starts another run from its model"
    raise ConfigError(
        f"the workdir {workdir} holds a run with another value of "
        f"{', '.join(keys)}; {way_out}."
    )


# Keys that say which methods run, with which seeds.
_UNITS = ("unlearn.methods", "unlearn.method", "unlearn.retrain_seeds")
_UNITS += ("unlearn.retrain_first", "fine_tune.seeds", "fine_tune.seeded")


def _commit() -> str:
    """Of the code; "" if git does not know."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
