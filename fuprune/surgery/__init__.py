"""Networks made smaller: which channels go, and how they are taken out."""

from fuprune.surgery.plan import ORDERS, SCOPES, LayerReport, PrunePlan, make_plan
from fuprune.surgery.wiring import (
    compact,
    compact_tree,
    cut_optimizer_state,
    mask,
    mask_tree,
    plan_report,
)

__all__ = [
    "ORDERS",
    "SCOPES",
    "LayerReport",
    "PrunePlan",
    "compact",
    "compact_tree",
    "cut_optimizer_state",
    "make_plan",
    "mask",
    "mask_tree",
    "plan_report",
]
