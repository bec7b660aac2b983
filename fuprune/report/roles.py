"""Which part each model plays in a run, where its rows are, and its colour.

The raw model is grey, retraining is the reference line, and the method under test has
the accent colour; the others share a colour-blind safe cycle with changing dashes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fuprune import results
from fuprune.audit.evidence import AuditReport
from fuprune.report import formats
from fuprune.results import RAW, CutRow, RunRecord, StageRow
from fuprune.unlearning.methods import METHODS

Styles: TypeAlias = Mapping[str, str]  # a CSS class for each unit or audited model


class Topic(NamedTuple):
    """What a page is about: a run's record and audit, and the method under test."""

    record: RunRecord
    audit: AuditReport | None
    tested: str | None  # the method
    judged: str | None  # the audited model that stands for it
    styles: Styles  # of all models, the same on the whole page


RETRAIN = "retrain"
RANDOM = "random_init"
# Methods that nobody would call forgetting, and what each of them does.
CONTROLS = {name: method.control for name, method in METHODS.items() if method.control}
_PREFERRED = "class_pruning"
_CYCLE = 8
_SEED = re.compile(r"_seed\d+$")
_RETRAINED = re.compile(r"^retrained(_\d+)?$")


def family(name: str) -> str:
    """Strips the number of a further seed: `retrain_seed2` is a `retrain`."""
    return _RETRAINED.sub("retrained", _SEED.sub("", name))


def is_retrained(name: str) -> bool:
    """Whether a unit or an audited model is retraining, the reference of all."""
    return family(name) in (RETRAIN, "retrained")


def control_of(name: str) -> str | None:
    """The control that a method is, with or without a variant's suffix."""
    return next((control for control in CONTROLS if name.startswith(control)), None)


def role(name: str, tested: str | None) -> str:
    """What a model stands for in the comparison, in words."""
    if name in (RAW, RANDOM):
        return "before forgetting" if name == RAW else "untrained"
    if is_retrained(name):
        return "gold standard"
    if family(name) == tested:
        return "under test"
    return "control" if control_of(name) else "baseline"


def warning(method: str) -> str:
    """What must stand beside the numbers of a method, wherever they stand."""
    known = METHODS.get(family(method))
    if known is not None and known.trains_on_forgotten:
        return "trains on the forgotten images"
    return ""


def described(name: str, tested: str | None) -> str:
    """A model's role, and its warning if it has one."""
    return ", ".join(filter(None, (role(name, tested), warning(name))))


def method_words(method: str) -> str:
    """A method's name in words, with what must stand beside its numbers."""
    named, warned = formats.in_words(method), warning(method)
    return f"{named} ({warned})" if warned else named


def topic_of(record: RunRecord, audit: AuditReport | None = None) -> Topic:
    """What the page of a run is about."""
    units = [row.name for row in record.methods]
    tested = tested_among([*(audit.candidates if audit else ()), *units])
    audited = audited_models(audit, tested) if audit else []
    colours = styles(dict.fromkeys([RAW, *units, *audited]), tested)
    return Topic(record, audit, tested, candidate_of(audit, tested), colours)


def tested_among(names: Sequence[str]) -> str | None:
    """The paper's method if it is there, or the first that is no control."""
    others = [name for name in names if not is_retrained(name) and not control_of(name)]
    preferred = [name for name in others if name.startswith(_PREFERRED)]
    return family((preferred or others)[0]) if others else None


def candidate_of(audit: AuditReport | None, method: str | None) -> str | None:
    """The audited model that stands for a method: its first seed that was audited."""
    names = audit.candidates if audit is not None else []
    seeds = [name for name in names if family(name) == method]
    return method if method in names else next(iter(seeds), None)


def audited_models(audit: AuditReport, tested: str | None) -> list[str]:
    """The method under test, other candidates, the rest, the raw model last."""
    names = sorted(audit.candidates, key=lambda name: family(name) != tested)
    for test in audit.tests:
        names += [name for name in test.values if name not in names]
    last = [name for name in (RANDOM, RAW) if name in names]
    return [name for name in names if name not in last] + last


def styles(names: Iterable[str], tested: str | None) -> Styles:
    """The colours of some models, one for all seeds of a method."""
    chosen: dict[str, str] = {}
    others: dict[str, str] = {}
    for name in names:
        fixed = _STYLES.get(role(name, tested))
        cycled = f"o{len(others) % _CYCLE}"
        chosen[name] = fixed or others.setdefault(family(name), cycled)
    return chosen


_STYLES = {
    "before forgetting": "raw",
    "untrained": "random",
    "gold standard": "gold",
    "under test": "main",
}


def final_stage(record: RunRecord, method: str | None) -> StageRow | None:
    """The last model of a method's first seed."""
    stages = [
        stage
        for stage in record.stages
        if family(stage.method) == method and stage.stage != RAW and not is_cut(stage)
    ]
    first = [stage for stage in stages if stage.method == stages[0].method]
    return first[-1] if first else None


def stage_title(stage: StageRow) -> str:
    """Names a stage: `raw`, `class pruning, pruned 9`, `retrain`."""
    if stage.stage == RAW:
        return RAW
    method, step = formats.in_words(stage.method), formats.in_words(stage.stage)
    return f"{method}, {step}" if is_cut(stage) else method


def is_cut(stage: StageRow) -> bool:
    """Whether it is a model between a cut and what follows."""
    return stage.stage.startswith("pruned")


def cuts_to_show(topic: Topic) -> list[tuple[str, CutRow]]:
    """The cuts of one unit, one for each class, and what a page calls each."""
    units = topic.record.cuts
    unit = min(units, key=lambda name: family(name) != topic.tested, default="")
    cuts, named = units.get(unit, []), formats.in_words(unit)
    if len(cuts) == 1:
        return [(named, cuts[0])]
    labels = [results.class_label(topic.record, cut.class_id) for cut in cuts]
    titles = [f"{named}, class {label}" for label in labels]
    return list(zip(titles, cuts, strict=True))


def setting_in_use(record: RunRecord, key: str) -> Any:
    """A setting of a run; None also if nothing that the run did depends on it."""
    known = [METHODS[row.method] for row in record.methods if row.method in METHODS]
    unused = {
        "partition.bias": results.setting(record, "partition.kind") != "bias",
        "train.local": results.setting(record, "train.algorithm") != "fed_avg",
        "prune.": known and all("prune" not in one.sections for one in known),
    }
    if any(key.startswith(start) for start in unused if unused[start]):
        return None
    return results.setting(record, key)


def forgotten_things(record: RunRecord, *, named: bool = False) -> str:
    """What was to be forgotten, inside a sentence: `the images of client 3`.

    Classes are `the forgotten classes`; if `named`, `classes cat (3) and dog (5)`.
    """
    kind, targets = record.request.kind, record.request.targets
    if kind == "clients":
        return f"the images of {forgotten(record)}"
    if kind == "examples":
        amount = formats.plural(len(targets), "example")
        return f"the {amount}" if named else "the forgotten images"
    if named:
        return forgotten(record)
    return _CLASSES if len(targets) > 1 else "the forgotten class"


def reworded(record: RunRecord, sentence: str) -> str:
    """A recorded sentence, written about one class, in a run that forgot several."""
    if record.request.kind == "classes" and len(record.request.targets) > 1:
        for singular, plural in _PLURALS:
            sentence = re.sub(singular, plural, sentence)
    return sentence


_CLASSES = "the forgotten classes"
_PLURALS = (
    (r"\b(the forgotten class) is\b", r"\1 are"),
    (r"\bwhile it is taught\b", "while they are taught"),
    (r"\bimages of it\b", "images of each"),
    # Not "the class that differs most".
    (r"\bthe (?:forgotten )?class\b(?! that)", _CLASSES),
)


def forgotten(record: RunRecord) -> str:
    """Names what was to be forgotten: `class cat (3)`, `clients 3 and 17`."""
    kind, names = record.request.kind, [str(n) for n in record.request.targets]
    if kind == "classes":
        names = [results.class_label(record, n) for n in record.classes] or ["?"]
    elif len(names) > 5:
        return f"{len(names)} {kind}"
    one = "class" if kind == "classes" else kind.removesuffix("s")
    return f"{one if len(names) == 1 else kind} {formats.listing(names)}"


def u_images(record: RunRecord) -> str:
    """The images that U-set accuracy is taken on."""
    if record.request.kind == "classes":
        return f"the {record.dataset} test images of {forgotten(record)}"
    return record.request.u_set


def r_images(record: RunRecord, *, every: bool = False) -> str:
    """The images that R-set accuracy is taken on, in few words or in full."""
    if record.request.kind == "classes":
        return "the test images of all other classes" if every else "the other classes"
    return record.request.r_set if every else "the test images"
