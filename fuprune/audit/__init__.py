"""Evidence that a class is gone: what a reviewer would ask, in one call.

The call is `fuprune.audit.audit(candidates, retrained, raw, ...)`, at the top level
`fuprune.audit_models`.
"""

from fuprune.audit.audit import KINDS, AuditData, audit
from fuprune.audit.evidence import AuditReport, Evidence

__all__ = ["KINDS", "AuditData", "AuditReport", "Evidence", "audit"]
