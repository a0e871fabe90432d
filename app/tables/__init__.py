"""Every ORM table, constraint and trigger; one metadata."""

from app.tables.access import Account, ApiKey, BrowserSession
from app.tables.append_only import APPEND_ONLY, create_triggers, drop_triggers
from app.tables.base import CLOCK, Clock, Forgettable, Table, new_digest_key, new_id, now, time_of
from app.tables.cases import Case, CasePrediction, CaseTwin, NetworkOutput
from app.tables.draws import ReaderDraw
from app.tables.jobs import Evaluation, ImportRow, Job, JobBatch, JobCancellation
from app.tables.labels import Annotator, Label, ProvisionalLabel, Remark
from app.tables.practice import PracticeAnswer, PracticeCell, PracticeItem, PracticeRun, PracticeSet, Qualification
from app.tables.readers import ReaderModelInUse, ReaderModelRow
from app.tables.reads import LEASED, DailyThreshold, Exposure, Look, PolicyRow, Read, ReadRequest
from app.tables.records import STAMPS, AuditEvent, AuditHead, CaseChange, Erasure, IdempotencyRecord, Installation
from app.tables.references import SHOWN_KINDS, ClassDefinition, ReferenceCell
from app.tables.releases import Alias, AnswerSets, PublishedEstimates, ReleaseRow
from app.tables.repeats import HeldBack, Repeat, RepeatAnswer, RepeatRead
from app.tables.reports import PublishedReportRow, ReportTargets

__all__ = [
    "APPEND_ONLY",
    "CLOCK",
    "LEASED",
    "SHOWN_KINDS",
    "STAMPS",
    "Account",
    "Alias",
    "Annotator",
    "AnswerSets",
    "ApiKey",
    "AuditEvent",
    "AuditHead",
    "BrowserSession",
    "Case",
    "CaseChange",
    "CasePrediction",
    "CaseTwin",
    "ClassDefinition",
    "Clock",
    "DailyThreshold",
    "Erasure",
    "Evaluation",
    "Exposure",
    "Forgettable",
    "HeldBack",
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
    "PracticeAnswer",
    "PracticeCell",
    "PracticeItem",
    "PracticeRun",
    "PracticeSet",
    "ProvisionalLabel",
    "PublishedEstimates",
    "PublishedReportRow",
    "Qualification",
    "Read",
    "ReadRequest",
    "ReaderDraw",
    "ReaderModelInUse",
    "ReaderModelRow",
    "ReferenceCell",
    "ReleaseRow",
    "Remark",
    "Repeat",
    "RepeatAnswer",
    "RepeatRead",
    "ReportTargets",
    "Table",
    "create_triggers",
    "drop_triggers",
    "new_digest_key",
    "new_id",
    "now",
    "time_of",
]
