"""What the audit's judge sees of a candidate that lies some deviations off.

Retrained models and a candidate are drawn for the seven measures of the headline, in
units of the spread between seeds, and judged by the interval of two means with a common
spread and Holm's correction, as in `fuprune.audit.judge`.

    python benchmarks/audit_designs.py --draws 4000
"""

import argparse

import numpy as np
from scipy import special

MEASURES = 7
LEVEL = 0.05
SHAPES = ("normal", "skewed", "exponential")
SHIFTS = (3, 5, 8)


def draw(generator, shape: str, size) -> np.ndarray:
    """Numbers with mean 0 and deviation 1."""
    if shape == "normal":
        return generator.normal(size=size)
    # A gamma distribution has a skewness of 2 / sqrt(k): 1 for k = 4.
    k = 4.0 if shape == "skewed" else 1.0
    return (generator.gamma(k, size=size) - k) / np.sqrt(k)


def found(models, n: int) -> np.ndarray:
    """`[D]` whether Holm rejects any measure, from `[D, M, n + m]` models."""
    retrained, candidates = models[..., :n], models[..., n:]
    m = candidates.shape[-1]
    freedom = n + m - 2
    squares = retrained.var(axis=-1) * n + candidates.var(axis=-1) * m
    error = np.sqrt(squares / freedom * (1 / m + 1 / n))
    deviations = (candidates.mean(axis=-1) - retrained.mean(axis=-1)) / error
    p_values = 2 * special.stdtr(freedom, -np.abs(deviations))
    return p_values.min(axis=-1) * MEASURES <= LEVEL


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    print("| retrained | seeds | spread | honest found different | sees |")
    for n, m in ((5, 1), (5, 3), (10, 1), (10, 3)):
        for shape in SHAPES:
            generator = np.random.default_rng([0, SHAPES.index(shape), n, m])
            models = draw(generator, shape, (draws, MEASURES, n + m))
            # Skewed either way, because a measure may be.
            models *= np.where(np.arange(MEASURES) % 2, 1, -1)[:, None]
            shares = [found(models, n).mean()]
            for shift in SHIFTS:
                moved = models.copy()
                moved[:, 0, n:] += shift
                shares.append(found(moved, n).mean())
            cells = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {n} | {m} | {shape} | {cells} |")


if __name__ == "__main__":
    main()
