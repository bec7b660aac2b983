"""What a cut is worth: score x place x R x rounds, with controls, on class 0.

Every start is a change to the published raw ResNet20 for CIFAR-10 (a cut, its control,
or nothing), fine-tuned without class 0 by a gentle schedule (a warm-up to 0.125, the
raw model with the class hidden as teacher of weight 0.9). Everything is chosen and
measured on the validation images, a tenth of the training set that no model trained
on: accuracy on the class (U) and on the others (R), linear probes at three depths, the
few-shot probe, and relearning from a fresh row in the head.

    python benchmarks/cut_study.py --rounds 0,9,18,35
    python benchmarks/cut_study.py --rounds 70,175 --starts no_cut contrast_0.1
    python benchmarks/cut_study.py --table
    python benchmarks/cut_study.py --alone

The last one cuts each of the ten classes with the rate that the clients' answers ask
for (`prune.rate=auto`), trains nothing, and asks the test images.

Rows are appended to the file as they are measured, and those in it are not run again.
"""

import argparse
import functools
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune.audit.outputs import depths_of, logits_of
from fuprune.audit.probe import few_shot, held_out_scores, placements
from fuprune.audit.relearn import halves, looks, relearn
from fuprune.audit.training import batch_rows
from fuprune.config import load_config
from fuprune.data.dataset import Dataset
from fuprune.data.federated import take_clients
from fuprune.federated.objective import distillation
from fuprune.federated.train import FitResult, fit
from fuprune.run import build, machine
from fuprune.run.data import load_data
from fuprune.surgery import PrunePlan, compact, layer_names, make_plan, reset
from fuprune.unlearning.activations import collect, merge_activations
from fuprune.unlearning.class_pruning import score_channels
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import ForgetRequest, remaining

RAW = "results/cifar10_resnet20_raw/models/raw.safetensors"
OUT = Path(__file__).parent / "results" / "cut_study.jsonl"
ALONE = OUT.with_name("cut_alone.jsonl")
AUTO = (("contrast", "global"), ("contrast", "balanced"))
FORGOTTEN, LAST_STAGE = 0, "stage3"
SEED, PEAK, WARMUP, TEACHER = 0, 0.125, 15, 0.9
RELEARN_STEPS, RELEARN_DRAWS = 60, 2
STARTS = (
    "no_cut",
    "tf_idf_0.05",
    "tf_idf_balanced_0.05",
    "contrast_0.05",
    "contrast_0.1",
    "contrast_balanced_0.1",
    "contrast_0.1_reset",
    "contrast_balanced_0.1_reset",
    "random_balanced_0.1",
    "random_balanced_0.1_reset",
    "noise_0.3",
    "projected",
)
_DRAWN = {
    "no_cut": ("no cut", "tab:gray"),
    "tf_idf_0.05": ("TF-IDF 0.05 (paper)", "tab:red"),
    "contrast_balanced_0.1": ("contrast 0.1, removed", "tab:blue"),
    "contrast_balanced_0.1_reset": ("contrast 0.1, reset", "tab:green"),
    "random_balanced_0.1_reset": ("random of the same layers, reset", "tab:olive"),
    "projected": ("direction projected out", "tab:purple"),
}
_COLUMNS = {
    "u": "U %",
    "r": "R %",
    "early": "probe, early",
    "middle": "middle",
    "last": "last",
    "few_shot": "few-shot %",
    "relearn": "relearned %",
}


class Study:
    """The federation, the raw model, its statistics, and how to measure and tune."""

    def __init__(self):
        _, config = load_config("cifar10_resnet_cpu")
        config.unlearn.classes = str(FORGOTTEN)
        config.runtime.dtype = "bfloat16"
        runtime = machine.start(devices=1, backend="map", cohort=config.train.cohort)
        self.federation = load_data(config, runtime)
        self.setup = build.Setup(
            config, self.federation, runtime.backend, runtime.mesh, runtime.conv
        )
        self.model, self.variables = build.load_model(self.setup, RAW)
        data = self.federation.data
        self.retained = remaining(data, ForgetRequest(classes=(FORGOTTEN,)))
        self.images = jax.ShapeDtypeStruct((2, *data.images.shape[1:]), np.float32)
        generator = np.random.default_rng(SEED)
        held_out = self.federation.validation
        self.sides = halves(held_out.labels, generator)
        own = held_out.labels == FORGOTTEN
        others = generator.permutation(np.flatnonzero(~own))[:500]
        self.probed = np.sort(np.concatenate([np.flatnonzero(own), others]))

    def prepare(self, images):
        """Images as the network takes them."""
        return self.federation.prepare(jax.random.key(0), images)

    @functools.cached_property
    def activations(self):
        """A* of 25 clients: layer -> [U, C]."""
        data = self.federation.data
        clients = build.participants(
            self.setup.config, "class_pruning", self.federation
        )
        collected = collect(
            self.model,
            self.variables,
            take_clients(data, np.asarray(clients)),
            num_classes=self.federation.num_classes,
            preprocess=self.federation.prepare,
            backend=self.setup.backend,
        )
        return merge_activations(collected.uploads)

    def tune(self, model, variables, rounds: int):
        """Fine-tunes on the other classes."""
        objective = distillation(
            self.model, self.variables, weight=TEACHER, masked_classes=(FORGOTTEN,)
        )
        schedule = build.Schedule(
            rounds, PEAK, "warmup_cosine", min(WARMUP, rounds // 2)
        )
        algorithm = build.make_algorithm(
            self.setup, model, schedule, objective=objective
        )
        done = fit(
            algorithm,
            algorithm.init(variables),
            self.retained,
            key=jax.random.key(SEED),
            cohort_size=self.setup.config.train.cohort,
            rounds=rounds,
        )
        return done.state.variables

    def measure(self, model, variables) -> dict[str, float]:
        """Everything in a row's columns, as shares."""
        pair = (model, variables)
        images, labels = self.federation.validation
        right = logits_of(pair, images, self.prepare).argmax(-1) == labels
        own = labels == FORGOTTEN
        row = {"u": float(right[own].mean()), "r": float(right[~own].mean())}
        some = labels[self.probed]
        features = depths_of(pair, images[self.probed], self.prepare)
        for depth, found in features.items():
            scores = held_out_scores(found, some, some == FORGOTTEN, SEED)
            inside = some == FORGOTTEN
            row[depth] = float(placements(scores[inside], scores[~inside]).mean())
        few = few_shot(features["last"], some, (FORGOTTEN,), SEED)
        row["few_shot"] = float(np.nanmean(few))
        return row | {"relearn": self.relearned(pair)}

    def relearned(self, pair) -> float:
        """Mean accuracy on the class while it is taught again, from a fresh row."""
        images, labels = self.federation.validation
        generator = np.random.default_rng(SEED)
        steps, areas = looks(RELEARN_STEPS), []
        for draw in range(RELEARN_DRAWS):
            teaching, asked = self.sides[draw % 2], self.sides[1 - draw % 2]
            asked = asked[labels[asked] == FORGOTTEN]
            lesson = batch_rows(generator, teaching, RELEARN_STEPS, 64)
            right = relearn(
                pair,
                (FORGOTTEN,),
                (self.federation.validation, lesson),
                Dataset(images[asked], labels[asked]),
                self.prepare,
                0.01,
                steps,
            )
            areas.append(np.trapezoid(right.mean(axis=1), steps) / steps[-1])
        return float(np.mean(areas))


def start(study: Study, name: str) -> tuple[Any, Any]:
    """The network that a start's name describes."""
    model, variables = study.model, study.variables
    if name == "no_cut":
        return model, variables
    if name.startswith("noise_"):
        return model, noisy(study, float(name.removeprefix("noise_")))
    if name == "projected":
        return model, projected(study)
    found = re.fullmatch(
        r"(tf_idf|contrast|random)(_balanced)?_([\d.]+)(_reset)?", name
    )
    assert found is not None, f"the name {name} describes no start"
    plan = plan_of(
        study, found[1], "balanced" if found[2] else "global", float(found[3])
    )
    if found[4]:
        key = jax.random.key(SEED)
        return model, reset(model, variables, plan, key=key, example=study.images)
    return compact(model, variables, plan, example=study.images)


def plan_of(study: Study, score: str, scope: str, rate: float) -> PrunePlan:
    """What a score cuts; random, as many of each layer as contrast cuts."""
    named = "contrast" if score == "random" else score
    scores = score_channels(
        study.activations, FORGOTTEN, score=named, leaving=(FORGOTTEN,)
    )
    plan = make_plan(scores, rate, scope=scope)
    if score == named:
        return plan
    generator, keep = np.random.default_rng(SEED), {}
    for layer, values in scores.items():
        order = generator.permutation(len(values))
        keep[layer] = np.sort(order[: len(plan.keep[layer])])
    return PrunePlan(keep)


def noisy(study: Study, share: float):
    """Kernels of the last stage mixed with fresh ones: (1 - share) old + share new."""
    fresh = build.initial_variables(study.model, jax.random.key(SEED + 1))

    def mix(path, old, new):
        where = jax.tree_util.keystr(path)
        if LAST_STAGE not in where or "kernel" not in where:
            return old
        return (1 - share) * old + share * new

    params = jax.tree_util.tree_map_with_path(
        mix, study.variables["params"], fresh["params"]
    )
    return {**study.variables, "params": params}


def projected(study: Study):
    """The class's own direction taken out of all that the last stage and head read.

    As DAMP does from sums: of the class's mean input to a layer, the part that the
    other classes' means do not span is projected out of the layer's kernel.
    """
    train = study.federation.train
    rows = np.concatenate([np.flatnonzero(train.labels == c)[:200] for c in range(10)])
    found = study.model.apply(
        study.variables,
        study.prepare(train.images[rows]),
        train=False,
        capture_intermediates=lambda module, name: name == "__call__",
        mutable=["intermediates"],
    )[1]["intermediates"]
    params = jax.tree.map(np.array, jax.device_get(study.variables["params"]))
    layers = [*layer_names(study.model), "head"]
    for before, layer in itertools.pairwise(layers):
        if LAST_STAGE not in layer and layer != "head":
            continue
        inputs = np.asarray(found[before]["__call__"][0], np.float64).mean(axis=(1, 2))
        means = np.stack([c.mean(axis=0) for c in np.split(inputs, 10)])
        own, others = means[FORGOTTEN], np.delete(means, FORGOTTEN, axis=0)
        basis = np.linalg.svd(others, full_matrices=False)[2]
        direction = own - basis.T @ (basis @ own)
        unit = direction / np.linalg.norm(direction)
        held = params[layer] if layer == "head" else params[layer]["conv"]
        along = np.einsum("...co,c->...o", held["kernel"], unit)
        held["kernel"] -= (unit[:, None] * along[..., None, :]).astype(np.float32)
    return {**study.variables, "params": jax.device_put(params)}


def run(names, rounds, out: Path) -> None:
    """Measures every pair of start and rounds that is not yet in the file."""
    done = {(row["start"], row["rounds"]) for row in read(out)}
    missing = [(n, r) for n in names for r in rounds if (n, r) not in done]
    if not missing:
        return
    study = Study()
    for name, number in missing:
        model, variables = start(study, name)
        if number:
            variables = study.tune(model, variables, number)
        row = {"start": name, "rounds": number, **study.measure(model, variables)}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def alone(out: Path) -> None:
    """U and R on test images after the cut by itself, for every class and place."""
    done = {(row["class"], row["score"], row["scope"]) for row in read(out)}
    study = Study()
    images, labels = study.federation.test

    def keep(model, variables, data, key):
        del data, key
        algorithm = build.make_algorithm(study.setup, model, build.Schedule(1, PEAK))
        return FitResult(algorithm.init(variables), [], None)

    places = itertools.product(range(10), (*AUTO, ("tf_idf", "global")))
    for target, (score, scope) in places:
        if (target, score, scope) in done:
            continue
        given = build.method_options(study.setup, "class_pruning")
        given |= {"score": score, "scope": scope, "rate": "auto"}
        result = METHODS["class_pruning"](
            study.model,
            study.variables,
            study.federation.data,
            (target,),
            key=jax.random.key(SEED),
            fine_tune=keep,
            **given,
        )
        answers = logits_of((result.model, result.variables), images, study.prepare)
        right, own = answers.argmax(-1) == labels, labels == target
        tried = result.notes["auto_rate"][str(target)]
        row = {"class": target, "score": score, "scope": scope}
        row |= {"rate": tried[-1]["rate"], "tries": len(tried)}
        row |= {"u": float(right[own].mean()), "r": float(right[~own].mean())}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def read(out: Path) -> list[dict[str, Any]]:
    """The rows of a file, none if there is no file."""
    return [json.loads(x) for x in out.read_text().splitlines()] if out.exists() else []


def table(rows, rounds) -> str:
    """Rows of the given numbers of rounds in Markdown."""
    form: dict[str, Callable[[float], str]] = {
        column: (lambda x: f"{100 * x:.1f}") for column in ("u", "r", "few_shot")
    }
    form["relearn"] = form["u"]
    lines = [
        "| start | rounds | " + " | ".join(_COLUMNS.values()) + " |",
        "|" + "---|" * (2 + len(_COLUMNS)),
    ]
    for row in sorted(rows, key=lambda r: (r["rounds"], STARTS.index(r["start"]))):
        if row["rounds"] in rounds:
            cells = [form.get(c, lambda x: f"{x:.3f}")(row[c]) for c in _COLUMNS]
            lines.append(f"| {row['start']} | {row['rounds']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(rows, file: Path) -> None:
    """Accuracy on the others against depth: a curve per start, a point per rounds."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.rcParams |= {"svg.hashsalt": "fuprune", "svg.fonttype": "none"}
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, (label, colour) in _DRAWN.items():
        course = sorted(
            (row["rounds"], 100 * row["relearn"], 100 * row["r"])
            for row in rows
            if row["start"] == name and row["rounds"]
        )
        if not course:
            continue
        rounds, depth, others = zip(*course, strict=True)
        axes.plot(depth, others, "o-", color=colour, label=label)
        for number, x, y in zip(rounds, depth, others, strict=True):
            axes.annotate(
                str(number), (x, y), (3, 4), textcoords="offset points", fontsize=8
            )
    axes.set_xlabel("relearned from a fresh row, % (less is deeper)")
    axes.set_ylabel("accuracy on the other classes, %")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", nargs="+", default=STARTS, choices=STARTS)
    parser.add_argument("--rounds", default="0,9,18,35")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="print it, run nothing")
    parser.add_argument("--alone", action="store_true", help="cuts without training")
    parser.add_argument("--picture", type=Path, help="file to draw the frontier in")
    options = parser.parse_args()
    if options.alone:
        return alone(ALONE)
    rounds = [int(number) for number in options.rounds.split(",")]
    if not options.table:
        run(options.starts, rounds, options.out)
    print(table(read(options.out), rounds))
    if options.picture:
        picture(read(options.out), options.picture)


if __name__ == "__main__":
    main()
