"""Shamir's scheme: a secret in n parts of which any t recover it and fewer say nothing.

It works over a prime field that holds 64-byte numbers, so that a 32-byte key is a
number in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fuprune.errors import InputError
from fuprune.federated.aggregate import TooFewClientsError

PRIME = 2**521 - 1  # the field of the shares


class Share(NamedTuple):
    """One point of the polynomial whose value at zero is the secret."""

    holder: int  # x - 1: which client holds it
    value: int


def share_secret(
    secret: int, *, coefficients: Sequence[int], num_shares: int, prime: int = PRIME
) -> tuple[Share, ...]:
    """Shamir's scheme: points of a random polynomial through the secret.

    Args:
        secret: in [0, prime).
        coefficients: of the powers 1, 2, ..., uniform in [0, prime); one fewer than
            the shares that it takes to recover the secret.
        num_shares: n, below `prime`.
        prime: the field.

    Returns:
        n shares. Any `len(coefficients)` of them are uniform whatever the secret is.
    """
    if not (0 <= secret < prime and num_shares < prime):
        raise InputError(
            f"a secret and {num_shares} shares must lie in [0, {prime}); choose a "
            "larger prime."
        )
    shares = []
    for holder in range(num_shares):
        value = 0
        # Horner's rule, at x = holder + 1: x = 0 would hand out the secret itself.
        for coefficient in (*reversed(coefficients), secret):
            value = (value * (holder + 1) + coefficient) % prime
        shares.append(Share(holder, value))
    return tuple(shares)


def recover_secret(shares: Sequence[Share], *, threshold: int) -> int:
    """The polynomial's value at zero, by Lagrange's formula.

    Raises:
        TooFewClientsError: there are fewer shares of different holders.
    """
    points = {share.holder + 1: share.value for share in shares}
    if len(points) < threshold:
        raise TooFewClientsError(
            f"{len(points)} clients remain to recover a secret that takes {threshold}; "
            "sample other clients or lower the threshold."
        )
    # No more than it takes: the polynomial has this many coefficients.
    chosen = sorted(points)[:threshold]
    secret = 0
    for x in chosen:
        # Lagrange's basis polynomial of x, at zero.
        above, below = 1, 1
        for other in chosen:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        secret += points[x] * above * pow(below, -1, PRIME)
    return secret % PRIME
