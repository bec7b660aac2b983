"""Reads audit.json, also that of versions before 0.3.

Those judged by other rules. Their values are kept, and the measures that both have are
judged by today's.
"""

import dataclasses
from collections import defaultdict
from typing import Any

from fuprune.audit.judge import EITHER, HIGHER, LOWER, Measure, judge
from fuprune.audit.record import (
    FORMAT,
    HIDDEN,
    RAW,
    Audit,
    Curve,
    from_plain,
    method_of,
)
from fuprune.results import FormatError, loads

_HARM = {"worse": HIGHER, "better": LOWER, "two_sided": EITHER}
_KINDS = {
    name: name for name in ("accuracy", "distance", "relearn", "probe", "weights")
}
# Old name -> what today's measure of the headline asks of it.
_JUDGED: dict[str, dict[str, Any]] = {
    "u_accuracy": {"margin": 0.005},
    "r_accuracy": {"margin": 0.005, "needs_raw": False},
    "forgotten_accuracy": {},
    "jensen_shannon": {"leave_one_out": True},
    "relearn_area": {},
    "probe_linear_auc_at_features": {},
    "backdoor_success": {},
}


def read(text: str) -> Audit:
    """The audit in the text of an audit.json.

    Raises:
      FormatError: it is none; one sentence says why.
    """
    plain = loads(text, dict[str, Any], "audit.json")
    if plain.get("format") == FORMAT:
        return from_plain(plain)
    if plain.get("format") != 2:
        raise FormatError(
            f"audit.json is not of format {FORMAT} or 2; run the audit phase again"
        )
    try:
        return _from_format_2(plain)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"audit.json is not of format 2 ({error!r})") from error


def _from_format_2(plain: dict[str, Any]) -> Audit:
    detail = plain["detail"]
    measures = [_measure(test) for test in plain["tests"]]
    confidence = float(plain["settings"].get("confidence", 0.95))
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, curve in detail.get("relearn", {}).get("curves", {}).items():
        by_method[_model_of(name)].append(curve)
    curves = {
        name: Curve(
            [int(step) for step in found[0]["steps"]],
            [
                sum(at) / len(at)
                for at in zip(*(one["accuracy"] for one in found), strict=True)
            ],
        )
        for name, found in by_method.items()
    }
    audit = Audit(
        request="classes" if plain["classes"] else "images",
        classes=plain["classes"],
        candidates=list(dict.fromkeys(map(method_of, plain["candidates"]))),
        retrained=max((len(m.retrained) for m in measures), default=0),
        confidence=confidence,
        rows=judge(measures, confidence),
        curves=curves,
        class_accuracies={
            # Of a method with several seeds, its first; of retraining, too.
            _model_of(name): found
            for name, found in reversed(detail.get("class_accuracies", {}).items())
        },
        left_out=detail.get("left_out", {}),
        settings={"read_from_format": 2, **plain["settings"]},
    )
    # Once through JSON, which refuses what is of another type.
    return from_plain(dataclasses.asdict(audit))


def _measure(test: dict[str, Any]) -> Measure:
    models: dict[str, list[float | None]] = defaultdict(list)
    for name, value in test["values"].items():
        models[method_of(name)].append(value)
    # References come last, as in an audit of today.
    last = [name for name in (HIDDEN, RAW) if name in models]
    order = [name for name in models if name not in last] + last
    name = test["name"]
    return Measure(
        name,
        _KINDS.get(test["kind"], "membership"),
        test["question"],
        test["retrained"],
        {name: models[name] for name in order},
        unit=test["unit"],
        headline=name in _JUDGED,
        harm=_HARM[test["higher_is"]],
        error=test.get("sampling_error") or 0.0,
        **_JUDGED.get(name, {}),
    )


def _model_of(name: str) -> str:
    return "retrained" if name.startswith("retrained_") else method_of(name)
