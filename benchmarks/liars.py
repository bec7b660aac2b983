"""How many channels of a cut hostile clients choose, by score and by weighting.

Five honest clients have class statistics of one distribution: 48 channels in two
layers, class means drawn log-normal, 20 images of each class with noise. Liars know all
of it, and praise as the class's own every channel but those that would be cut. The
table has how many of the channels that honest statistics cut are still cut, as a mean
over 20 draws.

    python benchmarks/liars.py    # seconds
"""

import numpy as np

from fuprune.unlearning.activations import ClassActivations, merge_activations
from fuprune.unlearning.class_pruning import server_proc

TARGET, RATE, CLASSES, IMAGES, DRAWS = 3, 0.2, 10, 20, 20
WIDTHS = {"conv1": 16, "conv2": 32}
WEIGHTINGS = ("examples", "clients", "median")


def honest(generator: np.random.Generator, clients: int) -> list[ClassActivations]:
    """The statistics of clients with images of one distribution."""
    means = {n: generator.lognormal(size=(CLASSES, w)) for n, w in WIDTHS.items()}
    counts = np.full(CLASSES, IMAGES, np.int32)
    return [
        ClassActivations(
            {
                n: generator.gamma(IMAGES, mean).astype(np.float32)
                for n, mean in means.items()
            },
            counts,
        )
        for _ in range(clients)
    ]


def removed(uploads, score: str, weighting: str) -> set:
    """Layer and channel of all that is cut."""
    merged = merge_activations(uploads, weighting=weighting)
    keep = server_proc(merged, TARGET, RATE, score=score).plan.keep
    return {
        (layer, channel)
        for layer, width in WIDTHS.items()
        for channel in set(range(width)) - set(map(int, keep[layer]))
    }


def lie(upload: ClassActivations, chosen: set) -> ClassActivations:
    """Statistics that praise all but the chosen channels as the target's own."""
    total = {}
    for layer, sums in upload.total.items():
        sums = np.array(sums)
        sums[TARGET] = 1e6
        sums[TARGET, [c for name, c in chosen if name == layer]] = 0
        total[layer] = sums
    return upload._replace(total=total)


def main() -> None:
    """Prints one row per score and number of liars."""
    print("| score | clients | liars | " + " | ".join(WEIGHTINGS) + " |")
    print("|---|---:|---:" + "|---:" * len(WEIGHTINGS) + "|")
    for score in ("tf_idf", "contrast"):
        for clients, liars in ((3, 0), (3, 1), (5, 1), (5, 2), (5, 3)):
            shares = np.zeros(len(WEIGHTINGS))
            for draw in range(DRAWS):
                uploads = honest(np.random.default_rng(draw), clients)
                cut = removed(uploads, score, "examples")
                said = [lie(u, cut) if i < liars else u for i, u in enumerate(uploads)]
                still = [len(cut & removed(said, score, w)) for w in WEIGHTINGS]
                shares += np.asarray(still) / len(cut) / DRAWS
            cells = " | ".join(f"{100 * share:.0f}%" for share in shares)
            print(f"| {score} | {clients} | {liars} | {cells} |")


if __name__ == "__main__":
    main()
