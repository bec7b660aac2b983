"""What a server can check of a forgotten class without any client's data.

It has the model before and after, a test set of its own, and clients' confirmations.
Accuracy says what the model answers; a probe says whether a fresh classifier still
reads the class off the features, next to an untrained network of the same form.
Membership of clients' images, relearning from them and the distance to a model
retrained without the class need data or training that a server does not have here:
the report says so.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import roc_auc_score

from fuprune.audit.options import ProbeOptions
from fuprune.audit.probe import held_out_scores
from fuprune.federated.evaluate import Evaluation
from fuprune.files import write_whole
from fuprune.flower import ledger
from fuprune.flower.node import Order
from fuprune.unlearning.activations import pooled_convolutions
from fuprune.unlearning.protocol import UnlearnError

Model = tuple[Any, Any]  # network and variables
NOT_CHECKED = (
    "Not checked, because it needs clients' data or a retrained model: membership of "
    "the forgotten images, how fast the class is relearned from them, the distance to "
    "retraining. A simulation with the same config has all of these."
)


def write_report(
    folder: Path,
    *,
    order: Order,
    method: str,
    models: tuple[Model, Model],
    evaluations: tuple[Evaluation, Evaluation],
    federation: Any,
    roster: Any,
    facts: dict[str, Any],
    key: jax.Array,
) -> Path:
    """Writes `report.md` and `report.json` of an order; the path of the first.

    Args:
      folder: of the order.
      order: what was ordered.
      method: how it was forgotten.
      models: before and after.
      evaluations: on the server's test set, before and after.
      federation: `test` and `prepare` are used.
      roster: who confirmed.
      facts: of the method, JSON-able.
      key: of the untrained network.
    """
    before, after = (
        _row(m, e, order) for m, e in zip(models, evaluations, strict=True)
    )
    for row, model in zip((before, after), models, strict=True):
        row["probe"] = probe(*model, federation, order.classes)
    fresh = models[1][0]
    start = fresh.init(key, jnp.zeros((1, *fresh.input_shape)), train=False)
    untrained = probe(fresh, start, federation, order.classes)
    confirmed = ledger.holders(roster, order.order)
    content = {
        "order": order.order,
        "classes": list(order.classes),
        "method": method,
        "before": before,
        "after": after,
        "untrained_probe": untrained,
        "confirmed_by": confirmed,
        "facts": facts,
    }
    write_whole(folder / "report.json", json.dumps(content, indent=1) + "\n")
    write_whole(folder / "report.md", _prose(content))
    return folder / "report.md"


def probe(model, variables, federation: Any, classes) -> float | None:
    """How well fresh linear classifiers tell the classes from the rest: ROC area.

    On the last convolution's channels over the server's test images; None if the
    network has no convolution, or the test set lacks the classes.
    """
    test = federation.test
    forgotten = np.isin(test.labels, classes)
    if not 0 < forgotten.sum() < len(forgotten):
        return None
    images = federation.prepare(None, jnp.asarray(test.images))
    try:
        features = pooled_convolutions(model, variables, images)
    except UnlearnError:
        return None
    if not features:
        return None
    scores = held_out_scores(
        np.asarray(list(features.values())[-1]),
        test.labels,
        forgotten,
        "linear",
        ProbeOptions(),
        0,
    )
    return round(float(roc_auc_score(forgotten, scores)), 4)


def _row(model: Model, evaluation: Evaluation, order: Order) -> dict[str, Any]:
    params = jax.tree.leaves(model[1]["params"])
    return {
        "forgotten_accuracy": round(evaluation.accuracy_on(order.classes), 4),
        "remaining_accuracy": round(evaluation.accuracy_without(order.classes), 4),
        "forgotten_images": int(evaluation.confusion[list(order.classes)].sum()),
        "answers_forgotten": int(evaluation.confusion[:, list(order.classes)].sum()),
        "parameters": sum(int(np.size(x)) for x in params),
    }


def _prose(content: dict[str, Any]) -> str:
    before, after = content["before"], content["after"]

    def line(name: str, field: str) -> str:
        return f"| {name} | {_text(before[field])} | {_text(after[field])} |"

    classes = ", ".join(map(str, content["classes"]))
    return "\n".join(
        [
            f"# Order {content['order']}: class {classes}, by {content['method']}",
            "",
            "| on the server's test set | before | after |",
            "|---|---:|---:|",
            line("accuracy on the forgotten", "forgotten_accuracy"),
            line("accuracy on the remaining", "remaining_accuracy"),
            line("images answered with a forgotten class", "answers_forgotten"),
            line("probe: area under the ROC", "probe"),
            line("parameters", "parameters"),
            "",
            f"The probe of an untrained network of the same form: "
            f"{_text(content['untrained_probe'])}.",
            "",
            f"Clients that confirmed: {', '.join(map(str, content['confirmed_by']))}. "
            "The others get the order with their next request, before anything else.",
            "",
            NOT_CHECKED,
            "",
        ]
    )


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}"
