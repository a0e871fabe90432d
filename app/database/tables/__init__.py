"""Every ORM table, constraint and trigger; one metadata."""

from app.database.tables.annotators import (
    SHOWN_KINDS,
    Account,
    ApiKey,
    BrowserSession,
    ClassDefinition,
    Invitation,
    PracticeAnswer,
    PracticeCell,
    PracticeItem,
    PracticeRun,
    PracticeSet,
    Qualification,
    ReaderModelInUse,
    ReaderModelRow,
    ReferenceCell,
)
from app.database.tables.append_only import EVERY_APPEND_ONLY as APPEND_ONLY
from app.database.tables.append_only import create_triggers, drop_triggers
from app.database.tables.audit import (
    AuditEvent,
    AuditHead,
    CaseChange,
    Erasure,
    IdempotencyRecord,
    Installation,
)
from app.database.tables.base import CLOCK, BaseTable, Clock, new_digest_key, new_id, time_of, utc_now
from app.database.tables.cases import Case, CasePrediction, CaseTwin, NetworkOutput
from app.database.tables.jobs import Evaluation, ImportRow, Job, JobBatch, WorkerRow
from app.database.tables.labels import Annotator, Comment, CountedLabel, Label, ProvisionalLabel, Remark
from app.database.tables.outcomes import Outcome
from app.database.tables.reads import (
    LEASED,
    DailyThreshold,
    Exposure,
    HeldBack,
    PolicyRow,
    Read,
    ReaderDraw,
    ReadRequest,
    Repeat,
    TriageDecision,
)
from app.database.tables.releases import (
    Alias,
    AnswerSets,
    ClassSettings,
    PublishedEstimates,
    PublishedReportRow,
    ReleaseRow,
    ReportTargets,
)
from app.database.tables.specimens import (
    Specimen,
    SpecimenKnowledge,
    SpecimenRemark,
    SpecimenResult,
    SpecimenSignature,
)
