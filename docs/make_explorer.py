"""Writes the explorer: what each class, score and rate cuts, and what is then left.

From the published ResNet20 on CIFAR-10. Statistics are of the first 500 training images
per class, accuracies of the first 100 test images per class, right after the cut and
before any fine-tuning. The numbers are one line of docs/explorer.html, which needs
nothing else.

    python docs/make_explorer.py            # minutes on a CPU
"""

import json
import pathlib
import re

import jax
import numpy as np

import fuprune
from fuprune.data.known_sets import find_known
from fuprune.unlearning.scores import SCORES

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
MODEL = RESULTS / "cifar10_resnet20_raw" / "models" / "raw.safetensors"
PAGE = HERE / "explorer.html"
RATES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


def main():
    """Measure, and put the numbers into the page."""
    # `</` would end the script.
    numbers = json.dumps(measured(), separators=(",", ":")).replace("</", "<\\/")
    PAGE.write_text(filled(PAGE.read_text(), numbers))


def filled(page: str, numbers: str) -> str:
    """The page with other numbers."""
    line = f"const data = {numbers};"
    return re.sub("^const data = .*;$", lambda _: line, page, flags=re.MULTILINE)


def measured() -> dict:
    """Orders of channels, and accuracies of every class after every cut."""
    model, variables = fuprune.load(str(MODEL))
    known = find_known("cifar10")
    assert known is not None
    prepare = fuprune.make_preprocess(known.mean, known.std)
    train, test = (balanced(split, n) for split, n in (("train", 500), ("test", 100)))
    uploads = [
        fuprune.class_activations(
            model, variables, prepare(None, images), labels, num_classes=10
        )
        for images, labels in batches(*train)
    ]
    activations = fuprune.merge_activations(uploads)
    apply = jax.jit(lambda w, x: model.apply(w, x, train=False).argmax(axis=-1))

    def accuracies(variables) -> list[int]:
        right = np.concatenate(
            [
                np.asarray(apply(variables, prepare(None, images)) == labels)
                for images, labels in batches(*test)
            ]
        )
        shares = [right[test[1] == label].mean() for label in range(10)]
        return [round(100 * float(share)) for share in shares]

    found = {}
    for name, score in SCORES.items():
        for label in range(10):
            scores = {k: np.asarray(score(a, label)) for k, a in activations.items()}
            plans = [fuprune.make_plan(scores, rate) for rate in RATES]
            cuts = [fuprune.mask(model, variables, plan) for plan in plans]
            found[f"{name} {label}"] = {
                # Of each channel the first of the rates at which it is cut.
                "cut_at": [first_cut(plans, k, len(s)) for k, s in scores.items()],
                "accuracy": [accuracies(cut) for cut in cuts],
            }
            print(name, label, found[f"{name} {label}"]["accuracy"], flush=True)
    return {
        "classes": list(fuprune.class_names("cifar10")),
        "layers": list(activations),
        "rates": RATES,
        "before": accuracies(variables),
        "choices": found,
    }


def first_cut(plans, layer: str, width: int) -> list[int]:
    """For each channel the place of the first plan that cuts it; -1 for none."""
    gone = np.array([~np.isin(np.arange(width), plan.keep[layer]) for plan in plans])
    return np.where(gone.any(axis=0), gone.argmax(axis=0), -1).tolist()


def balanced(split: str, number: int):
    """The first images of each class, and their labels."""
    data = fuprune.load_dataset("cifar10", split=split)
    chosen = [np.flatnonzero(data.labels == label)[:number] for label in range(10)]
    chosen = np.sort(np.concatenate(chosen))
    return data.images[chosen], data.labels[chosen]


def batches(images, labels, size: int = 500):
    """Parts of equal size, so that one program does for all."""
    for start in range(0, len(images), size):
        yield images[start : start + size], labels[start : start + size]


if __name__ == "__main__":
    main()
