"""What a config asks a run to do: its units, their names, seeds and budgets.

A unit is what a run finishes or repeats as a whole (see `training`). All here is known
before anything is trained.
"""

from pathlib import Path
from typing import NamedTuple

from fuprune import config as configuration
from fuprune.run import assembly, files
from fuprune.run.assembly import Schedule
from fuprune.run.data import Federation
from fuprune.run.training import Budget
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.reading import missing_classes
from fuprune.unlearning.request import warn_of


class UnlearnUnit(NamedTuple):
    """One method with one seed."""

    name: str  # of the unit: the method, with the seed's number behind it
    method: str
    seed: int


def unlearn_units(config) -> list[UnlearnUnit]:
    """The methods of a config in their order, with as many seeds as it asks for."""
    units = []
    for method in configuration.methods(config):
        for seed in _seeds(config, method):
            suffix = f"_seed{seed + 1}" if seed else ""
            units.append(UnlearnUnit(f"{method}{suffix}", method, seed))
    return units


def _seeds(config, method: str) -> range:
    """The seeds of one method, counted from 0; names count them from 1."""
    if method == "retrain":
        first = config.unlearn.retrain_first - 1
        return range(first, first + config.unlearn.retrain_seeds)
    seeded = method in configuration.read(config, "fine_tune.seeded")
    return range(config.fine_tune.seeds if seeded else 1)


def privacy_units(config) -> list[tuple[str, float]]:
    """The units that make the points of accuracy against epsilon, and their epsilons.

    A fine-tuned point is another unit, so that it can be asked for later.
    """
    suffix = "_fine_tuned" if config.privacy.curve_fine_tune else ""
    # Six digits name a point in the files of the run.
    epsilons = [f"{x:g}" for x in sorted(configuration.read(config, "privacy.curve"))]
    return [(f"privacy_curve/{text}{suffix}", float(text)) for text in epsilons]


def make_budget(config, name: str, target: float | None = None) -> Budget:
    """How methods train: `fine_tune`, `training` from scratch, or `short`.

    All are evaluated on one grid of rounds, so that crossings compare: the finer of
    fine-tuning within its rounds, the one of training beyond. `short` retrains in
    fine-tuning's rounds, with a schedule that fits them.
    """
    train, tuning = config.train, config.fine_tune

    def is_due(number: int) -> bool:
        in_reach = number <= tuning.rounds
        # By the number of the round and not by the method, so that all curves have the
        # same points.
        every = tuning.evaluate_every if in_reach else train.evaluate_every
        return number % every == 0

    # Of `short`: a network from scratch needs a warm-up even if a trained one does not,
    # and training's own could take most of so few rounds.
    tenth = max(1, tuning.rounds // 10)
    warmup = min(train.warmup_rounds or tenth, tenth)
    schedules = {
        "fine_tune": Schedule(
            tuning.rounds,
            tuning.learning_rate or train.learning_rate,
            tuning.schedule,
            tuning.warmup_rounds,
        ),
        "training": assembly.training_schedule(train),
        "short": Schedule(tuning.rounds, train.learning_rate, "warmup_cosine", warmup),
    }
    stops = tuning.stop_at_target and name == "fine_tune"
    return Budget(schedules[name], is_due, target, metric="r_accuracy", stops=stops)


def is_audit_due(config, workdir: Path) -> bool:
    """Whether the audit is asked for and not finished in the workdir."""
    wanted = "audit" in configuration.phases(config)
    return wanted and not files.path_of(workdir, "audit").exists()


def rounds_left(config, workdir: Path) -> int:
    """The most rounds that the units which are not finished in the workdir train."""
    wanted, rounds = configuration.phases(config), {}
    if "pretrain" in wanted and not config.model.load:
        rounds["pretrain"] = config.train.rounds
    if "unlearn" in wanted:
        for unit in unlearn_units(config):
            method = METHODS[unit.method]
            if method.fine_tunes:
                budget = make_budget(config, method.budget)
                rounds[f"unlearn/{unit.name}"] = budget.schedule.rounds
        if config.privacy.curve_fine_tune:
            for name, _ in privacy_units(config):
                rounds[name] = config.fine_tune.rounds
    return sum(
        number
        for unit, number in rounds.items()
        if not files.path_of(workdir, unit).exists()
    )


def describe_absences(config, federation: Federation) -> list[str]:
    """What a request means beyond its words, and methods without a class to read."""
    data, request = federation.data, federation.request
    lines = warn_of(data, request)
    for method in configuration.methods(config):
        if not METHODS[method].reads_forgotten:
            continue
        chosen = assembly.participants(config, method, federation)
        absent = missing_classes(data, chosen, request.classes)
        if absent:
            lines.append(
                f"{method} will have nothing to read: none of its participants holds "
                f"class {', '.join(map(str, absent))}; raise unlearn.participants or "
                "lower partition.bias."
            )
    return lines
