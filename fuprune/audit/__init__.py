"""Evidence that a class is gone: what a reviewer would ask, in one call, `audit`."""

from fuprune.audit.evidence import AuditReport, Evidence, Headline
from fuprune.audit.measurements import AuditData
from fuprune.audit.options import (
    AuditOptions,
    ProbeOptions,
    RelearnOptions,
    ShadowOptions,
    WeightOptions,
)

from fuprune.audit.audit import KINDS, audit  # isort: skip  (rebinds the submodule)

__all__ = [
    "KINDS",
    "AuditData",
    "AuditOptions",
    "AuditReport",
    "Evidence",
    "Headline",
    "ProbeOptions",
    "RelearnOptions",
    "ShadowOptions",
    "WeightOptions",
    "audit",
]
