"""Is a task really long range? Bounded convolutions beside global models, under one budget."""

from longlens.lens.audit.options import AuditOptions
from longlens.lens.audit.run import audit
from longlens.lens.audit.timed import timed_audit

__all__ = ["AuditOptions", "audit", "timed_audit"]
