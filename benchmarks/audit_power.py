"""How often the audit's verdicts are wrong, and what they can see: a simulation.

Draws the numbers of n retrained models and of one candidate, and judges them as an
audit does; some draws of every cell go through `fuprune.audit.verdict` itself, and must
come out the same. Three questions:

- How often does a candidate that is one more retrained model fail the headline? Asked
  for several shapes of the spread among seeds, because Student's t assumes a normal
  one, for tests that depend on each other or not, and for the headlines of all kinds of
  requests. `spread.ALLOWANCES` holds each of these cells at 5% or below.
- What do the parts of the procedure do to that, and to what is seen?
- How often does a candidate fail that lies some standard deviations away from
  retraining, by kind of test?

    python benchmarks/audit_power.py --draws 20000 \
        --json benchmarks/results/audit_power.json

prints the Markdown tables of docs/audit.md, and keeps the numbers.

    python benchmarks/audit_power.py --calibrate --draws 20000

prints `spread.ALLOWANCES`: the smallest allowances that hold the cells of headlines
whose rates lend each other their spread, and of those whose rates do not. They hold
them at 4.7%, to be safe from the error of the draws, and are rounded up.
"""

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from audit_families import FURTHER_TESTS, HEADLINES, TESTS, Tests
from scipy import special

from fuprune.audit.evidence import HEADLINE, TWO_SIDED
from fuprune.audit.spread import (
    ALLOWANCES,
    FURTHER_ALLOWANCE,
    LENT_FREEDOM,
    Draft,
    allowance,
)
from fuprune.audit.verdict import headline, settle, shares_of

SEEDS = (3, 5, 10)
LEVEL = 0.05
HELD = 0.047  # what calibration aims at, a little below the level
CANDIDATE = "candidate"
CHECKED = 20  # draws of each cell that the audit's own code judges, too


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

    allowance: float | None = None  # None: what `spread.ALLOWANCES` says
    lent: int = LENT_FREEDOM
    is_even: bool = False  # the level shared over tests, not over questions first

    def shares(self, tests: Tests) -> np.ndarray:
        """`[tests]`, of the level."""
        if self.is_even:
            return np.full(len(tests), 1 / len(tests))
        return np.asarray(shares_of([test.kind for test in tests]))


class World(NamedTuple):
    """Where numbers come from."""

    spread: Spread = NORMAL
    correlation: float = 0.3  # the share of variance that a model's tests have together
    # How unlike each other the rates' ratios of spread to error over images are: the
    # deviation of their logarithm. 15 seeds showed 0.6 and 0.5 on two networks.
    unlikeness: float = 0.5
    tests: Tests = TESTS


# Every cell in which one more retrained model must fail in 5% of cases at most.
CELLS = {
    f"{family}; {spread}; {share:.0%} of variance shared; ratios {unlike}": World(
        draw_spread, share, unlike, tests
    )
    for (family, tests), (spread, draw_spread), share, unlike in itertools.product(
        HEADLINES.items(), SPREADS.items(), (0.0, 0.3, 0.9), (0.5, 0.7)
    )
}


class Numbers(NamedTuple):
    """Drawn numbers, in deviations between seeds."""

    retrained: np.ndarray  # [draws, seeds, tests]
    candidate: np.ndarray  # [draws, tests]
    errors: np.ndarray  # [draws, tests] over images; only their ratios matter
    tests: Tests


def draw(
    generator: np.random.Generator, draws: int, seeds: int, world: World
) -> Numbers:
    """Numbers of retrained models and of one more."""
    tests = world.tests
    common = world.spread(generator, (draws, seeds + 1, 1))
    own = world.spread(generator, (draws, seeds + 1, len(tests)))
    share = world.correlation
    values = np.sqrt(share) * common + np.sqrt(1 - share) * own
    values[..., [test.is_constant for test in tests]] = 0.0
    unlike = generator.normal(0, world.unlikeness, (draws, len(tests)))
    # Small errors: where images are few, the audit fails less than is said here.
    return Numbers(values[:, :-1], values[:, -1], 1e-3 * np.exp(unlike), tests)


def needed(numbers: Numbers, rules: Rules) -> np.ndarray:
    """`[draws, tests]` the allowance from which on a test does not fail."""
    n, tests = numbers.retrained.shape[1], numbers.tests
    variance = numbers.retrained.var(axis=1, ddof=1)
    freedom = np.full(len(tests), n - 1.0)
    lending = [i for i, t in enumerate(tests) if t.is_rate and not t.is_constant]
    with np.errstate(divide="ignore"):
        ratios = np.log(variance / numbers.errors**2)
    ratios -= special.digamma((n - 1) / 2) - np.log((n - 1) / 2)
    moderated = variance.copy()
    for i in lending if rules.lent and len(lending) > 1 else ():
        others = [j for j in lending if j != i]
        lent = min(rules.lent, len(others))
        suggested = np.exp(ratios[:, others].mean(axis=1)) * numbers.errors[:, i] ** 2
        freedom[i] += lent
        total = lent * suggested + (n - 1) * variance[:, i]
        moderated[:, i] = total / freedom[i]
    two_sided = np.array([test.higher_is == TWO_SIDED for test in tests])
    tail = LEVEL * rules.shares(tests) / np.where(two_sided, 2, 1)
    least = -special.stdtrit(freedom, tail) * np.sqrt((1 + 1 / n) * moderated)
    away = numbers.candidate - numbers.retrained.mean(axis=1)
    away = np.where(two_sided, np.abs(away), away)
    constant = np.array([test.is_constant for test in tests])
    return np.where(constant, 0.0, away / np.where(constant, 1.0, least))


def is_lending(tests: Tests) -> bool:
    """Whether rates of the family lend each other their spread."""
    return sum(test.is_rate and not test.is_constant for test in tests) > 1


def all_fail(numbers: Numbers, rules: Rules) -> np.ndarray:
    """`[draws]` what `fails` says of each draw, computed for all at once."""
    seeds = numbers.retrained.shape[1]
    given = rules.allowance
    if given is None:
        given = allowance(seeds, HEADLINE, is_lending(numbers.tests))
    # Holm's procedure rejects something just when the first of its steps does.
    return (needed(numbers, rules) >= given).any(axis=1)


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
        for k, test in enumerate(numbers.tests)
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
    worst = skewed._replace(correlation=0.0, unlikeness=0.7)
    plain, further = Rules(allowance=1.0), Rules(allowance=FURTHER_ALLOWANCE)
    rows |= {
        "normal, tests independent": (World(correlation=0.0), Rules()),
        "normal, tests nearly the same": (World(correlation=0.9), Rules()),
        "normal, ratios of spread to error unlike (0.7)": (
            World(unlikeness=0.7),
            Rules(),
        ),
        "exponential, tests independent": (skewed._replace(correlation=0.0), Rules()),
        "exponential, ratios unlike (0.7)": (skewed._replace(unlikeness=0.7), Rules()),
        "exponential, independent, ratios unlike (0.7)": (worst, Rules()),
    }
    rows |= {
        f"exponential, independent; {family}": (
            skewed._replace(correlation=0.0, tests=tests),
            Rules(),
        )
        for family, tests in HEADLINES.items()
        if tests != TESTS
    }
    found = {
        name: [rate(draw(generator, draws, n, world), rules) for n in SEEDS]
        for name, (world, rules) in rows.items()
    }
    grid = [
        [rate(draw(generator, draws, n, world), Rules()) for n in SEEDS]
        for world in CELLS.values()
    ]
    found[f"worst of all {len(CELLS)} cells"] = np.max(grid, axis=0).tolist()
    rows = {
        "normal, no allowance": (World(), plain),
        "exponential, no allowance": (skewed, plain),
        "second family, normal": (World(tests=FURTHER_TESTS), further),
        "second family, exponential": (
            skewed._replace(tests=FURTHER_TESTS),
            further,
        ),
        "second family, exponential, independent": (
            skewed._replace(tests=FURTHER_TESTS, correlation=0.0),
            further,
        ),
    }
    return found | {
        name: [rate(draw(generator, draws, n, world), rules) for n in SEEDS]
        for name, (world, rules) in rows.items()
    }


def calibrate(generator: np.random.Generator, draws: int) -> dict[int, tuple]:
    """Number of seeds -> allowances with and without rates that lend."""

    def rounded_up(value: float) -> float:
        return round(float(np.ceil(20 * value) / 20), 2)

    found = {}
    for n in (2, 3, 4, 5, 10, 20):
        least = {True: 1.0, False: 1.0}
        for world in CELLS.values():
            worst = needed(draw(generator, draws, n, world), Rules()).max(axis=1)
            holds = rounded_up(np.quantile(worst, 1 - HELD))
            lends = is_lending(world.tests)
            least[lends] = max(least[lends], holds)
        found[n] = (least[True], least[False])
    return found


# What the headline was, and what each part of the change does by itself.
PROCEDURES = {
    "eight even tests, Student's t, allowance 1.5 (before)": Rules(1.5, 0, True),
    "level shared over questions": Rules(1.5, 0, False),
    "rates lend each other their spread": Rules(1.5, LENT_FREEDOM, True),
    "both, allowance 1.45": Rules(1.45),
    "both, calibrated allowances (the audit's)": Rules(),
}


def procedures(generator: np.random.Generator, draws: int) -> dict[str, list]:
    """Row -> for each number of seeds, false failures and two powers."""
    found: dict[str, list] = {name: [] for name in PROCEDURES}
    for n in SEEDS:
        skewed = draw(generator, draws, n, World(EXPONENTIAL, correlation=0.0))
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
    parser.add_argument("--calibrate", action="store_true", help="the allowances")
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    if options.calibrate:
        print(calibrate(generator, options.draws))
        return
    found = {
        "draws": options.draws,
        "seed": options.seed,
        "seeds": list(SEEDS),
        "allowances": ALLOWANCES,
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
