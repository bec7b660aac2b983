"""Saved models: those of the run itself, and those of other runs in its audit.

What `audit.reference` and `audit.models` name is checked before anything is trained: a
mistake in it must not cost the training.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune import config as configuration
from fuprune import results
from fuprune.audit.measurements import is_reserved
from fuprune.config import ConfigError
from fuprune.errors import FupruneError
from fuprune.run import assembly, checkpoint
from fuprune.run.training import Run
from fuprune.unlearning.head import head_name

Model = tuple[Any, Any]  # a Flax module and its variables


def load_saved(this: Run, name: str, phase: str) -> Model:
    """A model that the run itself saved, in an earlier phase."""
    path = this.workdir / "models" / name
    if not path.exists():
        raise ConfigError(
            f"phases is {this.config.phases!r}, but there is no model {path}; add "
            f"{phase} to phases."
        )
    return _load(this, path)


def adopt(this: Run, path: str, wanted) -> Model:
    """A model trained elsewhere, in place of the one `wanted` would become."""
    model, variables = _load(this, path)
    check_fit("model.load", path, model, wanted)
    return model, variables


def candidates(this: Run, names: Sequence[str]) -> dict[str, Model]:
    """The models to audit: the run's own by name, and those of audit.models."""
    own = {name: load_saved(this, name, "unlearn") for name in names}
    further = further_models(this.config)
    return {**own, **{name: _load(this, path) for name, path in further.items()}}


def references(this: Run, names: Sequence[str]) -> list[Model]:
    """Retrained models to compare with, the run's own by name first."""
    found = [load_saved(this, name, "unlearn") for name in names]
    found += [_load(this, path) for path in retrained_models(this.config)]
    # 0 takes all of them.
    return found[: this.config.audit.retrained or None]


def head_option(model, variables) -> dict[str, str]:
    """The option of methods that names the last layer, if the network has one."""
    images = jax.ShapeDtypeStruct((2, *model.input_shape), np.float32)
    name = head_name(model, variables, images)
    return {} if name is None else {"head": name}


def _load(this: Run, path) -> Model:
    return checkpoint.load(
        path,
        conv=this.runtime.conv,
        dtype=assembly.compute_dtype(this.config),
        factory=assembly.factory(this.config),
    )


def check(config, model, candidates) -> None:
    """Refuses what the audit could not use beside the run's own network and models.

    Raises:
      ConfigError: a model is missing, is for other data, or has a name that is taken.
    """
    further = further_models(config)
    places = [("audit.reference", folder) for folder in retrained_models(config)]
    places += [("audit.models", folder) for folder in further.values()]
    for key, folder in places:
        saved, _ = checkpoint.load(folder, factory=assembly.factory(config))
        check_fit(key, folder, saved, model)
    for name in further:
        if name in candidates or is_reserved(name):
            raise ConfigError(
                f"audit.models names a model {name!r}, as the run itself does; give it "
                "another name."
            )


def check_fit(key: str, path, model, wanted) -> None:
    """Refuses a saved model for other classes or images than the run's.

    Raises:
      ConfigError: it says what the model is for, and what was wanted.
    """
    form, ours = ((m.num_classes, m.input_shape) for m in (model, wanted))
    if form != ours:
        raise ConfigError(
            f"{key} is {str(path)!r}, a model for {model.num_classes} classes of "
            f"{model.input_shape} images; allowed: one for the {wanted.num_classes} "
            f"classes of {wanted.input_shape} images of this run's data."
        )


def further_models(config) -> dict[str, Path]:
    """The saved models that audit.models names, by the name they get in the audit.

    Raises:
      ConfigError: if it is no list of `name=place`, or there is no model in a place.
    """
    found: dict[str, Path] = {}
    for part in filter(None, config.audit.models.split(",")):
        name, _, place = part.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not place or name in found:
            raise ConfigError(
                f"audit.models is {config.audit.models!r}; allowed: name=place, with "
                "commas between and each name once, such as "
                "balanced=runs/b/models/class_pruning."
            )
        if not checkpoint.model_file(place).is_file():
            raise ConfigError(
                f"audit.models names {place!r}, where there is no saved model; give a "
                f"folder with {checkpoint.MODEL_FILE}, such as runs/b/models/retrain, "
                "or such a file."
            )
        found[name] = Path(place)
    return found


def retrained_models(config) -> list[Path]:
    """The saved retrained models of the runs that audit.reference names, if any.

    Raises:
      ConfigError: if one is no run, forgets other classes or has other data, or has no
        retrained model.
    """
    places = filter(None, config.audit.reference.split(","))
    return [path for place in places for path in _retrained_by(config, place)]


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


def _retrained_by(config, place: str) -> list[Path]:
    """The retrained models of one run, in its workdir or among published results."""
    try:
        stored = results.read_provenance(place)
    except FupruneError as error:
        raise ConfigError(
            f"audit.reference names {place!r}, which is no run's workdir ({error}); "
            "allowed: one with retrained models, or nothing."
        ) from None
    other = _comparable(configuration.from_json(stored.config))
    for key, mine in _comparable(config).items():
        theirs = other[key]
        if mine != theirs:
            raise ConfigError(
                f"audit.reference names {place!r}, whose {key} is {theirs}, but must "
                f"be {mine}, as here."
            )
    # Not retrain_short, nor the stages of any other method.
    found = [
        path
        for path in (Path(place) / "models").glob("retrain*")
        if re.fullmatch(r"retrain(_seed\d+)?(\.safetensors)?", path.name)
    ]
    if not found:
        raise ConfigError(
            f"audit.reference names {place!r}, where there is no retrained model; add "
            "retrain to its unlearn.methods."
        )
    return sorted(found, key=lambda path: int("0" + re.sub(r"\D", "", path.name)))
