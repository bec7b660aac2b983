"""What models answer: accuracies, and how far answers are from retraining's.

The paper's U-set and R-set accuracy (Tables 1 to 3), its Table 5 on class-wise
accuracies, and what others report of answers: tug-of-war, KLoM, divergences.
"""

import numpy as np
from scipy.special import log_softmax, logsumexp, xlogy

from fuprune.audit.judge import HIGHER, LOWER, Measure
from fuprune.audit.measures import (
    Subject,
    of_images,
    of_numbers,
    retrained,
    to_retraining,
)

# Far below any real logit, so that a logit masked to -inf keeps every score finite.
LOGIT_LIMIT = 1e4
# Margins are cut here, on both sides: beyond it nothing more is learned from them.
MARGIN_LIMIT = 100.0


def accuracy_measures(subject: Subject) -> list[Measure]:
    """U-set and R-set accuracy in the headline; Table 5 and tug-of-war described."""
    labels, margin = subject.test.labels, subject.options.margin_accuracy
    right = subject.each(lambda one: one.test.argmax(axis=-1) == labels)
    rest = ~subject.is_forgotten
    kept = of_images(
        "r_accuracy",
        "accuracy",
        {name: hits[rest] for name, hits in right.items()},
        "How many test images of the other classes are answered correctly?"
        if subject.classes
        else "How many test images are answered correctly?",
        headline=True,
        harm=LOWER,
        margin=margin,
        # The raw model is expected to be as good as a retrained one.
        needs_raw=False,
    )
    learned = subject.each(
        lambda one: one.forgotten.argmax(axis=-1) == subject.forgotten.labels
    )
    if not subject.classes:
        forgotten = of_images(
            "forgotten_accuracy",
            "accuracy",
            learned,
            "How many of the forgotten images are answered correctly?",
            headline=True,
        )
        war = tug_of_war(learned, right)
        return [forgotten, kept, _tug_of_war(war)]
    forgotten = of_images(
        "u_accuracy",
        "accuracy",
        {name: hits[~rest] for name, hits in right.items()},
        "How many test images of the forgotten class are answered correctly?",
        headline=True,
        harm=HIGHER,
        margin=margin,
    )
    retained = subject.each(
        lambda one: one.retained.argmax(axis=-1) == subject.retained.labels
    )
    others = {name: hits[rest] for name, hits in right.items()}
    per_class = class_accuracies(subject)
    counts = np.bincount(labels, minlength=len(next(iter(per_class.values()))))
    return [
        forgotten,
        kept,
        _tug_of_war(tug_of_war(learned, retained, others)),
        of_numbers(
            "class_accuracy_kl",
            "accuracy",
            to_retraining(per_class, lambda a, b: accuracy_divergence(a, b, counts)),
            "How far is the distribution of correct answers over classes from "
            "retraining's (KL divergence)?",
            unit="nats",
            harm=HIGHER,
        ),
        of_numbers(
            "class_accuracy_difference",
            "accuracy",
            to_retraining(per_class, lambda a, b: np.nanmax(np.abs(a - b))),
            "In the class that differs most, how far is accuracy from retraining's?",
            harm=HIGHER,
        ),
    ]


def _tug_of_war(values) -> Measure:
    return of_numbers(
        "tug_of_war",
        "accuracy",
        values,
        "How near to retraining are the accuracies on forgotten, retained and test "
        "images (tug-of-war, 1 is equal)?",
        harm=LOWER,
        note="A model that hides the class's logit comes near 1 as well.",
    )


def tug_of_war(*right) -> dict[str, float]:
    """Tug-of-war (Zhao et al. 2024), mean over retrained models.

    The product of `1 - |accuracy - retraining's accuracy|` over sets of images, each
    given as the models' right answers.
    """
    accuracies = {
        name: np.asarray([hits[name].mean() for hits in right if len(hits[name])])
        for name in right[0]
    }
    return to_retraining(accuracies, lambda a, b: np.prod(1 - np.abs(a - b)))


def class_accuracies(subject: Subject) -> dict[str, np.ndarray]:
    """`[U]` accuracy per class of every model, NaN for classes without test images."""
    labels = subject.test.labels
    width = next(iter(subject.answers.values())).test.shape[1]
    counts = np.bincount(labels, minlength=width)

    def of(answers) -> np.ndarray:
        hits = answers.test.argmax(axis=-1) == labels
        found = np.bincount(labels, weights=hits, minlength=width)
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, found / counts, np.nan)

    return subject.each(of)


def accuracy_divergence(own, other, counts) -> float:
    """KL divergence of the shares that classes have of all right answers (Table 5).

    From accuracies `[U]` each and images per class `[U]`. One half is added to every
    count, so that classes without a right answer have a share as well.
    """
    p, q = (np.nan_to_num(x) * counts + 0.5 for x in (own, other))
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(xlogy(p, p / q)))


def distance_measures(subject: Subject) -> list[Measure]:
    """Distance of answers on the forgotten class in the headline; others described."""
    learned = subject.each(lambda one: one.forgotten)
    logits, images = learned, "the forgotten images"
    if subject.classes:
        # No retrained model saw either; together they are more.
        rows, images = subject.unseen, "training and test images of the class"
        logits = subject.each(
            lambda one: np.concatenate([one.forgotten, one.test[rows]])
        )
    rest = ~subject.is_forgotten
    labels = subject.forgotten.labels
    return [
        of_images(
            "answer_distance",
            "distance",
            to_retraining(logits, total_variation),
            f"What share of the answers to {images} would have to move to be "
            "retraining's (total variation)?",
            added=0.0,
            headline=True,
            harm=HIGHER,
            leave_one_out=True,
        ),
        of_numbers(
            "jensen_shannon",
            "distance",
            {
                name: one.mean() if len(one) else None
                for name, one in to_retraining(learned, jensen_shannon).items()
            },
            "How far are the answers to forgotten training images from retraining's "
            "(Jensen-Shannon divergence)?",
            unit="nats",
            harm=HIGHER,
        ),
        _klom("forgotten", "forgotten training images", subject, learned, labels),
        _klom(
            "others",
            "test images of other classes" if subject.classes else "test images",
            subject,
            subject.each(lambda one: one.test[rest]),
            subject.test.labels[rest],
        ),
    ]


def _klom(name, images, subject, logits, labels) -> Measure:
    margins = {model: margin(one, labels) for model, one in logits.items()}
    return of_numbers(
        f"klom_{name}",
        "distance",
        klom(margins) if len(labels) else dict.fromkeys(margins),
        f"How far are the margins on {images} from the distribution of retraining's "
        "(KLoM)?",
        unit="nats",
        harm=HIGHER,
        note="One more retrained model has about 0.5; distributions are taken as "
        "normal.",
    )


def klom(margins: dict[str, np.ndarray]) -> dict[str, float]:
    """KL divergence of margins (Georgiev et al. 2024), mean over images.

    Of normal distributions with retraining's mean per image and one variance for all
    images, because a few models show no more; a retrained model is held against the
    others. From `[N]` margins of every model.
    """
    found = {}
    for name, own in margins.items():
        others = retrained({n: one for n, one in margins.items() if n != name})
        if len(others) < 2:
            continue
        reference = np.stack(others)
        variance = float(reference.var(axis=0, ddof=1).mean())
        squares = np.mean((own - reference.mean(axis=0)) ** 2)
        found[name] = squares / (2 * max(variance, 1e-12))
    return found


def log_probabilities(logits) -> np.ndarray:
    """Log-softmax `[N, U]` in float64, finite also for logits of minus infinity."""
    logits = np.clip(np.asarray(logits, np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)
    return log_softmax(logits, axis=-1)


def label_score(logits, labels) -> np.ndarray:
    """`[N]` log-probability of the label: minus the loss."""
    found = log_probabilities(logits)
    return found[np.arange(len(found)), np.asarray(labels)]


def margin(logits, labels) -> np.ndarray:
    """`[N]` log(p / (1 - p)) of the label's probability, within `MARGIN_LIMIT`."""
    logits = np.clip(np.asarray(logits, np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)
    rows, labels = np.arange(len(logits)), np.asarray(labels)
    others = logits.copy()
    others[rows, labels] = -np.inf
    found = logits[rows, labels] - logsumexp(others, axis=-1)
    return np.clip(found, -MARGIN_LIMIT, MARGIN_LIMIT)


def total_variation(logits, other_logits) -> np.ndarray:
    """`[N]` half the L1 distance of the softmax outputs, in [0, 1]."""
    p, q = (np.exp(log_probabilities(x)) for x in (logits, other_logits))
    return 0.5 * np.abs(p - q).sum(axis=-1)


def jensen_shannon(logits, other_logits) -> np.ndarray:
    """`[N]` Jensen-Shannon divergence of the softmax outputs in nats, at most ln 2."""
    log_p, log_q = log_probabilities(logits), log_probabilities(other_logits)
    # Where both agree the mean is that value: identical models are at exactly zero.
    log_mean = np.where(log_p == log_q, log_p, np.logaddexp(log_p, log_q) - np.log(2))
    divergence = np.exp(log_p) * (log_p - log_mean) + np.exp(log_q) * (log_q - log_mean)
    # Rounding can leave a little less than nothing.
    return np.maximum(0.5 * divergence.sum(axis=-1), 0.0)
