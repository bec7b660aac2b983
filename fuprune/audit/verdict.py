"""From numbers to verdicts: could this model be one more retrained seed?

Each test has a null distribution, that of a further draw from the n retrained models,
and so a p-value for every model. Within a family of tests Holm's procedure keeps the
probability that a retrained model fails any of them at one minus the confidence or
below; `docs/audit.md` has the simulated rates by shape of the spread.
Whatever cannot be decided is called "cannot tell".
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.audit.evidence import (
    CANNOT_TELL,
    FAIL,
    FAMILIES,
    HEADLINE,
    NOT_TOLD_APART,
    PASS,
    Evidence,
    Headline,
    question_of,
)
from fuprune.audit.spread import (
    Draft,
    Null,
    excess,
    fewest,
    interval,
    make_null,
    moderate,
    p_value,
    reach,
    smallest_difference,
)

# The probability of being seen that `smallest_difference` stands for.
POWER = 0.8
# The share of the raw model's distance to retraining that a pass may leave open.
MARGIN = 0.25


def holm(
    p_values: Sequence[float], weights: Sequence[float] | None = None
) -> list[float]:
    """Holm's adjusted p-values (1979), in the order given.

    Rejecting those at or below a level keeps the probability of any false rejection
    below that level, however the tests depend on each other. `weights` are each test's
    share of the level, chosen without looking at the numbers; even if None.
    """
    shares = np.ones(len(p_values)) if weights is None else np.asarray(weights)
    weighted = np.asarray(p_values) / shares
    order = np.argsort(weighted, kind="stable")
    adjusted = np.empty(len(order))
    worst, left = 0.0, float(shares.sum())
    for i in order:
        worst = max(worst, min(1.0, left * float(weighted[i])))
        # What a rejected test had of the level goes to those that are left.
        left -= shares[i]
        adjusted[i] = worst
    return adjusted.tolist()


def shares_of(kinds: Sequence[str]) -> list[float]:
    """Each test's share of a family's level: even over questions, then over tests."""
    questions = [question_of(kind) for kind in kinds]
    sizes = Counter(questions)
    return [1 / (len(sizes) * sizes[question]) for question in questions]


def settle(
    drafts: Sequence[Draft], *, confidence: float = 0.95, margin: float = MARGIN
) -> list[Evidence]:
    """Judges all tests of an audit together.

    Every test that could be decided counts in its family, also one that the raw model
    does not fail: choosing the tests by how far the raw model lies outside would choose
    those whose retrained seeds happen to agree, and with them false failures.

    Args:
      drafts: the tests.
      confidence: one minus the probability that a retrained model fails some test of
        the family.
      margin: a model passes if it differs from retraining by at most this share of what
        the positive control differs by.

    Returns:
      One `Evidence` per draft, in order.
    """
    settled: dict[int, Evidence] = {}
    for family in FAMILIES:
        places = [i for i, draft in enumerate(drafts) if draft.family == family]
        tests = _settle_family([drafts[i] for i in places], 1 - confidence, margin)
        settled |= zip(places, tests, strict=True)
    return [settled[i] for i in range(len(drafts))]


def _settle_family(
    drafts: Sequence[Draft], level: float, margin: float
) -> list[Evidence]:
    nulls = moderate([make_null(draft) for draft in drafts])
    p_values = [_p_values(*pair) for pair in zip(drafts, nulls, strict=True)]
    adjusted = [dict(found) for found in p_values]
    shares = [1.0] * len(drafts)
    most = 0
    for model in dict.fromkeys(name for found in p_values for name in found):
        results = ((i, found.get(model)) for i, found in enumerate(p_values))
        known = {i: p for i, p in results if p is not None}
        level_shares = shares_of([drafts[i].kind for i in known])
        corrected = holm(list(known.values()), level_shares)
        for i, p in zip(known, corrected, strict=True):
            adjusted[i][model] = p
        # What a test can see is told for the model with the most results.
        if len(known) > most:
            most = len(known)
            for i, share in zip(known, level_shares, strict=True):
                shares[i] = share
    return [
        _evidence(*test, level, margin)
        for test in zip(drafts, nulls, p_values, adjusted, shares, strict=True)
    ]


def _p_values(draft: Draft, null: Null | None) -> dict[str, float | None]:
    if null is None or draft.undecidable is not None:
        return dict.fromkeys(draft.values)
    return {
        model: None if value is None else p_value(null, value)
        for model, value in draft.values.items()
    }


def _evidence(
    draft: Draft,
    null: Null | None,
    p_values: Mapping[str, float | None],
    adjusted: Mapping[str, float | None],
    share: float,
    level: float,
    margin: float,
) -> Evidence:
    notes = list(draft.notes)
    if null is None:
        known = sum(value is not None for value in draft.retrained)
        needed = fewest(draft.leave_one_out)
        notes.append(
            f"{known} retrained model(s) give no spread for this number; "
            f"{needed} or more are needed"
            if known < needed
            else f"{known} retrained models agree exactly, so nothing says how far one "
            "more would lie; retrain more seeds, or use more images"
        )
    if draft.undecidable is not None:
        notes.append(draft.undecidable)
    missing = [model for model, value in draft.values.items() if value is None]
    if missing:
        notes.append(f"no result for {', '.join(missing)}")
    control = draft.positive_control
    control_p = adjusted.get(control) if control is not None else None
    control_value = draft.values.get(control) if control is not None else None
    powerless = control_p is not None and control_p > level
    if powerless:
        notes.append(
            f"the {control} model ({control_value:.4g}) is not told apart from "
            "retraining either: on this data the test cannot tell remembering from "
            "forgetting"
        )

    def verdict(model: str, value: float | None) -> str:
        p = adjusted[model]
        if p is None or null is None or value is None:
            return CANNOT_TELL
        if p <= level:
            return FAIL
        if control_p is None or control_value is None:
            return NOT_TOLD_APART if control is None else CANNOT_TELL
        # A pass is a claim of nearness, so the correction must not help it: the model
        # lies inside without it, and even the far end of what it may differ by is small
        # beside the control's distance.
        possible = max(excess(null, value), 0.0) + reach(null, level)
        alone = p_values[model]
        inside = alone is not None and alone > level
        if inside and possible <= margin * excess(null, control_value):
            return PASS
        return CANNOT_TELL if powerless else NOT_TOLD_APART

    smallest = None
    if null is not None and draft.undecidable is None:
        distance = reach(null, level * share, POWER)
        smallest = smallest_difference(null, distance)
        if smallest is None:
            notes.append("no possible difference would be seen with this few seeds")
    return Evidence(
        name=draft.name,
        kind=draft.kind,
        question=draft.question,
        unit=draft.unit,
        higher_is=draft.higher_is,
        values=dict(draft.values),
        retrained=list(draft.retrained),
        interval=None if null is None else interval(null, level),
        verdicts={m: verdict(m, value) for m, value in draft.values.items()},
        notes=notes,
        family=draft.family,
        sampling_error=draft.resolution or None,
        smallest_difference=smallest,
        p_values=dict(p_values),
        adjusted_p_values=dict(adjusted),
    )


def headline(tests: Sequence[Evidence], model: str) -> Headline:
    """The verdict on one model, a candidate or "raw", over the headline's family."""
    family = [t for t in tests if t.family == HEADLINE and model in t.values]
    decided = [t for t in family if t.adjusted_p_values.get(model) is not None]
    failed = [t.name for t in decided if t.verdicts[model] == FAIL]
    words = {t.verdicts[model] for t in decided}
    if failed:
        word = FAIL
    elif words == {PASS}:
        word = PASS
    elif words & {PASS, NOT_TOLD_APART}:
        word = NOT_TOLD_APART
    else:
        word = CANNOT_TELL
    found = [p for t in decided if (p := t.adjusted_p_values[model]) is not None]
    return Headline(word, len(decided), failed, min(found, default=None))
