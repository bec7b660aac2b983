"""How often the audit's verdicts are wrong, and what they can see: a simulation.

Draws the numbers of n retrained models and of one candidate, and judges them as an
audit does; some draws of every cell go through `fuprune.audit.verdict` itself, and must
come out the same. Two questions:

- How often does a candidate that is one more retrained model fail the headline? Asked
  for several shapes of the spread among seeds, because Student's t assumes a normal
  one; `verdict.ALLOWANCE` was chosen so that about 5% fail under the worst shape here
  whose tests share 30% of their variance.
- How often does a candidate fail that lies some standard deviations away from
  retraining, in one test of the family or in all?

    python benchmarks/audit_power.py --draws 20000

prints the Markdown tables of docs/audit.md.
"""

import argparse
from collections.abc import Callable

import numpy as np
from scipy import special

from fuprune.audit.evidence import HEADLINE
from fuprune.audit.verdict import ALLOWANCE, Draft, headline, settle

SEEDS = (3, 5, 10)
# The sides on which the tests of the headline's family fail: accuracies and
# `jensen_shannon` on one, attacks, probes and relearning on both.
SIDES = ("worse", "worse", "worse", *("two_sided",) * 5)
TESTS = len(SIDES)
CANDIDATE = "candidate"
CHECKED = 20  # draws of each cell that the audit's own code judges, too
ONE_TEST = {"one one-sided test": slice(0, 1), "one two-sided test": slice(7, 8)}

# A generator and a shape -> independent numbers of mean 0 and deviation 1.
Spread = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SPREADS: dict[str, Spread] = {
    "normal": lambda generator, shape: generator.normal(0, 1, shape),
    "skewed (exponential)": lambda generator, shape: (
        generator.exponential(1, shape) - 1
    ),
    "skewed the other way": lambda generator, shape: (
        1 - generator.exponential(1, shape)
    ),
    "heavy tails (t, 5)": lambda generator, shape: (
        generator.standard_t(5, shape) / np.sqrt(5 / 3)
    ),
    "even (uniform)": lambda generator, shape: generator.uniform(
        -np.sqrt(3), np.sqrt(3), shape
    ),
}


def numbers(
    generator: np.random.Generator,
    draws: int,
    seeds: int,
    spread: Spread,
    correlation: float,
) -> np.ndarray:
    """`[draws, seeds + 1, TESTS]`; tests of one model share part of its luck."""
    common = spread(generator, (draws, seeds + 1, 1))
    own = spread(generator, (draws, seeds + 1, TESTS))
    return np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own


def all_fails(values: np.ndarray, allowance: float) -> np.ndarray:
    """`[draws]` what `fails` says of each draw, computed for all at once."""
    retrained, candidate = values[:, :-1], values[:, -1]
    n = retrained.shape[1]
    spread = retrained.std(axis=1, ddof=1) * np.sqrt(1 + 1 / n)
    away = (candidate - retrained.mean(axis=1)) / (allowance * spread)
    two_sided = np.array([side == "two_sided" for side in SIDES])
    p_values = np.where(
        two_sided,
        2 * special.stdtr(n - 1, -np.abs(away)),
        special.stdtr(n - 1, -away),
    )
    # Holm's procedure rejects something just when Bonferroni's does.
    return TESTS * p_values.min(axis=1) <= 0.05


def fails(values: np.ndarray, allowance: float) -> bool:
    """Whether the last of `[seeds + 1, TESTS]` fails the headline of an audit."""
    *retrained, candidate = values
    drafts = [
        Draft(
            f"test_{i}",
            {CANDIDATE: float(candidate[i])},
            [float(one[i]) for one in retrained],
            kind="simulated",
            question="",
            higher_is=SIDES[i],
            family=HEADLINE,
            positive_control=None,
            allowance=allowance,
        )
        for i in range(TESTS)
    ]
    return headline(settle(drafts), CANDIDATE).verdict == "fail"


def rate(
    generator: np.random.Generator,
    draws: int,
    seeds: int,
    *,
    spread: Spread = SPREADS["normal"],
    correlation: float = 0.3,
    shift: float = 0.0,
    shifted: slice = slice(0, TESTS),
    allowance: float = ALLOWANCE,
) -> float:
    """The share of candidates that fail; `shift` is in deviations between seeds."""
    values = numbers(generator, draws, seeds, spread, correlation)
    values[:, -1, shifted] += shift
    found = all_fails(values, allowance)
    if list(found[:CHECKED]) != [fails(one, allowance) for one in values[:CHECKED]]:
        raise AssertionError("the simulation does not judge as the audit does")
    return float(found.mean())


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    columns = " | ".join(f"{n} seeds" for n in SEEDS)

    def row(name: str, **settings) -> None:
        shares = [rate(generator, options.draws, n, **settings) for n in SEEDS]
        print(f"| {name} | " + " | ".join(f"{100 * s:.1f}%" for s in shares) + " |")

    print(f"| one more retrained model fails, spread among seeds | {columns} |")
    print("|---|---|---|---|")
    for name, spread in SPREADS.items():
        row(name, spread=spread)
    row("normal, tests independent", correlation=0.0)
    row("normal, tests nearly the same", correlation=0.9)
    skewed = SPREADS["skewed (exponential)"]
    row("skewed, tests independent", spread=skewed, correlation=0.0)
    row("normal, no allowance", allowance=1.0)
    row("skewed, no allowance", spread=skewed, allowance=1.0)
    print()
    print(f"| a candidate this far away fails | {columns} |")
    print("|---|---|---|---|")
    for kind, one in ONE_TEST.items():
        for shift in (3, 5, 10, 20, 40):
            row(f"{shift} deviations, in {kind}", shift=shift, shifted=one)
    for shift in (3, 5, 10, 20):
        row(f"{shift} deviations, in all {TESTS} tests", shift=shift)


if __name__ == "__main__":
    main()
