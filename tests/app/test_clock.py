"""A clock that is a day off (F10): sessions are not extended, and the order of what was stored stays."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import select

from app.accounts import people
from app.audit.verify import verify_all
from app.database.tables import AuditEvent
from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.metrics.queries import LabelRow
from app.recalibration.evidence import exclude_annotator
from tests.app.test_people import first_password
from tests.faults.rounds import Rounds
from tests.support.sabotage import undone
from tests.support.service import Service

DAY = timedelta(days=1)


@undone("F10", "a clock that is set back extends no session", people, "SEEN_EVERY", timedelta(days=9999))
@pytest.mark.parametrize("shift", [DAY, -DAY])
def test_a_session_is_not_extended_by_a_clock_that_is_set(service: Service, shift: timedelta) -> None:
    cookie = first_password(service, "anna")

    def status() -> int:
        return int(service.client.get("/worklist", headers=cookie, follow_redirects=False).status_code)

    assert status() == 200
    with service.clock.off_by(timedelta(seconds=-30)):
        assert status() == 200  # a clock that is corrected a little
    with service.clock.off_by(shift):
        assert status() in {303, 401}


def test_a_clock_that_is_a_day_behind_while_a_release_is_judged_changes_no_case() -> None:
    """Without an annotator the same cases are judged with the same weights, but for what that annotator answered."""
    n, rng = 40, np.random.default_rng(0)
    ids = rng.integers(0, 255, (n, 16)).astype(np.uint8)
    columns = replace(
        EvaluationDataset.empty(["a", "b"], n), case_id=ids, cluster=np.arange(n), evaluation=np.ones(n, dtype=bool)
    )
    at = (datetime.now(UTC) + DAY).timestamp()
    due = at - 1
    columns.pi[:], columns.n_planned[:] = 1.0, 2
    columns.disagreement_probs[:] = rng.random(n)
    columns.first_class[1:], columns.label_counts[1:, 0] = 0, 2
    columns.first_open_until[:], columns.open_until[:] = -np.inf, -np.inf
    columns.first_class[0], columns.first_open_until[0], columns.open_until[0] = -1, due, due
    whole = build_cohort(columns, CohortQuery(), at)
    rows = [
        LabelRow(case_id, annotator, "a", False, 1 + second, "planned", datetime.now(UTC))
        for case_id in whole.columns.ids()[1:]
        for second, annotator in enumerate(("anna", "ben"))
    ]
    less = exclude_annotator(whole, rows, "nobody")
    assert whole.columns.ids() == less.columns.ids()
    np.testing.assert_array_equal(whole.columns.label_counts, less.columns.label_counts)
    assert whole.weight is not None
    assert whole.weight2 is not None
    np.testing.assert_array_equal(whole.weight, less.weight)
    np.testing.assert_array_equal(whole.weight2, less.weight2)


@pytest.mark.both_databases
def test_labels_and_audit_keep_their_order(service: Service) -> None:
    case = service.add_case()["id"]
    with service.clock.off_by(DAY):
        first = service.outside_label(case, "reader", "blast")
    with service.clock.off_by(-DAY):
        body = {"label": "lymphocyte", "blind": True, "reason": "a slip"}
        path = f"/v1/labels/{first['label']['id']}/revisions"
        revised = service.post("outside", path, json=body)
    assert revised.status_code == 201, revised.text
    with service.context.database.read() as session:
        events = session.execute(select(AuditEvent).order_by(AuditEvent.sequence)).scalars().all()
        assert verify_all(session, service.context).faults == []
    assert [event.action for event in events][-3:] == ["case.add", "label.add", "label.revise"]
    assert events[-1].created_at < datetime.now(UTC) < events[-2].created_at
    Rounds(
        "F10", "clock a day ahead, then a day behind", service.context.database.engine.dialect.name, 2, 2, 0, 0, 0
    ).note()
