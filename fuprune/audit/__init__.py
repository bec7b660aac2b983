"""Evidence that a class is gone: what a reviewer would ask, in one call.

The call is `fuprune.audit.audit(candidates, retrained, raw, ...)`, at the top level
`fuprune.audit_models`.
"""

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

audit_models = audit  # its name at the top level, where `audit` is this room

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
    "audit_models",
]
