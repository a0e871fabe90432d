"""Audit coverage: tables and columns that enter digests, with a reason for each exception.

A row enters a digest by its columns. Columns that are null or false are left out, so that a migration which adds such a
column leaves the digests of older rows as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.database.tables.base import Row


def _is_always_covered(_row: Row) -> bool:
    return True


def _is_settled_read(read: Row) -> bool:
    """Leases come and go without an event; a read that was answered or declined does not."""
    return read["state"] in {"committed", "declined"}


def _is_ended_repeat(repeat: Row) -> bool:
    """Repeats are planned and leased without an event, so that none comes at another time than a lease's."""
    return repeat["state"] in {"answered", "closed"}


def _merge_waiting_states(state: str) -> str:
    return "waiting" if state in {"open", "leased"} else state


@dataclass(frozen=True)
class TableCoverage:
    """Audit coverage of one table."""

    # columns that enter as an HMAC under a secret key, since they name a person or open a door: neither the events nor
    # an export for auditors tells them, or lets anybody try them out
    private: frozenset[str] = frozenset()
    # columns that may change without an event, each with the reason
    free: Mapping[str, str] = field(default_factory=dict)
    # columns of which several values count as one, with the function that gives it
    alike: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # whether a row must have an event; one that has an event is compared in any case
    covers: Callable[[Row], bool] = _is_always_covered
    # column with the key of that HMAC, in rows about patients: when it goes with an erased patient, nobody can try the
    # digests out any more, not even with the installation's key. None: the installation's key
    key: str | None = None

    def is_free_value(self, name: str, value: object) -> bool:
        """Whether a column that is set to a value needs no event: it is free, or the value counts as the one before."""
        # a row does not come back to such a value from another one: an answered request does not open again
        return name in self.free or (name in self.alike and self.alike[name](value) != value)


def _cover_private(*names: str) -> TableCoverage:
    return TableCoverage(frozenset(names))


def _cover_forgettable(*names: str) -> TableCoverage:
    return TableCoverage(frozenset(names), key="digest_key")


COVERED: Mapping[str, TableCoverage] = {
    "accounts": TableCoverage(
        frozenset({"name", "one_time_sha256", "password_hash", "oidc_subject"}),
        {"language": "of the pages, which everybody chooses for themselves; nothing follows from it"},
    ),
    "aliases": TableCoverage(),
    "annotators": _cover_private("name"),
    "api_keys": _cover_private("secret_sha256"),
    "browser_sessions": TableCoverage(
        frozenset({"token_sha256"}), {"seen_at": "written while somebody is signed in, at most once a minute"}
    ),
    "cases": TableCoverage(
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
    "case_twins": TableCoverage(),
    "class_definitions": TableCoverage(),
    "daily_thresholds": TableCoverage(),
    "erasures": TableCoverage(free={"finished_at": "when the files of the database had forgotten the patient too"}),
    "evaluations": TableCoverage(),
    "exposures": TableCoverage(),
    "held_back": TableCoverage(),
    "import_rows": _cover_forgettable("external_id", "patient", "detail"),
    "installation": _cover_private("key_check"),
    "jobs": TableCoverage(
        frozenset({"parameters"}),
        {
            "state": "follows from how far the job is; a request to cancel or to try again has its own event",
            "attempt": "follows from how far the job is",
            "begun": "follows from how far the job is",
            "executor_id": "process that runs the job",
            "traceparent": "of the request's trace",
            "cancel_requested_at": "has its own event",
            "cancel_requested_by": "has its own event",
            "result": "what is shown of the job; what it wrote has its own events",
            "error": "what is shown of the job",
            "ended_at": "what is shown of the job",
            "progress": "what is shown while the job is under way",
            "message": "what is shown while the job is under way",
            "started_at": "what is shown of the job",
        },
    ),
    "labels": TableCoverage(),
    "looks": TableCoverage(),
    "network_outputs": _cover_forgettable("logits", "features", "appearance"),
    "policies": TableCoverage(),
    "practice_answers": TableCoverage(),
    "practice_cells": TableCoverage(),
    "practice_items": TableCoverage(),
    "practice_runs": TableCoverage(),
    "practice_sets": TableCoverage(),
    "predictions": TableCoverage(),
    "provisional_labels": TableCoverage(
        free={
            "final_at": "brought forward by the annotator's next answers",
            "n_since": "counts the annotator's next answers",
        }
    ),
    "qualifications": _cover_private("reason"),
    "read_requests": TableCoverage(
        free={
            "lease_expires_at": "moves with every heartbeat",
        },
        # a lease begins and ends without an event
        alike={"state": _merge_waiting_states},
    ),
    "reader_draws": TableCoverage(),
    "reader_model_in_use": TableCoverage(),
    "reader_models": _cover_private("document"),
    "reads": TableCoverage(
        free={"displayed_at": "the label's reading_seconds, which follow from it, are covered"},
        covers=_is_settled_read,
    ),
    "reference_cells": _cover_private("reason"),
    "releases": TableCoverage(),
    "remarks": _cover_forgettable("note", "reason"),
    "repeats": TableCoverage(
        free={"lease_expires_at": "moves with every heartbeat"},
        covers=_is_ended_repeat,
    ),
    "report_targets": TableCoverage(),
}

#: Tables without covered rows, each with the reason.
NOT_COVERED: Mapping[str, str] = {
    "answer_sets": "computed anew every day",
    "audit_events": "the chain itself: each event's digest covers it",
    "audit_head": "compared with the end of the chain",
    "case_changes": "covered by the event that names the cases, as one digest for all of them",
    "idempotency_records": "answers to retries, deleted after seven days",
    "job_batches": "how far a job is, read only while it is under way",
    "published_estimates": "computed anew every minute",
    "published_reports": "made anew when somebody asks after a change",
    "workers": "who runs jobs now",
}
