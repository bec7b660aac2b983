"""Saved models from elsewhere: one to start from, and those that the audit reads.

They are loaded before anything is trained: a mistake must not cost the training.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuprune import config as configuration
from fuprune import results
from fuprune.audit.audit import is_reserved
from fuprune.config import ConfigError
from fuprune.errors import FupruneError
from fuprune.run import build
from fuprune.run.build import Model, Setup
from fuprune.run.store import Store


class Elsewhere(NamedTuple):
    """Models that other runs have trained."""

    raw: Model | None = None  # in place of the one that the run would train
    candidates: dict[str, Model] = {}  # those of audit.models, by name
    references: tuple[Model, ...] = ()  # the retrained ones of audit.reference


def from_elsewhere(
    setup: Setup, model, units: Sequence[build.UnlearnUnit], store: Store
) -> Elsewhere:
    """Loads what the steps that are left need; `model` is the run's own network."""
    config = setup.config

    def load(key: str, path) -> Model:
        found = build.load_model(setup, path)
        check_fit(key, path, found[0], model)
        return found

    raw = None
    if config.model.load and not store.is_finished("pretrain"):
        raw = load("model.load", config.model.load)
    if "audit" not in configuration.phases(config) or store.is_finished("audit"):
        return Elsewhere(raw)
    further = further_models(config)
    for name in further:
        if name in (unit.name for unit in units) or is_reserved(name):
            raise ConfigError(
                f"audit.models names a model {name!r}, as the run itself does; give it "
                "another name."
            )
    return Elsewhere(
        raw,
        {name: load("audit.models", path) for name, path in further.items()},
        tuple(load("audit.reference", path) for path in retrained_models(config)),
    )


def check_fit(key: str, path, model, wanted) -> None:
    """Refuses a saved model for other classes or images than the run's."""
    form, ours = ((m.num_classes, m.input_shape) for m in (model, wanted))
    if form != ours:
        raise ConfigError(
            f"{key} is {str(path)!r}, a model for {model.num_classes} classes of "
            f"{model.input_shape} images; allowed: one for the {wanted.num_classes} "
            f"classes of {wanted.input_shape} images of this run's data."
        )


def further_models(config) -> dict[str, Path]:
    """The saved models that audit.models names, by the name they get in the audit."""
    found: dict[str, Path] = {}
    for part in filter(None, config.audit.models.split(",")):
        name, _, place = part.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not place or name in found:
            raise ConfigError(
                f"audit.models is {config.audit.models!r}; allowed: name=place, with "
                "commas between and each name once, such as "
                "balanced=runs/b/models/class_pruning."
            )
        found[name] = Path(place)
    return found


def retrained_models(config) -> list[Path]:
    """The saved retrained models of the runs that audit.reference names."""
    found: list[Path] = []
    for place in filter(None, config.audit.reference.split(",")):
        try:
            stored = results.read_provenance(place).config
        except FupruneError as error:
            reason = f"which is no run's workdir ({error})"
            raise _no_reference(place, reason) from None
        theirs = _comparable(configuration.from_json(stored))
        for key, mine in _comparable(config).items():
            if mine != theirs[key]:
                reason = f"whose {key} is {theirs[key]}, but must be {mine}, as here"
                raise _no_reference(place, reason)
        # Not retrain_short, nor the stages of any other method.
        names = re.compile(r"retrain(_seed\d+)?(\.safetensors)?").fullmatch
        here = (p for p in (Path(place) / "models").glob("retrain*") if names(p.name))
        seeds = sorted(here, key=lambda path: int("0" + re.sub(r"\D", "", path.name)))
        if not seeds:
            reason = "where there is no retrained model; add retrain to its"
            raise _no_reference(place, f"{reason} unlearn.methods")
        found += seeds
    return found


def _no_reference(place: str, reason: str) -> ConfigError:
    return ConfigError(f"audit.reference names {place!r}, {reason}.")


def _comparable(config) -> dict[str, Any]:
    """What decides which images a run has and forgets, all but where they lie."""
    images = dataclasses.asdict(config.data)
    del images["dir"]
    return {
        "data": images,
        "unlearn.classes": configuration.classes(config),
        "unlearn.clients": configuration.read(config, "unlearn.clients"),
        "unlearn.examples": config.unlearn.examples,
        "audit.backdoor": config.audit.backdoor,
    }
