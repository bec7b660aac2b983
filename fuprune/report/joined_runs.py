"""Several runs as groups that differ only in their seed, and what a group measured."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fuprune.report import formats, palette
from fuprune.report.run_files import Method, Run, Stage, number, setting, words
from fuprune.report.run_tables import pruned_stages
from fuprune.report.tables import Cell, cell
from fuprune.report.verdict import main_method, raw_stage

# Settings that may differ between runs of one group: none changes what is measured.
_IRRELEVANT = ("seed", "phases", "runtime", "report")


class Group(NamedTuple):
    """Runs of one setting."""

    tag: str  # how tables refer to it: E1, E2, ...
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that names the group."""
        return self.runs[0]

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.first.dataset

    @property
    def model(self) -> str:
        """Name of the network."""
        return self.first.model

    @property
    def classes(self) -> tuple[int, ...]:
        """The forgotten classes."""
        return self.first.classes

    @property
    def num_classes(self) -> int:
        """How many classes there were before."""
        return len(self.first.class_names)

    @property
    def algorithm(self) -> str:
        """How clients train: "fed_avg" or "fed_sgd"."""
        return words(setting(self.first, "train.algorithm"))

    @property
    def bias(self) -> float | None:
        """The paper's q; for an even split, one over the number of classes."""
        kind = words(setting(self.first, "partition.kind"))
        if kind == "iid":
            return 1 / self.num_classes if self.num_classes else None
        return number(setting(self.first, "partition.bias")) if kind == "bias" else None

    @property
    def is_even(self) -> bool:
        """Whether every client holds every class alike, as in most of the paper."""
        return (
            self.bias is not None
            and self.num_classes > 0
            and abs(self.bias - 1 / self.num_classes) < 1e-6
        )

    @property
    def forgets_last(self) -> bool:
        """Whether it forgets the last class alone, as most of the paper does."""
        return self.classes == (self.num_classes - 1,)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Puts runs together that differ in nothing but their seed.

    Args:
      runs: Runs in the order they were given.

    Returns:
      Groups in the order of their first run. A run without a config stands alone.
    """
    groups: dict[str, list[Run]] = {}
    for position, run in enumerate(runs):
        settings = {k: v for k, v in run.config.items() if k not in _IRRELEVANT}
        # Where the data lies does not matter; what it is does.
        data = settings.get("data")
        if isinstance(data, dict):
            settings["data"] = {k: v for k, v in data.items() if k != "dir"}
        key = json.dumps(settings, sort_keys=True) if settings else str(position)
        groups.setdefault(key, []).append(run)
    return [
        Group(f"E{place}", tuple(members))
        for place, members in enumerate(groups.values(), start=1)
    ]


def method_rows(group: Group, method: str) -> list[Method]:
    """Finds every result of a method: over runs, and over seeds inside a run."""
    return [
        row
        for run in group.runs
        for row in run.methods
        if palette.family(row.method) == method and row.error is None
    ]


def raw_stages(group: Group) -> list[Stage]:
    """Finds the models before forgetting."""
    return [stage for run in group.runs if (stage := raw_stage(run)) is not None]


def cut_stages(group: Group, method: str, position: int) -> list[Stage]:
    """Finds the models after the cut for one class.

    Args:
      group: The runs.
      method: Name of the method.
      position: Which cut: 0 for the first class, -1 for the last.

    Returns:
      One stage per run and seed that has it.
    """
    found = []
    for run in group.runs:
        names = dict.fromkeys(
            row.method for row in run.methods if palette.family(row.method) == method
        )
        for name in names:
            stages = pruned_stages(run, name)
            if stages:
                found.append(stages[position])
    return found


def evidence(group: Group, test_name: str, method: str) -> list[tuple[float, float]]:
    """Finds a figure of the audits: of the method, and the mean of retraining.

    Args:
      group: The runs.
      test_name: Name of the test in audit.json.
      method: Name of the candidate.

    Returns:
      (method's value, mean over retrained models) for each run that has both.
    """
    found = []
    for run in group.runs:
        for test in run.audit.tests if run.audit is not None else ():
            value = test.values.get(method) if test.name == test_name else None
            retrained = [one for one in test.retrained if one is not None]
            if value is not None and retrained:
                found.append((value, sum(retrained) / len(retrained)))
    return found


def same_cifar10(group: Group, model: str, classes: Iterable[int]) -> bool:
    """Whether a group repeats a CIFAR-10 experiment of the paper."""
    return (
        group.dataset == "cifar10"
        and group.model == model
        and sorted(group.classes) == sorted(classes)
    )


def group_method(group: Group) -> str:
    """Names the method a group is about."""
    main = next((m for run in group.runs if (m := main_method(run))), None)
    return palette.family(main) if main else "class_pruning"


def mean_cell(
    values: Iterable[float | None],
    shown: Callable[[float], str] = formats.number,
    *,
    spread: bool = True,
) -> Cell:
    """Makes a cell of the mean, with the standard deviation if there are several.

    Args:
      values: The figure of each run; missing ones are left out.
      shown: How one number is written.
      spread: Write the standard deviation too.

    Returns:
      `86.4%`, or `86.4 ± 0.3%` for two runs and more.
    """
    known = [value for value in values if value is not None]
    if not known:
        return cell(None)
    mean = sum(known) / len(known)
    if len(known) == 1 or not spread:
        return cell(mean, shown(mean))
    deviation = standard_deviation(known)
    unit = shown(mean)[-1] if shown(mean)[-1] in "%\N{MULTIPLICATION SIGN}" else ""
    written = shown(deviation) if unit == "%" else formats.number(deviation, 2)
    text = f"{shown(mean).removesuffix(unit)} \N{PLUS-MINUS SIGN} "
    return cell(mean, f"{text}{written.removesuffix(unit)}{unit}")


def rounds_cell(rows: Sequence[Method]) -> Cell:
    """Mean rounds to target; a run that never got there is said, not averaged."""
    late = sum(1 for row in rows if row.rounds_to_target is None)
    if not rows:
        return cell(None)
    if late == len(rows):
        trained = any(row.rounds for row in rows)
        return cell(None, "not reached" if trained else "no rounds")
    reached = mean_cell([row.rounds_to_target for row in rows])
    if not late:
        return reached
    return reached._replace(text=f"{reached.text} ({late} of {len(rows)} not reached)")


def standard_deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for one value."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def scale(group: Group) -> str:
    """Says at what scale a group was run, in the settings' own words."""
    run = group.first
    parts = []
    clients = words(setting(run, "partition.clients"))
    if clients:
        cohort = words(setting(run, "train.cohort"))
        parts.append(f"{clients} clients" + (f", {cohort} a round" if cohort else ""))
    algorithm = words(setting(run, "train.algorithm"))
    if algorithm:
        epochs = words(setting(run, "train.local_epochs"))
        parts.append(algorithm + (f" E={epochs}" if algorithm == "fed_avg" else ""))
    for title, key in (
        ("q", "partition.bias"),
        ("rounds", "train.rounds"),
        ("R", "prune.rate"),
        ("scope", "prune.scope"),
        ("images a class", "data.limit"),
    ):
        value = words(setting(run, key))
        if value and value != "0":
            parts.append(f"{title} {value}")
    names = [run.name for run in group.runs]
    amount = formats.plural(len(names), "run")
    return f"{'; '.join(parts)}; {amount}: {formats.listing(names)}"


def subject(group: Group) -> str:
    """Names a group: `E1: resnet20 on cifar10, class 9, q 0.1`."""
    classes = "+".join(map(str, group.classes)) or "?"
    named = f"{group.tag}: {group.model or '?'} on {group.dataset or '?'}"
    named += f", class {classes}"
    return f"{named}, q {group.bias:g}" if group.bias is not None else named
