"""Evidence that a class is gone: what a reviewer would ask, in one call."""

from fuprune.audit.evidence import AuditReport, Evidence

from fuprune.audit.audit import (  # isort: skip  (rebinds `audit`, the submodule)
    KINDS,
    AuditData,
    Speed,
    audit,
)

__all__ = ["KINDS", "AuditData", "AuditReport", "Evidence", "Speed", "audit"]
