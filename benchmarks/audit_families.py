"""The families of tests that `audit_power.py` simulates, as far as it knows them."""

from typing import NamedTuple

from fuprune.audit.evidence import TWO_SIDED, WORSE


class Test(NamedTuple):
    """One test of the headline, as far as the simulation knows it."""

    name: str
    kind: str
    higher_is: str
    is_rate: bool
    is_constant: bool = False  # the same for all retrained models and the candidate


Tests = tuple[Test, ...]
# `r_accuracy` fails on the low side; its sign does not matter here.
TESTS: Tests = (
    # Retrained models never answer with a class that they never saw.
    Test("u_accuracy", "accuracy", WORSE, True, is_constant=True),
    Test("r_accuracy", "accuracy", WORSE, True),
    Test("jensen_shannon", "distance", WORSE, False),
    Test("likelihood_ratio_offline_auc", "likelihood_ratio", TWO_SIDED, True),
    Test("difference_auc", "difference", TWO_SIDED, True),
    Test("probe_auc", "probe", TWO_SIDED, True),
    Test("probe_few_shot_accuracy", "probe", TWO_SIDED, True),
    Test("relearn_area", "relearn", TWO_SIDED, True),
)
REQUEST: Tests = (
    Test("difference_auc", "difference", TWO_SIDED, True),
    Test("jensen_shannon", "distance", WORSE, False),
    Test("loss_distribution", "losses", WORSE, False),
)
HEADLINES: dict[str, Tests] = {
    "classes": TESTS,
    "classes, with the method's own shadow models": (
        *TESTS,
        Test("unlearned_shadow_auc", "unlearned_shadow", TWO_SIDED, True),
    ),
    "clients or examples": REQUEST,
    "clients or examples, with a backdoor": (
        *REQUEST,
        Test("backdoor_success", "backdoor", WORSE, False),
    ),
}
# The second family of the quickstart, as many tests of each kind as it has.
FURTHER_TESTS: Tests = tuple(
    Test(f"{kind}_{higher_is}_{i}", kind, higher_is, is_rate)
    for kind, higher_is, is_rate, count in (
        ("probe", TWO_SIDED, True, 18),
        ("relearn", TWO_SIDED, True, 11),
        ("relearn", WORSE, False, 1),
        ("unlearned_shadow", WORSE, True, 6),
        ("membership", TWO_SIDED, True, 4),
        ("likelihood_ratio", TWO_SIDED, True, 1),
        ("likelihood_ratio", WORSE, True, 4),
        ("shadow", TWO_SIDED, True, 1),
        ("shadow", WORSE, True, 1),
        ("interpolated", TWO_SIDED, False, 1),
        ("weights", TWO_SIDED, False, 4),
        ("distance", WORSE, False, 3),
        ("accuracy", WORSE, False, 2),
    )
    for i in range(count)
)
