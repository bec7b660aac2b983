"""Evidence that a class is gone: what a reviewer would ask, in one call.

The call is `fuprune.audit.audit(candidates, retrained, raw, ...)`, at the top level
`fuprune.audit_models`.
"""

from fuprune.audit.options import AuditOptions
from fuprune.audit.record import Audit, Judged, Row

from fuprune.audit.audit import (  # isort: skip  (rebinds the submodule)
    AuditData,
    RequestData,
    audit,
    audit_request,
)

audit_models = audit  # its name at the top level, where `audit` is this room

__all__ = [
    "Audit",
    "AuditData",
    "AuditOptions",
    "Judged",
    "RequestData",
    "Row",
    "audit",
    "audit_models",
    "audit_request",
]
