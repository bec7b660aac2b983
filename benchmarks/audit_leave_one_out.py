"""How often the audit finds an honest model different, and how often a pretender.

Small networks are trained on scikit-learn's digits, one with all classes and others
from scratch without the 9. Each is measured once. In each draw some of the retrained
ones are the references, and others, one seed or three, the candidate; `mask_logit`,
short fine-tuning, an untrained network and a retrained one whose hidden layer was
flattened are judged against the same references.

    python benchmarks/audit_leave_one_out.py --draws 300

The retrained models of stored audits are left out in turn as well, one candidate
against the others of its run, on the values that those audits hold (not on distances,
which would have to be measured again):

    python benchmarks/audit_leave_one_out.py --audits results/*/audit.json
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit import AuditData, AuditOptions, answers, probe, relearn
from fuprune.audit.audit import measured
from fuprune.audit.judge import Measure, judge
from fuprune.audit.measures import generator_of
from fuprune.audit.reading import read
from fuprune.audit.record import DIFFERENT, Row
from fuprune.audit.training import batch_rows, init_state, sgd_step
from fuprune.data.dataset import Dataset
from fuprune.data.preprocess import normalise
from fuprune.data.sources import load
from fuprune.models.adapt import adapt
from fuprune.models.fresh import init_variables

FORGOTTEN = 9
OPTIONS = AuditOptions()


class SmallNet(nn.Module):
    """Two convolutions and a hidden layer."""

    @nn.compact
    def __call__(self, images):
        """Logits [B, 10]."""
        x = nn.relu(nn.Conv(16, (3, 3), name="first")(images))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(32, (3, 3), name="second")(x))
        x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        x = nn.relu(nn.Dense(32, name="hidden")(x))
        return nn.Dense(10, name="head")(x)


MODEL = SmallNet()


def preprocess(images):
    """Images as the network takes them."""
    return normalise(images, (0.3,), (0.4,))


def train(data: Dataset, start: Any, seed: int, steps: int, rate: float) -> Any:
    """Variables after some steps with a rate that falls along a cosine."""
    rows = batch_rows(
        np.random.default_rng(seed), np.arange(len(data.labels)), steps, 32
    )
    state = init_state(start)
    for i, batch in enumerate(rows):
        decay = 0.5 * (1 + np.cos(np.pi * i / steps))
        state = sgd_step(
            adapt(MODEL),
            state,
            jax.device_put(preprocess(data.images[batch])),
            jax.device_put(data.labels[batch]),
            jax.random.key(i),
            jnp.float32(rate * decay),
        )
    return state.variables


def flattened(variables: Any) -> Any:
    """The same model with a hidden layer that answers to one direction of its input."""
    params = dict(variables["params"])
    left, sizes, right = np.linalg.svd(
        np.asarray(params["hidden"]["kernel"]), full_matrices=False
    )
    kernel = jnp.asarray(sizes[0] * np.outer(left[:, 0], right[0]))
    params["hidden"] = {**params["hidden"], "kernel": kernel}
    return {**variables, "params": params}


def measure_digits(number: int) -> list[Measure]:
    """The headline's measures of `number` retrained models and of the pretenders."""
    data = AuditData(
        load("digits", split="train"), load("digits", split="test"), preprocess
    )
    rest = Dataset(*(part[data.train.labels != FORGOTTEN] for part in data.train))

    def fresh(seed: int) -> Any:
        sample = preprocess(data.train.images[:2])
        return dict(init_variables(MODEL, jax.random.key(seed), sample))

    raw = train(data.train, fresh(0), 0, 250, 0.05)
    retrained = [train(rest, fresh(s), s, 250, 0.05) for s in range(1, number + 1)]
    pretenders = {
        "fine_tune_only": train(rest, raw, 0, 30, 0.01),
        "untrained": fresh(number + 1),
        "flattened": flattened(retrained[0]),
    }
    subject = measured(
        {name: (MODEL, variables) for name, variables in pretenders.items()},
        [(MODEL, variables) for variables in retrained],
        (MODEL, raw),
        data,
        (FORGOTTEN,),
        jax.random.key(0),
        options=OPTIONS,
    )
    found = [
        *answers.accuracy_measures(subject),
        *answers.distance_measures(subject),
        *relearn.relearn_measures(subject, generator_of(jax.random.key(1)))[0],
        *probe.probe_measures(subject, generator_of(jax.random.key(2))),
    ]
    # Distances depend on which models are the references: keep what they are made of.
    rows = subject.unseen
    logits = subject.each(lambda one: np.concatenate([one.forgotten, one.test[rows]]))
    DISTANCES.update(
        {
            (a, b): answers.total_variation(x, y).mean()
            for a, x in logits.items()
            for b, y in logits.items()
        }
    )
    return [measure for measure in found if measure.headline]


DISTANCES: dict[tuple[str, str], float] = {}


def drawn(
    measures: Sequence[Measure], references: Sequence[int], honest: Sequence[int]
) -> list[Row]:
    """The rows with some retrained models as references and others as a candidate."""
    chosen = []
    for measure in measures:
        known = measure.retrained
        if measure.leave_one_out:
            known, others = _distances(references, len(known)), measure.models
            models = {name: [_distance(name, references)] for name in others}
        else:
            models = dict(measure.models)
        models["honest"] = [known[i] for i in honest]
        chosen.append(
            measure._replace(retrained=[known[i] for i in references], models=models)
        )
    return judge(chosen)


def _distance(name: str, references: Sequence[int]) -> float:
    others = [f"retrained_{i}" for i in references]
    return float(np.mean([DISTANCES[name, o] for o in others if o != name]))


def _distances(references: Sequence[int], count: int) -> list[float | None]:
    return [_distance(f"retrained_{i}", references) for i in range(count)]


def shares(
    measures: Sequence[Measure], references: int, seeds: int, draws: int
) -> dict[str, float]:
    """How often each model is different in any row, and the honest one in which."""
    generator, found = np.random.default_rng(0), Counter()
    count = len(measures[0].retrained)
    for _ in range(draws):
        order = generator.permutation(count).tolist()
        rows = drawn(measures, order[:references], order[-seeds:])
        for model in rows[0].models:
            names = [row.name for row in rows if row.verdict(model) == DIFFERENT]
            found[model] += bool(names)
            if model == "honest":
                found.update(f"honest: {name}" for name in names)
    return {name: hits / draws for name, hits in found.items()}


def leave_out_stored(paths: Sequence[Path]) -> None:
    """Prints how often a stored retrained model is different from the others."""
    seen, found, tried = set(), [], 0
    for path in paths:
        audit = read(path.read_text())
        rows = [row for row in audit.headline() if row.kind != "distance"]
        rows = [row for row in rows if None not in row.retrained]
        # Several audits share their retrained models.
        key = tuple(rows[0].retrained) + tuple(rows[-1].retrained[:1])
        if key in seen:
            continue
        seen.add(key)
        for i in range(audit.retrained):
            tried += 1
            measures = [_left_out(row, i) for row in rows]
            names = [
                r.name for r in judge(measures) if r.verdict("honest") == DIFFERENT
            ]
            if names:
                found.append((path.parent.name, i, names))
        print(f"{path.parent.name}: {audit.retrained} retrained, {len(rows)} rows")
    print(f"{len(found)} of {tried} stored retrained models are different: {found}")


def _left_out(row: Row, i: int) -> Measure:
    others = [value for j, value in enumerate(row.retrained) if j != i]
    error = 1.0 / 1000 if row.kind == "accuracy" else 0.0
    return Measure(
        row.name,
        row.kind,
        row.question,
        others,
        {"honest": [row.retrained[i]]},
        headline=True,
        harm=row.harm,
        error=error,
    )


def main() -> None:
    """Prints the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--retrained", type=int, default=20)
    parser.add_argument("--audits", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    if options.audits:
        leave_out_stored(options.audits)
        return
    measures = measure_digits(options.retrained)
    for references in (5, 10):
        for seeds in (1, 3):
            found = shares(measures, references, seeds, options.draws)
            text = ", ".join(f"{name} {share:.1%}" for name, share in found.items())
            print(f"{references} retrained, {seeds} seeds: {text}", flush=True)


if __name__ == "__main__":
    main()
