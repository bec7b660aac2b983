"""Evidence that a class is gone: what a reviewer would ask, in one call.

The package is that call: `fuprune.audit(candidates, retrained, raw, ...)` is
`fuprune.audit.audit.audit`.
"""

import sys
import types

from fuprune.audit.evidence import AuditReport, Evidence

from fuprune.audit.audit import (  # isort: skip  (rebinds `audit`, the submodule)
    KINDS,
    AuditData,
    Speed,
    audit,
)

__all__ = ["KINDS", "AuditData", "AuditReport", "Evidence", "Speed", "audit"]


class _CallablePackage(types.ModuleType):
    """Lets the package and its one function share a name."""

    def __call__(self, *args, **kwargs):
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
