"""Attackers who compare models: before and after, and between two known ends.

Who keeps the raw model and receives the unlearned one sees on which images the two
differ (Chen et al., "When Machine Unlearning Jeopardizes Privacy", CCS 2021). Who also
has one model trained without the class can say where between the two an answer lies
(after the interpolated approximate measurement, IAM, of Wang et al., "Towards Lifecycle
Unlearning Commitment Management", USENIX Security 2025).
"""

import numpy as np

from fuprune.audit.evidence import HEADLINE, TWO_SIDED
from fuprune.audit.measurements import RAW, Findings, Measurements, each
from fuprune.audit.membership import (
    logit_confidence,
    score_targets,
    target_confidences,
)
from fuprune.audit.roc import find_by_attack
from fuprune.audit.sampling import paired_error
from fuprune.audit.spread import by_role, draft, to_retraining


def find_difference(measurements: Measurements) -> Findings:
    """Membership from the confidence lost between the raw and the other model.

    The raw model alone gives some membership away, whichever model it is compared with;
    so the area is held against that of retrained models. The raw model has no result:
    it does not differ from itself.
    """
    before = target_confidences(measurements)[RAW]
    return find_by_attack(
        "difference",
        score_targets(measurements, lambda after, _: confidence_lost(before, after)),
        attacker="an attacker who has the model before and after",
        family=HEADLINE,
        positive_control=None,
    )


def confidence_lost(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """`[N]` how many logits of confidence each image has lost."""
    return before - after


def find_interpolated(measurements: Measurements) -> Findings:
    """How far from a retrained model towards the raw one the confidences lie."""
    # Only training images: the share is of what was learned from them.
    labels = measurements.forgotten.labels
    confidences = each(
        measurements, lambda model: logit_confidence(model.forgotten.logits, labels)
    )
    terms = to_retraining(
        confidences,
        lambda own, other: interpolation_terms(own, confidences[RAW], other),
    )
    test = draft(
        "interpolated_share",
        {name: of_model.sum() for name, of_model in terms.items()},
        question=(
            "What share of the raw model's confidence on forgotten training images is "
            "left (0 as one retrained model, 1 as the raw model)?"
        ),
        unit="fraction",
        higher_is=TWO_SIDED,
        # The share is a sum over images, so its error is that of a mean, times N.
        resolution=len(labels) * paired_error(by_role(terms)[1], added=0.0),
    )
    return Findings([test])


def interpolation_terms(confidence, inside, outside) -> np.ndarray:
    """Each image's part of the interpolated share.

    The share t is the least-squares answer to `confidence = outside + t * (inside -
    outside)` over all images, [N] each: exactly t for a model that is that
    interpolation. The terms, `[N]`, are zeros if the two ends agree everywhere.
    """
    span = np.asarray(inside) - np.asarray(outside)
    total = float(np.sum(span**2))
    if total == 0:
        return np.zeros(span.shape)
    return (np.asarray(confidence) - np.asarray(outside)) * span / total
