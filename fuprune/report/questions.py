"""The questions that a page asks of an audit, in plain words.

They name what was to be forgotten: a class, a client's images, or single images.
"""

from typing import NamedTuple

from fuprune.report import roles
from fuprune.report.judgement import MEMBERSHIP_KINDS
from fuprune.results import RunRecord


class Question(NamedTuple):
    """A question that some of the audit's tests answer."""

    anchor: str
    contents: str
    question: str
    lead: str
    kinds: tuple[str, ...]  # of evidence


ACCURACY = Question(
    "accuracy",
    "Gone from the answers?",
    "Does the model still recognise {them}, and is the rest intact?",
    "The first look, and the weakest evidence: how often the model is right on test "
    "images of {them} (U-set) and of the others (R-set), and whether its mistakes are "
    "spread over the classes as retraining spreads them.",
    ("accuracy",),
)
MEMBERSHIP = Question(
    "membership",
    "Can membership be told?",
    "Could somebody still tell whether an image from {them} was in training?",
    "An attacker sees the model's output for an image from {them} and guesses whether "
    "that very image was trained on. A model that forgot gives away no more than one "
    "that never saw {them}. AUC is 50% for pure guessing; TPR is the share of training "
    "images found at a given rate of false alarms.",
    MEMBERSHIP_KINDS,
)
PROBE = Question(
    "probe",
    "Still inside?",
    "Is knowledge of {them} still inside, only hidden at the output?",
    "The features are frozen, and fresh classifiers learn to recognise {them} by "
    "these features. Retrained models never saw {them}, yet their features allow this "
    "to some degree: that degree is the yardstick.",
    ("probe",),
)
RELEARN = Question(
    "relearn",
    "How fast is relearning?",
    "How fast does the model relearn {them}?",
    "If a few training steps teach the model {them} faster than they teach a retrained "
    "model, something was kept.",
    ("relearn",),
)
DISTANCE = Question(
    "distance",
    "Does it behave like retraining?",
    "Does it behave like a model that never saw {them}?",
    "Answers, inner activations and weights, compared with those of retrained models. "
    "Retrained models differ among themselves, too; only more than that counts.",
    ("distance", "weights", "losses", "influence", "backdoor"),
)
# The order on a page, after accuracy.
_FOR_CLASSES = (ACCURACY, RELEARN, PROBE, DISTANCE, MEMBERSHIP)
# Probes and relearning ask for a class, so that nothing replaces them here.
_FOR_IMAGES = (
    ACCURACY._replace(
        contents="Right as often as retraining?",
        question="Is it right on {them} as often as retraining, and as good elsewhere?",
        lead="The first look, and the weakest evidence: how often the model is right "
        "on the forgotten training images (U-set) and on test images (R-set). "
        "Retrained models are right on many of the forgotten images, as on others of "
        "the same classes: their accuracy is the one to have, neither more nor less.",
    ),
    DISTANCE._replace(
        lead="Losses, answers, inner activations and weights, compared with those of "
        "retrained models, and the success of a trigger if one was planted. Retrained "
        "models differ among themselves, too; only more than that counts.",
    ),
    MEMBERSHIP._replace(
        question="Could somebody still tell that {them} were in training?",
        lead="An attacker sees the model's output for a forgotten image or for a test "
        "image and guesses whether it was trained on. A model that forgot gives away "
        "no more than one that never saw {them}. AUC is 50% for pure guessing; TPR is "
        "the share of forgotten images found at a given rate of false alarms.",
    ),
)


def questions_about(record: RunRecord) -> tuple[Question, ...]:
    """The questions of a page about what a run was to forget, accuracy first."""
    them = roles.forgotten_things(record)
    asked = _FOR_CLASSES if record.request.kind == "classes" else _FOR_IMAGES
    return tuple(
        each._replace(
            question=each.question.format(them=them), lead=each.lead.format(them=them)
        )
        for each in asked
    )
