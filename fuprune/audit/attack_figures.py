"""Figures of membership inference: from attack scores to judged figures.

Members are the forgotten classes' training images, non-members their test images; every
attack is turned on every model, and its ROC curve kept for the report.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuprune.audit import likelihood_ratio, membership, shadow
from fuprune.audit.case import Case, Figures, Measured, each, everyone, plain
from fuprune.audit.evidence import TWO_SIDED, WORSE, Evidence
from fuprune.audit.verdict import binomial_error, judge

LOW_RATES = {"1": 0.01, "0.1": 0.001}


def membership_figures(case: Case) -> Figures:
    """Thresholds on loss, confidence, entropy and modified entropy."""
    tests, curves = [], {}
    for name, score in membership.SCORES.items():
        rocs = _rocs(
            case,
            lambda m, s=score: (
                s(m.forgotten.logits, case.forgotten_labels),
                s(m.test.logits, case.test_labels)[case.forgotten_test],
            ),
        )
        curves[name] = _curves(rocs)
        tests += _attack_evidence(
            case,
            f"threshold_{name}",
            "membership",
            f"a threshold on the {name.replace('_', ' ')}",
            rocs,
            balanced=True,
        )
    return tests, {"roc": curves}


def shadow_figures(
    case: Case,
    shadow_logits: np.ndarray,
    shadow_labels: np.ndarray,
    shadow_members: np.ndarray,
) -> Figures:
    """Shokri's attack, learnt from shadow models `[S, N, U]`, turned on every model."""
    attack = shadow.fit_attack(shadow_logits, shadow_labels, shadow_members)

    def scores(model: Measured):
        return (
            shadow.attack_scores(attack, model.forgotten.logits, case.forgotten_labels),
            shadow.attack_scores(
                attack,
                model.test.logits[case.forgotten_test],
                case.test_labels[case.forgotten_test],
            ),
        )

    values, retrained = each(case, lambda m: shadow.success_rate(*scores(m)))
    rocs = _rocs(case, scores)
    success = judge(
        "shadow_success_rate",
        values,
        retrained,
        kind="shadow",
        question=(
            "How often is an attacker with shadow models right about whether an image "
            "of the forgotten class was trained on (0.5 is guessing)?"
        ),
        higher_is=WORSE,
        confidence=case.confidence,
        resolution=_balanced_error(case),
        bounds=(0.0, 1.0),
        notes=[f"{len(shadow_logits)} shadow models of the raw model's architecture"],
    )
    area = _attack_evidence(
        case, "shadow", "shadow", "an attacker with shadow models", rocs, balanced=False
    )
    right = shadow_logits.argmax(axis=-1) == shadow_labels
    detail = {
        "roc": {"shadow": _curves(rocs)},
        "shadow_models": [
            {
                "members": int(inside.sum()),
                "member_accuracy": float(hits[inside].mean()),
                "non_member_accuracy": float(hits[~inside].mean()),
            }
            for hits, inside in zip(right, shadow_members, strict=True)
        ],
    }
    return [success, *area], detail


def likelihood_ratio_figures(
    case: Case,
    shadow_scores: np.ndarray | None,
    shadow_members: np.ndarray | None,
) -> Figures:
    """LiRA, online with shadow models `[S, F + T']` and offline with retrained ones.

    The columns of the two arrays are the forgotten training images and then the
    forgotten test images.
    """
    split = len(case.forgotten_labels)

    def own(model: Measured) -> np.ndarray:
        return membership.logit_confidence(
            np.concatenate(
                [model.forgotten.logits, model.test.logits[case.forgotten_test]]
            ),
            np.concatenate(
                [case.forgotten_labels, case.test_labels[case.forgotten_test]]
            ),
        )

    tests, curves = [], {}
    if shadow_scores is not None and shadow_members is not None:

        def online(model: Measured):
            ratio = likelihood_ratio.online_scores(
                own(model), shadow_scores, shadow_members
            )
            return ratio[:split], ratio[split:]

        rocs = _rocs(case, online)
        curves["likelihood_ratio_online"] = _curves(rocs)
        tests += _attack_evidence(
            case,
            "likelihood_ratio_online",
            "likelihood_ratio",
            "a likelihood-ratio attacker (online, shadow models as references)",
            rocs,
            low_rates=True,
        )
    if len(case.retrained) >= 2:

        def offline(model: Measured):
            references = [own(m) for m in case.retrained if m is not model]
            ratio = likelihood_ratio.offline_scores(own(model), references)
            return ratio[:split], ratio[split:]

        rocs = _rocs(case, offline)
        curves["likelihood_ratio_offline"] = _curves(rocs)
        tests += _attack_evidence(
            case,
            "likelihood_ratio_offline",
            "likelihood_ratio",
            "a likelihood-ratio attacker (offline, retrained models as references)",
            rocs,
            low_rates=True,
        )
    return tests, {"roc": curves}


def _rocs(case: Case, scores) -> dict[str, membership.Roc]:
    return {
        name: membership.roc_curve(*scores(model)) for name, model in everyone(case)
    }


def _curves(rocs: Mapping[str, membership.Roc]) -> dict[str, Any]:
    return {
        name: {
            "false_positives": plain(thin.false_positives),
            "true_positives": plain(thin.true_positives),
        }
        for name, thin in ((name, membership.thin(roc)) for name, roc in rocs.items())
    }


def _attack_evidence(
    case: Case,
    name: str,
    kind: str,
    attacker: str,
    rocs: Mapping[str, membership.Roc],
    *,
    balanced: bool = False,
    low_rates: bool = False,
) -> list[Evidence]:
    members, non_members = len(case.forgotten_labels), int(case.forgotten_test.sum())

    def split(figure):
        return {model: figure(rocs[model]) for model in case.shown}, [
            figure(rocs[f"retrained_{i}"]) for i in range(len(case.retrained))
        ]

    tests = [
        judge(
            f"{name}_auc",
            *split(membership.area_under),
            kind=kind,
            question=(
                f"How well does {attacker} tell training from test images of the "
                "forgotten class (AUC, 0.5 is guessing)?"
            ),
            # An area below that of retraining is a trace of the removal itself.
            higher_is=TWO_SIDED,
            confidence=case.confidence,
            resolution=membership.area_error(members, non_members),
            bounds=(0.0, 1.0),
        )
    ]
    if balanced:
        tests.append(
            judge(
                f"{name}_balanced_accuracy",
                *split(membership.balanced_accuracy),
                kind=kind,
                question=f"How often is {attacker} right at its best threshold?",
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=_balanced_error(case),
                bounds=(0.0, 1.0),
            )
        )
    for percent, rate in LOW_RATES.items() if low_rates else ():
        values, retrained = split(
            lambda roc, r=rate: membership.true_positives_at(roc, r)
        )
        hits = binomial_error(retrained, members)
        alarms = rate * (1 - rate) / non_members
        tests.append(
            judge(
                f"{name}_tpr_at_{percent}_percent",
                values,
                retrained,
                kind=kind,
                question=(
                    f"How many training images does {attacker} find at {percent}% "
                    "false alarms?"
                ),
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=float(np.sqrt(hits**2 + alarms)),
                bounds=(0.0, 1.0),
                undecidable=(
                    None
                    if non_members * rate >= 1
                    else f"{non_members} non-members cannot resolve {percent}% false "
                    "alarms; the value is at none"
                ),
            )
        )
    return tests


def _balanced_error(case: Case) -> float:
    """Standard error of a balanced accuracy near one half."""
    members, non_members = len(case.forgotten_labels), int(case.forgotten_test.sum())
    return float(np.sqrt(1 / members + 1 / non_members) / 4)
