"""Shamir's scheme: a secret in n parts of which any t recover it and fewer say nothing.

It works over a prime field that holds 64-byte numbers, so that a 32-byte key is a
number in it.
"""

from collections.abc import Mapping, Sequence

from fuprune.federated.aggregate import TooFewClientsError

PRIME = 2**521 - 1  # the field of the shares


def share_secret(
    secret: int, *, coefficients: Sequence[int], num_shares: int, prime: int = PRIME
) -> tuple[int, ...]:
    """Shamir's scheme: values of a random polynomial that is the secret at zero.

    Args:
        secret: in [0, prime).
        coefficients: of the powers 1, 2, ..., uniform in [0, prime); one fewer than
            the shares that it takes to recover the secret.
        num_shares: n, below `prime`.
        prime: the field.

    Returns:
        n shares, the values at 1, 2, ..., n. Any `len(coefficients)` of them are
        uniform whatever the secret is.
    """
    shares = []
    for x in range(1, num_shares + 1):  # x = 0 would hand out the secret itself
        value = 0
        for coefficient in (*reversed(coefficients), secret):  # Horner's rule
            value = (value * x + coefficient) % prime
        shares.append(value)
    return tuple(shares)


def recover_secret(shares: Mapping[int, int], *, threshold: int) -> int:
    """The polynomial's value at zero, by Lagrange's formula.

    Shares are by holder; holder i has the value at i + 1.

    Raises:
        TooFewClientsError: there are fewer shares.
    """
    if len(shares) < threshold:
        raise TooFewClientsError(
            f"{len(shares)} clients remain to recover a secret that takes {threshold}; "
            "sample other clients or lower the threshold."
        )
    # No more than it takes: the polynomial has this many coefficients.
    points = {holder + 1: shares[holder] for holder in sorted(shares)[:threshold]}
    secret = 0
    for x, value in points.items():
        # Lagrange's basis polynomial of x, at zero.
        above, below = 1, 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        secret += value * above * pow(below, -1, PRIME)
    return secret % PRIME
