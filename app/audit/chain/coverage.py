"""What the audit chain covers: the one list of tables and columns, with a reason for each that may change without it.

A row enters a digest by its columns. Columns that are null or false are left out, so that a migration which adds such a
column leaves the digests of older rows as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import RowMapping

#: A row: values by the names of its columns.
Row: TypeAlias = Mapping[str, Any] | RowMapping


def _always(_row: Row) -> bool:
    return True


def _settled(read: Row) -> bool:
    """Leases come and go without an event; a read that was answered or declined does not."""
    return read["state"] in {"committed", "declined"}


def _ended(repeat: Row) -> bool:
    """Repeats are planned and leased without an event, so that none comes at another time than a lease's."""
    return repeat["state"] in {"answered", "closed"}


def _waiting(state: str) -> str:
    return "waiting" if state in {"open", "leased"} else state


@dataclass(frozen=True)
class Coverage:
    """How the rows of one table are covered.

    Attributes:
        private: columns that enter as an HMAC under a secret key, since they name a person or open a door: neither the
            events nor an export for auditors tells them, or lets anybody try them out.
        key: column with the key of that HMAC, in rows about patients: when it goes with an erased patient, nobody can
            try the digests out any more, not even with the installation's key. None: the installation's key.
        free: columns that may change without an event, each with the reason.
        alike: columns of which several values count as one, with the function that gives it.
        covers: whether a row must have an event; one that has an event is compared in any case.
    """

    private: frozenset[str] = frozenset()
    free: Mapping[str, str] = field(default_factory=dict)
    alike: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    covers: Callable[[Row], bool] = _always
    key: str | None = None


def _private(*names: str) -> Coverage:
    return Coverage(frozenset(names))


def _forgettable(*names: str) -> Coverage:
    return Coverage(frozenset(names), key="digest_key")


COVERED: Mapping[str, Coverage] = {
    "accounts": Coverage(
        frozenset({"name", "one_time_sha256", "password_hash", "oidc_subject"}),
        {"language": "of the pages, which everybody chooses for themselves; nothing follows from it"},
    ),
    "aliases": Coverage(),
    "annotators": _private("name"),
    "api_keys": _private("secret_sha256"),
    "browser_sessions": Coverage(
        frozenset({"token_sha256"}), {"seen_at": "written while somebody is signed in, at most once a minute"}
    ),
    "cases": Coverage(
        frozenset(
            {
                "external_id",
                "patient",
                "case_metadata",
                "image_sha256",
                "stored_sha256",
                "field_sha256",
                "stored_field_sha256",
                "pixels_sha256",
                "field_pixels_sha256",
                "image_hash",
                "stain",
            }
        ),
        {"need": "order of the worklist; set anew whenever another release is served"},
        key="digest_key",
    ),
    "case_twins": Coverage(),
    "class_definitions": Coverage(),
    "daily_thresholds": Coverage(),
    "erasures": Coverage(free={"finished_at": "when the files of the database had forgotten the patient too"}),
    "evaluations": Coverage(),
    "exposures": Coverage(),
    "held_back": Coverage(),
    "import_rows": _forgettable("external_id", "patient", "detail"),
    "installation": _private("key_check"),
    "jobs": Coverage(
        frozenset({"parameters"}),
        {
            "workflow_id": "a retry gets another one, and its own event",
            "progress": "what is shown while the job is under way",
            "message": "what is shown while the job is under way",
            "started_at": "what is shown of the job",
        },
    ),
    "labels": Coverage(),
    "looks": Coverage(),
    "network_outputs": _forgettable("logits", "features", "appearance"),
    "policies": Coverage(),
    "practice_answers": Coverage(),
    "practice_cells": Coverage(),
    "practice_items": Coverage(),
    "practice_runs": Coverage(),
    "practice_sets": Coverage(),
    "predictions": Coverage(),
    "provisional_labels": Coverage(
        free={
            "final_at": "brought forward by the annotator's next answers",
            "n_since": "counts the annotator's next answers",
        }
    ),
    "qualifications": _private("reason"),
    "read_requests": Coverage(
        free={
            "lease_expires_at": "moves with every heartbeat",
            "u": "the coin of its case, which is covered: compared with it",
        },
        # a lease begins and ends without an event
        alike={"state": _waiting},
    ),
    "reader_draws": Coverage(),
    "reader_model_in_use": Coverage(),
    "reader_models": _private("document"),
    "reads": Coverage(
        free={"displayed_at": "the label's reading_seconds, which follow from it, are covered"},
        covers=_settled,
    ),
    "reference_cells": _private("reason"),
    "releases": Coverage(),
    "remarks": _forgettable("note", "reason"),
    "repeat_answers": Coverage(),
    "repeat_reads": Coverage(
        free={"displayed_at": "the answer's reading_seconds, which follow from it, are covered"},
        covers=_settled,
    ),
    "repeats": Coverage(
        free={
            "lease_expires_at": "moves with every heartbeat",
            "final_at": "brought forward by the annotator's next answers",
            "n_since": "counts the annotator's next answers",
        },
        covers=_ended,
    ),
    "report_targets": Coverage(),
}

#: Tables without covered rows, each with the reason.
NOT_COVERED: Mapping[str, str] = {
    "answer_sets": "computed anew every day",
    "audit_events": "the chain itself: each event's digest covers it",
    "audit_head": "compared with the end of the chain",
    "case_changes": "covered by the event that names the cases, as one digest for all of them",
    "idempotency_records": "answers to retries, deleted after seven days",
    "job_batches": "how far a job is, read only while it is under way",
    "job_cancellations": "read only while a job is under way",
    "published_estimates": "computed anew every minute",
    "published_reports": "made anew when somebody asks after a change",
}
