"""Every ORM table, constraint and trigger; one metadata."""

from app.tables.access import Account, ApiKey, BrowserSession
from app.tables.append_only import APPEND_ONLY, create_triggers, drop_triggers
from app.tables.base import Table, new_id, now
from app.tables.cases import Case, CasePrediction, CaseTwin, NetworkOutput
from app.tables.jobs import Evaluation, ImportRow, Job, JobBatch, JobCancellation
from app.tables.labels import Annotator, Label, ProvisionalLabel
from app.tables.reads import DailyThreshold, Exposure, Look, PolicyRow, Read, ReadRequest
from app.tables.records import AuditEvent, AuditHead, CaseChange, IdempotencyRecord, Installation
from app.tables.releases import Alias, PublishedEstimates, ReleaseRow

__all__ = [
    "APPEND_ONLY",
    "Account",
    "Alias",
    "Annotator",
    "ApiKey",
    "AuditEvent",
    "AuditHead",
    "BrowserSession",
    "Case",
    "CaseChange",
    "CasePrediction",
    "CaseTwin",
    "DailyThreshold",
    "Evaluation",
    "Exposure",
    "IdempotencyRecord",
    "ImportRow",
    "Installation",
    "Job",
    "JobBatch",
    "JobCancellation",
    "Label",
    "Look",
    "NetworkOutput",
    "PolicyRow",
    "ProvisionalLabel",
    "PublishedEstimates",
    "Read",
    "ReadRequest",
    "ReleaseRow",
    "Table",
    "create_triggers",
    "drop_triggers",
    "new_id",
    "now",
]
