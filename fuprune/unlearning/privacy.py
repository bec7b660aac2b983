"""Privacy of the class statistics that leave a client (the sums of Eqs. 4-5).

Gaussian noise makes them (epsilon, delta)-differentially private towards one example:
`clip_scale` bounds what an example adds, `noise_scales` finds the noise with the
analytic Gaussian mechanism (Balle & Wang 2018, as `dp_accounting` solves it), and
`epsilon_of` accounts for several releases. Rows of few examples can be suppressed, and
`Protection` puts it together with secure summation into what the server sees.

Neighbouring datasets differ by one example added or removed anywhere in the
federation. For one example replaced by another, count every release twice: activations
are not negative, so what leaves and what comes are at most orthogonal. Not covered:
privacy of a whole client, the model's updates in training and fine-tuning, and what the
rounding of floating-point and fixed-point numbers gives away.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.errors import InputError, TooFewClientsError, from_extra
from fuprune.options import make, option, options
from fuprune.unlearning.secure_sum import check_threshold, secure_sum

COUNT_SHARE = 0.1  # of the squared ratio of sensitivity to noise, for class counts
ROUNDING = 1e-9  # a part more than was found is above what rounding can have taken off


@options
class Options:
    """Privacy of the class statistics that clients send."""

    section: ClassVar[str] = "privacy"

    secure_sum: bool = option(
        False, "the server receives the sum of the statistics over clients only"
    )
    epsilon: float = option(
        0.0, "epsilon of differential privacy; 0 adds no noise", ge=0
    )
    delta: float = option(1e-5, "delta of differential privacy", gt=0, lt=1)
    clip: float = option(
        1.0, "L2 bound on one example's activations, used if epsilon is set", gt=0
    )
    min_count: int = option(
        0, "classes with fewer examples are suppressed", ge=0, le=2**31 - 1
    )


NOTHING = make(Options, {})


class NoiseScales(NamedTuple):
    """Standard deviations of the noise on a sum over clients."""

    total: float  # on each value of each layer's [U, C_l] totals
    num_examples: float  # on each of the [U] counts


def clip_scale(norms, clip: float):
    """[B] min(1, C / norm): factors that bring L2 norms [B] down to at most `clip`.

    A norm is over one example's pooled activations of all layers.
    """
    # A norm of zero divides only in the branch that is not chosen.
    return jnp.where(norms > clip, clip / norms, 1.0)


def calibrate_gaussian(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The least Gaussian noise for one (epsilon, delta)-DP release.

    Its standard deviation, rounded upwards; the sensitivity is in L2.
    """
    # Imported where noise is wanted: loading it takes as long as loading JAX.
    with from_extra("privacy", "differential privacy"):
        import dp_accounting

    _check_budget(epsilon, delta)
    _check_positive("sensitivity", sensitivity)
    unit = dp_accounting.get_sigma_gaussian(epsilon, delta)
    return sensitivity * unit * (1 + ROUNDING)


def epsilon_of(sigma: float, delta: float, releases: int = 1) -> float:
    """What several releases with Gaussian noise cost together.

    k releases of ratio r are exactly one of ratio sqrt(k) r, even when each is chosen
    after seeing the ones before (Dong et al. 2022), so nothing is lost in composition.
    The least epsilon, rounded upwards, for noise of deviation `sigma` on releases of
    L2 sensitivity 1; no noise costs infinity, and no release nothing.
    """
    _check_budget(1.0, delta)
    # Negated, so that NaN is refused too.
    if not (sigma >= 0 and releases >= 0):
        raise InputError(
            f"sigma {sigma} and releases {releases} must both be at least 0."
        )
    if releases == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    # Imported here for the same reason as above.
    with from_extra("privacy", "differential privacy"):
        import dp_accounting

    unit = sigma / math.sqrt(releases)
    return dp_accounting.get_epsilon_gaussian(unit, delta) * (1 + ROUNDING)


def noise_scales(
    epsilon: float, delta: float, *, clip: float, releases: int = 1
) -> NoiseScales:
    """The noise that makes `releases` sums of class statistics (epsilon, delta)-DP.

    One example lies in one class: it moves the totals of all layers by at most `clip`
    in L2 and the counts by 1. Both are released together, so that
    (clip / total)^2 + (1 / num_examples)^2 = ratio^2 is the budget to split.

    Args:
        epsilon: for all releases together.
        delta: of all releases together.
        clip: L2 bound of an example's activations over all layers.
        releases: how often statistics of the same examples are released.
    """
    _check_positive("clip", clip)
    if releases < 1:
        raise InputError(f"releases is {releases}, but it must be at least 1.")
    # The squared ratio to be split is 1 / unit^2.
    unit = calibrate_gaussian(epsilon, delta, math.sqrt(releases))
    return NoiseScales(
        clip * unit / math.sqrt(1 - COUNT_SHARE), unit / math.sqrt(COUNT_SHARE)
    )


def describe_privacy(
    scales: NoiseScales, delta: float, *, clip: float, releases: int = 1
) -> dict[str, float | int | str]:
    """The accountant's statement for the report, from the noise and not the wish.

    JSON-able: epsilon, delta, the noise on the sum of each release, and what neighbours
    are. Arguments are those of `noise_scales`.
    """
    # They are released together: one part without noise leaves no finite epsilon.
    ratio = math.inf
    if scales.total > 0 and scales.num_examples > 0:
        ratio = math.hypot(clip / scales.total, 1 / scales.num_examples)
    return {
        "epsilon": epsilon_of(1 / ratio, delta, releases),
        "delta": delta,
        "clip": clip,
        "sigma_total": scales.total,
        "sigma_count": scales.num_examples,
        "releases": releases,
        "neighbours": "one example added or removed",
        "accountant": "analytic Gaussian mechanism, exact composition",
    }


def add_noise(statistics, *, key, scales: NoiseScales, num_clients: int = 1):
    """Adds Gaussian noise to class statistics, of a sum or of one client's share.

    When noise is added inside a secure sum, every client adds a share of variance
    1 / num_clients, where `num_clients` is the least number of *honest* clients whose
    uploads reach the sum. If more arrive, the noise is larger than promised; a client
    that leaves its share out, or tells the server what it was, takes it off the rest.

    `scales` are of the sum, and the key is a client's own when it adds a share. Of the
    `ClassActivations` that come back values may be negative, and counts are float32.
    """
    share = 1 / math.sqrt(num_clients)
    counts_key, totals_key = jax.random.split(key)
    counts = jnp.asarray(statistics.num_examples, jnp.float32)
    total = {}
    # Sorted, so that the draws do not depend on the order in which layers came.
    for position, layer in enumerate(sorted(statistics.total)):
        values = jnp.asarray(statistics.total[layer])
        noise = jax.random.normal(
            jax.random.fold_in(totals_key, position), values.shape, values.dtype
        )
        total[layer] = values + share * scales.total * noise
    noise = jax.random.normal(counts_key, counts.shape)
    return statistics._replace(
        total=total, num_examples=counts + share * scales.num_examples * noise
    )


def clamp_statistics(statistics):
    """Brings noised statistics back to what can be: it costs no privacy.

    Totals are at least 0 and counts at least 1, so that means stay finite.
    """
    return statistics._replace(
        total={
            layer: jnp.maximum(values, 0) for layer, values in statistics.total.items()
        },
        num_examples=jnp.maximum(statistics.num_examples, 1.0),
    )


def suppress_small(statistics, min_count: float):
    """Zeroes the rows of classes with fewer than `min_count` examples.

    A mean over one or two examples is nearly the example. On a noised sum this costs
    no privacy. On a client's upload it depends on the data: one example can make a row
    of `min_count` appear or vanish, so noise would have to grow as many times.
    """
    counts = jnp.asarray(statistics.num_examples)
    kept = counts >= min_count
    return statistics._replace(
        total={
            layer: jnp.where(kept[:, None], values, 0)
            for layer, values in statistics.total.items()
        },
        num_examples=jnp.where(kept, counts, 0),
    )


class Protection(NamedTuple):
    """What stands between the clients' uploads and the server.

    Without noise, clients suppress their small rows. With noise, the small rows of
    the noised sum are suppressed instead, which costs no privacy. With noise and
    secure summation, the clients add it in shares that suffice when only as many stay
    as the sum takes, so the server never sees an exact sum; without secure summation
    the server is trusted to add it.
    """

    secure: bool = False  # the server sees the sum over clients and no client's upload
    scales: NoiseScales | None = None  # noise on the sum; None adds none
    min_count: int = 0  # see `suppress_small`; 0 suppresses nothing
    clip: float | None = None  # L2 bound of one example's activations
    statement: Mapping[str, Any] = {}  # the accountant's, if there is noise

    @property
    def hides(self) -> bool:
        """Whether a suppressed class looks to the server like an absent one."""
        return bool(self.secure or self.scales or self.min_count)

    def deviation_of_mean(self, seen: Any, target: int) -> float:
        """Deviation of the noise on the mean activations of a class that was seen."""
        if self.scales is None:
            return 0.0
        return self.scales.total / max(float(seen.num_examples[target]), 1.0)

    def show(self, collected: Any, key: jax.Array) -> Any:
        """What the server sees of `collected.uploads`, a list of `ClassActivations`.

        It is their sum when anything is secure or noised, and the uploads otherwise.
        """
        uploads, scales = list(collected.uploads), self.scales
        if scales is None:
            if self.min_count:
                uploads = [suppress_small(x, self.min_count) for x in uploads]
            return secure_sum(uploads) if self.secure else uploads
        # One of three, so that published noise stays as it was drawn.
        noise_key = jax.random.split(key, 3)[1]
        if self.secure:
            # Fewer than this never make a sum, so that every sum carries the promised
            # noise at least.
            fewest = check_threshold(len(uploads))
            noised = [
                add_noise(
                    upload,
                    key=jax.random.fold_in(noise_key, position),
                    scales=scales,
                    num_clients=fewest,
                )
                for position, upload in enumerate(uploads)
            ]
            seen = secure_sum(noised)
        elif uploads:
            total = jax.tree.map(lambda *x: sum(map(jnp.asarray, x)), *uploads)
            seen = add_noise(total, key=noise_key, scales=scales)
        else:
            raise TooFewClientsError(
                "no client's statistics arrived; capture on more clients."
            )
        clamped = clamp_statistics(seen)
        return suppress_small(clamped, self.min_count) if self.min_count else clamped


def protect_statistics(o: Options, *, releases: int = 1) -> Protection:
    """The protection that the options ask for.

    `releases` is how often statistics of the same examples are released.
    """
    shown = Protection(o.secure_sum, min_count=o.min_count)
    if not o.epsilon:
        # Clipping only bounds what the noise has to cover; without noise the
        # statistics stay those of Eqs. 4-5.
        return shown
    # Without min_count: where there is noise, rows are suppressed after it.
    terms: dict[str, Any] = dict(clip=o.clip, releases=releases)
    scales = noise_scales(o.epsilon, o.delta, **terms)
    statement = describe_privacy(scales, o.delta, **terms)
    return shown._replace(scales=scales, clip=o.clip, statement=statement)


def _check_budget(epsilon, delta):
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"epsilon is {epsilon}, but it must be finite and above 0.")
    if not 0 < delta < 1:
        raise InputError(f"delta is {delta}, but it must lie in (0, 1).")


def _check_positive(name, value):
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} is {value}, but it must be finite and above 0.")
