"""How often the audit's verdicts are wrong, and what they can see: a simulation.

Draws the numbers of n retrained models and of one candidate, and judges them as an
audit does; some draws of every cell go through `fuprune.audit.verdict` itself, and must
come out the same. Three questions:

- How often does a candidate that is one more retrained model fail the headline? Asked
  for several shapes of the spread among seeds, because Student's t assumes a normal
  one. `spread.ALLOWANCE` was chosen so that about 5% fail if every spread is
  exponential and tests share 30% of their variance.
- What do the parts of the procedure do to that, and to what is seen?
- How often does a candidate fail that lies some standard deviations away from
  retraining, by kind of test?

    python benchmarks/audit_power.py --draws 20000 \
        --json benchmarks/results/audit_power.json

prints the Markdown tables of docs/audit.md, and keeps the numbers.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import special

from fuprune.audit.evidence import HEADLINE, TWO_SIDED, WORSE
from fuprune.audit.spread import ALLOWANCE, LENT_FREEDOM, Draft
from fuprune.audit.verdict import headline, settle, shares_of

SEEDS = (3, 5, 10)
LEVEL = 0.05
CANDIDATE = "candidate"
CHECKED = 20  # draws of each cell that the audit's own code judges, too


class Test(NamedTuple):
    """One test of the headline, as far as the simulation knows it."""

    name: str
    kind: str
    higher_is: str
    is_rate: bool
    is_constant: bool = False  # the same for all retrained models and the candidate


# `r_accuracy` fails on the low side; its sign does not matter here.
TESTS = (
    Test("u_accuracy", "accuracy", WORSE, True, is_constant=True),
    Test("r_accuracy", "accuracy", WORSE, True),
    Test("jensen_shannon", "distance", WORSE, False),
    Test("likelihood_ratio_offline_auc", "likelihood_ratio", TWO_SIDED, True),
    Test("difference_auc", "difference", TWO_SIDED, True),
    Test("probe_auc", "probe", TWO_SIDED, True),
    Test("probe_few_shot_accuracy", "probe", TWO_SIDED, True),
    Test("relearn_area", "relearn", TWO_SIDED, True),
)
# Tests that differ in nothing the simulation knows stand for each other.
KINDS_OF_TEST = {
    "accuracy (one of three on answers)": 1,
    "distance (one of three on answers)": 2,
    "membership (one of two)": 3,
    "probe (one of two)": 5,
    "relearning (alone)": 7,
}

# A generator and a shape -> independent numbers of mean 0 and deviation 1.
Spread = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SPREADS: dict[str, Spread] = {
    "normal": lambda generator, shape: generator.normal(0, 1, shape),
    "skewed (gamma, skewness 1)": lambda generator, shape: (
        generator.gamma(4, 0.5, shape) - 2
    ),
    "skewed the other way": lambda generator, shape: 2 - generator.gamma(4, 0.5, shape),
    "exponential (skewness 2)": lambda generator, shape: (
        generator.exponential(1, shape) - 1
    ),
    "exponential the other way": lambda generator, shape: (
        1 - generator.exponential(1, shape)
    ),
    "heavy tails (t, 5)": lambda generator, shape: (
        generator.standard_t(5, shape) / np.sqrt(5 / 3)
    ),
    "even (uniform)": lambda generator, shape: generator.uniform(
        -np.sqrt(3), np.sqrt(3), shape
    ),
}
NORMAL = SPREADS["normal"]
EXPONENTIAL = SPREADS["exponential (skewness 2)"]


class Rules(NamedTuple):
    """What a verdict is made by; the defaults are the audit's."""

    allowance: float = ALLOWANCE
    lent: int = LENT_FREEDOM
    is_even: bool = False  # the level shared over tests, not over questions first

    @property
    def shares(self) -> np.ndarray:
        """`[TESTS]`, of the level."""
        if self.is_even:
            return np.full(len(TESTS), 1 / len(TESTS))
        return np.asarray(shares_of([test.kind for test in TESTS]))


class World(NamedTuple):
    """Where numbers come from."""

    spread: Spread = NORMAL
    correlation: float = 0.3  # the share of variance that a model's tests have together
    # How unlike each other the rates' ratios of spread to error over images are: the
    # deviation of their logarithm. 15 seeds showed 0.6 and 0.5 on two networks.
    unlikeness: float = 0.5


class Numbers(NamedTuple):
    """Drawn numbers, in deviations between seeds."""

    retrained: np.ndarray  # [draws, seeds, TESTS]
    candidate: np.ndarray  # [draws, TESTS]
    errors: np.ndarray  # [draws, TESTS] over images; only their ratios matter


def draw(
    generator: np.random.Generator, draws: int, seeds: int, world: World
) -> Numbers:
    """Numbers of retrained models and of one more."""
    common = world.spread(generator, (draws, seeds + 1, 1))
    own = world.spread(generator, (draws, seeds + 1, len(TESTS)))
    share = world.correlation
    values = np.sqrt(share) * common + np.sqrt(1 - share) * own
    values[..., [test.is_constant for test in TESTS]] = 0.0
    unlike = generator.normal(0, world.unlikeness, (draws, len(TESTS)))
    # Small errors: where images are few, the audit fails less than is said here.
    return Numbers(values[:, :-1], values[:, -1], 1e-3 * np.exp(unlike))


def all_fail(numbers: Numbers, rules: Rules) -> np.ndarray:
    """`[draws]` what `fails` says of each draw, computed for all at once."""
    n = numbers.retrained.shape[1]
    variance = numbers.retrained.var(axis=1, ddof=1)
    freedom = np.full(len(TESTS), n - 1.0)
    lending = [i for i, t in enumerate(TESTS) if t.is_rate and not t.is_constant]
    with np.errstate(divide="ignore"):
        ratios = np.log(variance / numbers.errors**2)
    ratios -= special.digamma((n - 1) / 2) - np.log((n - 1) / 2)
    moderated = variance.copy()
    for i in lending if rules.lent else ():
        others = [j for j in lending if j != i]
        lent = min(rules.lent, len(others))
        suggested = np.exp(ratios[:, others].mean(axis=1)) * numbers.errors[:, i] ** 2
        freedom[i] += lent
        total = lent * suggested + (n - 1) * variance[:, i]
        moderated[:, i] = total / freedom[i]
    two_sided = np.array([test.higher_is == TWO_SIDED for test in TESTS])
    tail = LEVEL * rules.shares / np.where(two_sided, 2, 1)
    least = -special.stdtrit(freedom, tail) * rules.allowance * np.sqrt(1 + 1 / n)
    away = numbers.candidate - numbers.retrained.mean(axis=1)
    away = np.where(two_sided, np.abs(away), away)
    # Holm's procedure rejects something just when the first of its steps does.
    constant = np.array([test.is_constant for test in TESTS])
    return ((away >= least * np.sqrt(moderated)) & ~constant).any(axis=1)


def fails(numbers: Numbers, i: int) -> bool:
    """Whether the candidate of draw `i` fails the headline of an audit."""
    drafts = [
        Draft(
            test.name,
            {CANDIDATE: float(numbers.candidate[i, k])},
            [float(value) for value in numbers.retrained[i, :, k]],
            kind=test.kind,
            question="",
            higher_is=test.higher_is,
            family=HEADLINE,
            resolution=float(numbers.errors[i, k]),
            is_rate=test.is_rate,
            positive_control=None,
        )
        for k, test in enumerate(TESTS)
    ]
    return headline(settle(drafts), CANDIDATE).verdict == "fail"


def rate(
    numbers: Numbers, rules: Rules, shift: float = 0.0, tests: tuple[int, ...] = ()
) -> float:
    """The share of candidates that fail, `shift` deviations away in some tests."""
    candidate = numbers.candidate.copy()
    candidate[:, list(tests)] += shift
    numbers = numbers._replace(candidate=candidate)
    found = all_fail(numbers, rules)
    audited = [fails(numbers, i) for i in range(CHECKED)] if rules == Rules() else []
    if list(found[: len(audited)]) != audited:
        raise AssertionError("the simulation does not judge as the audit does")
    return float(found.mean())


def smallest_seen(numbers: Numbers, tests: tuple[int, ...], power: float = 0.8):
    """The least shift, in deviations, that fails with this probability."""
    low, high = 0.0, 200.0
    while high - low > 0.05:
        middle = (low + high) / 2
        seen = rate(numbers, Rules(), middle, tests) >= power
        low, high = (low, middle) if seen else (middle, high)
    return round(high, 1)


def false_failures(generator: np.random.Generator, draws: int) -> dict[str, list]:
    """Row -> the share of retrained models that fail, by number of seeds."""
    rows: dict[str, tuple[World, Rules]] = {
        name: (World(spread), Rules()) for name, spread in SPREADS.items()
    }
    skewed = World(EXPONENTIAL)
    rows |= {
        "normal, tests independent": (World(correlation=0.0), Rules()),
        "normal, tests nearly the same": (World(correlation=0.9), Rules()),
        "normal, ratios of spread to error unlike (0.7)": (
            World(unlikeness=0.7),
            Rules(),
        ),
        "exponential, tests independent": (
            skewed._replace(correlation=0.0),
            Rules(),
        ),
        "exponential, ratios unlike (0.7)": (
            skewed._replace(unlikeness=0.7),
            Rules(),
        ),
        "normal, no allowance": (World(), Rules(allowance=1.0)),
        "exponential, no allowance": (skewed, Rules(allowance=1.0)),
    }
    return {
        name: [rate(draw(generator, draws, n, world), rules) for n in SEEDS]
        for name, (world, rules) in rows.items()
    }


# What the headline was, and what each part of the change does by itself.
PROCEDURES = {
    "eight even tests, Student's t, allowance 1.5 (before)": Rules(1.5, 0, True),
    "level shared over questions": Rules(1.5, 0, False),
    "rates lend each other their spread": Rules(1.5, LENT_FREEDOM, True),
    "both, allowance 1.45 (the audit's)": Rules(),
}


def procedures(generator: np.random.Generator, draws: int) -> dict[str, list]:
    """Row -> for each number of seeds, false failures and two powers."""
    found: dict[str, list] = {name: [] for name in PROCEDURES}
    for n in SEEDS:
        skewed = draw(generator, draws, n, World(EXPONENTIAL))
        normal = draw(generator, draws, n, World())
        for name, rules in PROCEDURES.items():
            relearned = (KINDS_OF_TEST["relearning (alone)"],)
            found[name].append(
                [rate(skewed, rules), rate(normal, rules, 6.0, relearned)]
            )
    return found


def power(generator: np.random.Generator, draws: int) -> dict[str, dict[str, list]]:
    """Kind of test -> shift -> the share seen, by number of seeds; and the least."""
    normal = {n: draw(generator, draws, n, World()) for n in SEEDS}
    kinds: dict[str, tuple[int, ...]] = {
        name: (test,) for name, test in KINDS_OF_TEST.items()
    }
    kinds["probe and relearning at once"] = (6, 7)
    found: dict[str, dict[str, list]] = {}
    for name, tests in kinds.items():
        found[name] = {
            str(shift): [rate(normal[n], Rules(), shift, tests) for n in SEEDS]
            for shift in (3, 5, 8, 12, 20)
        }
        found[name]["seen 80%"] = [smallest_seen(normal[n], tests) for n in SEEDS]
    return found


def main() -> None:
    """Prints the tables, and writes them if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    found = {
        "draws": options.draws,
        "seed": options.seed,
        "seeds": list(SEEDS),
        "allowance": ALLOWANCE,
        "lent_freedom": LENT_FREEDOM,
        "false_failures": false_failures(generator, options.draws),
        "procedures": procedures(generator, options.draws),
        "power": power(generator, options.draws),
    }
    columns = " | ".join(f"{n} seeds" for n in SEEDS)

    def show(name: str, shares) -> None:
        cells = [x if isinstance(x, str) else f"{100 * x:.1f}%" for x in shares]
        print(f"| {name} | {' | '.join(cells)} |")

    print(f"| one more retrained model fails, spread among seeds | {columns} |")
    print("|---|---|---|---|")
    for name, shares in found["false_failures"].items():
        show(name, shares)
    print(f"\n| procedure: false failures, seen at 6 deviations | {columns} |")
    print("|---|---|---|---|")
    for name, cells in found["procedures"].items():
        show(name, [f"{100 * wrong:.1f}%, {100 * seen:.0f}%" for wrong, seen in cells])
    print(f"\n| a candidate this far away fails | {columns} |")
    print("|---|---|---|---|")
    for name, by_shift in found["power"].items():
        for shift, shares in by_shift.items():
            if shift == "seen 80%":
                show(f"{name}: seen four times in five at", [str(x) for x in shares])
            else:
                show(f"{name}: {shift} deviations", shares)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
