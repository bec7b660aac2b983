"""Which design of the audit's judge sees more at the same rate of false findings?

Retrained models and a candidate are drawn for the seven measures of the headline, in
units of the spread between seeds, and judged by two designs:

- `t`: the interval of two means with a common spread, as in `fuprune.audit.judge`;
- `lent`: that of version 0.2, where each measure's spread is helped by the others'
  (the moderated t of Smyth 2004, three degrees of freedom, with ratios of spread to
  known sampling error that differ by a factor of exp(0.5)).

Both use Holm's correction. For each shape of the spread, and for the number of seeds,
intervals of both are first widened by the one factor with which 5% of honest candidates
are found different, so that what they see of a candidate that lies some deviations off
in one measure can be compared. The last columns show the judge as it is, not widened.

    python benchmarks/audit_designs.py --draws 4000
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import special

MEASURES = 7
LEVEL = 0.05
LENT_FREEDOM = 3
# How unlike the ratios of spread to sampling error are, as the deviation of their log.
UNLIKE = 0.5
SHAPES = ("normal", "skewed", "exponential")
SHIFTS = (3, 5, 8)


def draw(generator, shape: str, size) -> np.ndarray:
    """Numbers with mean 0 and deviation 1."""
    if shape == "normal":
        return generator.normal(size=size)
    # A gamma distribution has a skewness of 2 / sqrt(k): 1 for k = 4.
    k = 4.0 if shape == "skewed" else 1.0
    return (generator.gamma(k, size=size) - k) / np.sqrt(k)


def statistics(retrained, candidates, lent: bool, generator):
    """`[D, M]` each measure's deviations from retraining, and degrees of freedom.

    From `[D, M, n]` retrained models and `[D, M, m]` seeds of a candidate.
    """
    n, m = retrained.shape[-1], candidates.shape[-1]
    freedom = n + m - 2
    squares = retrained.var(axis=-1) * n + candidates.var(axis=-1) * m
    variance = squares / freedom
    if lent:
        # The sampling error, known well, up to a factor of its own for each measure.
        error = np.exp(generator.normal(0, UNLIKE, variance.shape)) / np.exp(UNLIKE**2)
        half = freedom / 2
        ratios = np.log(variance / error**2) - special.digamma(half) + np.log(half)
        total = ratios.sum(axis=-1, keepdims=True)
        suggested = np.exp((total - ratios) / (MEASURES - 1)) * error**2
        variance = (LENT_FREEDOM * suggested + freedom * variance) / (
            LENT_FREEDOM + freedom
        )
        freedom += LENT_FREEDOM
    distance = candidates.mean(axis=-1) - retrained.mean(axis=-1)
    return distance / np.sqrt(variance * (1 / m + 1 / n)), freedom


def found(deviations, freedom: int, widening: float = 1.0) -> np.ndarray:
    """`[D]` whether any measure is different: Holm rejects some if the least p does."""
    p_values = 2 * special.stdtr(freedom, -np.abs(deviations) / widening)
    return p_values.min(axis=-1) * MEASURES <= LEVEL


def calibrated(deviations, freedom: int) -> float:
    """The widening with which 5% of honest candidates are found, 1 at least."""
    critical = -special.stdtrit(freedom, LEVEL / MEASURES / 2)
    return max(
        1.0, float(np.quantile(np.abs(deviations).max(axis=-1), 0.95)) / critical
    )


def simulate(shape: str, n: int, m: int, draws: int, seed: int = 0) -> dict:
    """Rates of one cell: shape of the spread, n retrained models, m seeds."""
    row: dict = {"shape": shape, "retrained": n, "seeds": m}
    for design in ("t", "lent"):
        generator = np.random.default_rng([seed, SHAPES.index(shape), n, m])
        models = draw(generator, shape, (draws, MEASURES, n + m))
        # Skewed either way, because a measure may be.
        models *= np.where(np.arange(MEASURES) % 2, 1, -1)[:, None]
        retrained, candidates = models[..., :n], models[..., n:]
        state = generator.bit_generator.state

        def judged(
            moved, retrained=retrained, generator=generator, state=state, design=design
        ):
            generator.bit_generator.state = state
            return statistics(retrained, moved, design == "lent", generator)

        honest = judged(candidates)
        widening = calibrated(*honest)
        row[f"{design}_false"] = float(found(*honest).mean())
        row[f"{design}_widening"] = widening
        for shift in SHIFTS:
            moved = candidates.copy()
            moved[:, 0] += shift
            found_there = judged(moved)
            row[f"{design}_sees_{shift}"] = float(found(*found_there, widening).mean())
            row[f"{design}_sees_{shift}_as_is"] = float(found(*found_there).mean())
    return row


def main() -> None:
    """Prints the table and keeps its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [
        simulate(shape, n, m, options.draws)
        for n in (5, 10)
        for m in (1, 3)
        for shape in SHAPES
    ]
    print(
        "| retrained | seeds | spread | false, t | widening t, lent | sees, t, lent |"
    )
    for row in rows:
        widths = f"{row['t_widening']:.2f}, {row['lent_widening']:.2f}"
        sees = "; ".join(
            f"{shift}: {row[f't_sees_{shift}']:.0%}, {row[f'lent_sees_{shift}']:.0%}"
            f" (as is {row[f't_sees_{shift}_as_is']:.0%})"
            for shift in SHIFTS
        )
        print(
            f"| {row['retrained']} | {row['seeds']} | {row['shape']} "
            f"| {row['t_false']:.1%} | {widths} | {sees} |"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
