"""What a server can check of a forget order without any client's data.

It has the model before and after, a test set of its own, and clients' confirmations.
Accuracy says what the model answers; a probe says whether a fresh classifier still
reads a class off the features, next to an untrained network of the same form.
Membership of clients' images, relearning from them and the distance to a model
retrained without the class need data or training that a server does not have here:
the report says so.
"""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune.audit.probe import held_out_scores, placements
from fuprune.files import write_whole
from fuprune.flower import ledger
from fuprune.flower.training import Session
from fuprune.run.build import initial_variables
from fuprune.unlearning.activations import pooled_convolutions

BEFORE_FILE = "before.json"  # of an order: what the model showed
START_FILE = "start.json"  # of an order: which model it starts from, by which method
NOT_CHECKED = (
    "Not checked, because it needs clients' data or a retrained model: membership of "
    "the forgotten images, how fast they are relearned, the distance to retraining. A "
    "simulation with the same config has all of these."
)


def write_report(session: Session, made: Any, facts: dict[str, Any]) -> Path:
    """Writes `report.md` and `report.json` of a closed order; the path of the first.

    Meanwhile clients are told that it is closed. `made` is the network and the
    variables that the method gave, and `facts` are the method's, JSON-able.
    """
    roster, federation = session.clients.roster, session.federation
    order, folder = session.order, session.workdir / session.unit
    with ledger.sending(session.workdir, order.order, roster):
        after = measure(session, *made)
        start = initial_variables(made[0], session.key)
        untrained = probe(made[0], start, federation, order.classes)
    content = {
        "order": order.order,
        "forgotten": order.describe(),
        "classes": order.classes,
        "clients": order.clients,
        "examples": order.examples,
        # Not the present run's, which may only write the report of an earlier one.
        "method": json.loads((folder / START_FILE).read_text("utf-8"))["method"],
        "test_images": len(federation.test.labels),
        "before": json.loads((folder / BEFORE_FILE).read_text("utf-8")),
        "after": after,
        "untrained_probe": untrained,
        "confirmed_by": ledger.holders(roster, order.order),
        "facts": facts,
    }
    content["verdict"] = verdict(content)
    write_whole(folder / "report.json", json.dumps(content, indent=1) + "\n")
    write_whole(folder / "report.md", _prose(content))
    return folder / "report.md"


def keep_before(session: Session, model: Any, variables: Any) -> None:
    """Keeps what the model shows before it is changed, also for a resumed run."""
    file = session.workdir / session.unit / BEFORE_FILE
    if not file.exists():
        write_whole(file, json.dumps(measure(session, model, variables)) + "\n")


def measure(session: Session, model: Any, variables: Any) -> dict:
    """What the server's test set shows of a model: a column of the report, JSON-able.

    A class is also probed for.
    """
    evaluation, order = session.evaluate(model, variables), session.order
    row: dict[str, Any] = {"parameters": count_parameters(variables)}
    if not order.classes:
        # The server holds nothing of what other orders name.
        return row | {"accuracy": round(evaluation.accuracy, 4)}
    named = list(order.classes)
    return row | {
        "forgotten_accuracy": round(evaluation.accuracy_on(order.classes), 4),
        "remaining_accuracy": round(evaluation.accuracy_without(order.classes), 4),
        "forgotten_images": int(evaluation.confusion[named].sum()),
        "answers_forgotten": int(evaluation.confusion[:, named].sum()),
        "probe": probe(model, variables, session.federation, order.classes),
    }


def count_parameters(variables: Any) -> int:
    """How many numbers a network learns."""
    return sum(int(np.size(x)) for x in jax.tree.leaves(variables["params"]))


def probe(model, variables, federation: Any, classes) -> float | None:
    """How well fresh linear classifiers tell the classes from the rest: ROC area.

    On the last convolution's channels over the server's test images; None if the
    network has no convolution, or the test set lacks the classes.
    """
    test = federation.test
    forgotten = np.isin(test.labels, classes)
    if not 0 < forgotten.sum() < len(forgotten):
        return None
    features = _features(model, federation.prepare)(variables, test.images)
    if features is None:
        return None
    scores = held_out_scores(
        np.asarray(features),
        test.labels,
        forgotten,
        # A fixed seed: the report must come out the same when it is written again.
        0,
    )
    above = placements(scores[forgotten], scores[~forgotten])
    return round(float(above.mean()), 4)


@functools.lru_cache(maxsize=2)
def _features(model, prepare):
    """`(variables, uint8 images) -> [N, C]` of the last convolution, or None."""

    @jax.jit
    def features(variables, images):
        pooled = pooled_convolutions(model, variables, prepare(None, images))
        return list(pooled.values())[-1] if pooled else None

    return features


def verdict(content: dict[str, Any]) -> str:
    """What the figures of a report say, in one sentence."""
    before, after = content["before"], content["after"]
    what = content["forgotten"]
    if not content["classes"]:
        return (
            f"{what[0].upper()}{what[1:]} had no part in the last training, and "
            f"accuracy on the test set went from {before['accuracy']:.1%} to "
            f"{after['accuracy']:.1%}; whether the model remembers them does not show "
            "on the server's data."
        )
    answers, kept = after["answers_forgotten"], after["remaining_accuracy"]
    text = (
        f"The model answers {answers or 'none'} of {content['test_images']} test "
        f"images with {what} ({before['answers_forgotten']} before), and is right on "
        f"{kept:.1%} of the others ({before['remaining_accuracy']:.1%} before)"
    )
    found, chance = after["probe"], content["untrained_probe"]
    if found is None or chance is None:
        return f"{text}."
    seen = "no better than" if found <= chance else "better than"
    return (
        f"{text}; a fresh classifier tells {what} by its features {seen} by those of "
        f"an untrained network (area under the ROC {found:.3f} against {chance:.3f})."
    )


_LINES = (
    ("accuracy on the forgotten", "forgotten_accuracy"),
    ("accuracy on the remaining", "remaining_accuracy"),
    ("images answered with a forgotten class", "answers_forgotten"),
    ("probe: area under the ROC", "probe"),
    ("accuracy", "accuracy"),
    ("parameters", "parameters"),
)


def _prose(content: dict[str, Any]) -> str:
    before, after = content["before"], content["after"]
    probed = [
        f"The probe of an untrained network of the same form: "
        f"{_text(content['untrained_probe'])}.",
        "",
    ]
    return "\n".join(
        [
            f"# Order {content['order']}: {content['forgotten']}, by "
            f"{content['method']}",
            "",
            content["verdict"],
            "",
            "| on the server's test set | before | after |",
            "|---|---:|---:|",
            *(
                f"| {name} | {_text(before[field])} | {_text(after[field])} |"
                for name, field in _LINES
                if field in before
            ),
            "",
            *(probed if content["classes"] else ()),
            f"Clients that confirmed: {', '.join(map(str, content['confirmed_by']))}. "
            "The others get the order with their next request, before anything else.",
            "",
            NOT_CHECKED,
            "",
        ]
    )


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}"
