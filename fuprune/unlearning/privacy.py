"""Privacy of the class statistics that leave a client (the sums of Eqs. 4-5).

Gaussian noise makes them (epsilon, delta)-differentially private towards one example
added or removed, by the analytic Gaussian mechanism (Balle & Wang 2018, as
`dp_accounting` solves it). Not covered: privacy of a whole client, the model's updates
in training and fine-tuning, and what the rounding of numbers gives away.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.errors import from_extra
from fuprune.options import make, option, options
from fuprune.unlearning.secure_sum import check_threshold, secure_sum

COUNT_SHARE = 0.1  # of the squared ratio of sensitivity to noise, for class counts
ROUNDING = 1e-9  # a part more than was found is above what rounding can have taken off


@options
class Options:
    """Privacy of the class statistics that clients send."""

    section: ClassVar[str] = "privacy"

    secure_sum: bool = option(False, "the server receives sums over clients only")
    epsilon: float = option(0.0, "of differential privacy; 0 adds no noise", ge=0)
    delta: float = option(1e-5, "of differential privacy", gt=0, lt=1)
    clip: float = option(1.0, "with epsilon: L2 bound on an example's values", gt=0)
    min_count: int = option(0, "smaller classes are suppressed", ge=0, le=2**31 - 1)


NOTHING = make(Options, {})


class NoiseScales(NamedTuple):
    """Standard deviations of the noise on a sum over clients."""

    total: float  # on each value of each layer's [U, C_l] totals
    num_examples: float  # on each of the [U] counts


def clip_scale(norms, clip: float):
    """[B] min(1, C / norm): factors that bring L2 norms [B] down to at most `clip`."""
    # A norm of zero divides only in the branch that is not chosen.
    return jnp.where(norms > clip, clip / norms, 1.0)


def epsilon_of(sigma: float, delta: float, releases: int = 1) -> float:
    """The least epsilon, rounded upwards, of several releases of L2 sensitivity 1.

    k releases of ratio r are exactly one of ratio sqrt(k) r, even when each is chosen
    after seeing the ones before (Dong et al. 2022), so nothing is lost in composition.
    """
    # Imported where noise is wanted: loading it takes as long as loading JAX.
    with from_extra("privacy", "differential privacy"):
        import dp_accounting

    unit = sigma / math.sqrt(releases)
    return dp_accounting.get_epsilon_gaussian(unit, delta) * (1 + ROUNDING)


def noise_scales(
    epsilon: float, delta: float, *, clip: float, releases: int = 1
) -> NoiseScales:
    """The least noise that makes all releases of class sums (epsilon, delta)-DP.

    One example lies in one class: it moves the totals of all layers by at most `clip`
    in L2 and the counts by 1. Both are released together, so that
    (clip / total)^2 + (1 / num_examples)^2 = ratio^2 is the budget to split.
    """
    with from_extra("privacy", "differential privacy"):
        import dp_accounting

    sigma = dp_accounting.get_sigma_gaussian(epsilon, delta) * (1 + ROUNDING)
    unit = math.sqrt(releases) * sigma  # 1 / ratio
    return NoiseScales(
        clip * unit / math.sqrt(1 - COUNT_SHARE), unit / math.sqrt(COUNT_SHARE)
    )


def add_noise(statistics, *, key, scales: NoiseScales, num_clients: int = 1):
    """Adds Gaussian noise to class statistics, of a sum or of one client's share.

    Inside a secure sum every client adds a share of variance 1 / `num_clients`, the
    least number of *honest* clients whose uploads reach the sum.
    """
    share = 1 / math.sqrt(num_clients)
    counts_key, totals_key = jax.random.split(key)
    counts = jnp.asarray(statistics.num_examples, jnp.float32)
    counts += share * scales.num_examples * jax.random.normal(counts_key, counts.shape)
    total = {}
    # Sorted, so that the draws do not depend on the order in which layers came.
    for position, layer in enumerate(sorted(statistics.total)):
        values = jnp.asarray(statistics.total[layer])
        layer_key = jax.random.fold_in(totals_key, position)
        noise = jax.random.normal(layer_key, values.shape, values.dtype)
        total[layer] = values + share * scales.total * noise
    return statistics._replace(total=total, num_examples=counts)


def suppress_small(statistics, min_count: float):
    """Zeroes the rows of classes with fewer than `min_count` examples.

    A mean over one or two examples is nearly the example. On a client's upload one
    example can make a row appear or vanish; on a noised sum this costs no privacy.
    """
    if not min_count:
        return statistics
    kept = jnp.asarray(statistics.num_examples) >= min_count
    return jax.tree.map(lambda x: jnp.where(kept, jnp.transpose(x), 0).T, statistics)


class Protection(NamedTuple):
    """What stands between the clients' uploads and the server.

    Without noise, clients suppress their small rows; otherwise those of the noised sum
    are suppressed. With secure summation the clients add the noise in shares, so the
    server never sees an exact sum; without it the server is trusted to add it.
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
        if not uploads:
            return uploads
        if scales is None:
            uploads = [suppress_small(x, self.min_count) for x in uploads]
            return secure_sum(uploads) if self.secure else uploads
        # One of three, so that published noise stays as it was drawn.
        key = jax.random.split(key, 3)[1]
        if self.secure:
            # Fewer never make a sum, so every sum carries the promised noise at least.
            shared: dict[str, Any] = dict(scales=scales)
            shared["num_clients"] = check_threshold(len(uploads))
            seen = secure_sum(
                add_noise(upload, key=jax.random.fold_in(key, position), **shared)
                for position, upload in enumerate(uploads)
            )
        else:
            total = jax.tree.map(lambda *x: sum(map(jnp.asarray, x)), *uploads)
            seen = add_noise(total, key=key, scales=scales)
        # What can be: it costs no privacy, and means stay finite.
        seen = jax.tree.map(lambda x: jnp.maximum(x, 0), seen)
        counts = jnp.maximum(seen.num_examples, 1.0)
        return suppress_small(seen._replace(num_examples=counts), self.min_count)


def protect_statistics(o: Options, *, releases: int = 1) -> Protection:
    """The protection that the options ask for, over all releases of the same examples.

    Clipping only bounds what the noise has to cover; without noise the statistics stay
    those of Eqs. 4-5. The statement is from the noise and not from the wish.
    """
    shown = Protection(o.secure_sum, min_count=o.min_count)
    if not o.epsilon:
        return shown
    scales = noise_scales(o.epsilon, o.delta, clip=o.clip, releases=releases)
    ratio = math.hypot(o.clip / scales.total, 1 / scales.num_examples)
    statement = {
        "epsilon": epsilon_of(1 / ratio, o.delta, releases),
        "delta": o.delta,
        "clip": o.clip,
        "sigma_total": scales.total,
        "sigma_count": scales.num_examples,
        "releases": releases,
        "neighbours": "one example added or removed",
        "accountant": "analytic Gaussian mechanism, exact composition",
    }
    return shown._replace(scales=scales, clip=o.clip, statement=statement)
