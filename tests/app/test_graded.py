"""The graded rule over HTTP: probabilities from earlier days, stored with each look, verified, shown and measured."""

import uuid
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import delete, select, update

from app.audit.verify import verify_all
from app.database.tables import Case, CasePrediction, DailyThreshold, ReadRequest, TriageDecision, utc_now
from ml.metrics.selection import graded_probabilities, graded_scale
from tests.support.service import Service, cell_png

PER_DAY, FLOOR = 4, 0.1


def graded(service: Service, **changed: object) -> int:
    body = {"rule": "graded", "capacity_per_day": PER_DAY, "audit_rate": FLOOR, "reason": "graded"} | changed
    return service.post("admin", "/v1/policies", json=body).status_code


def disagreement(service: Service) -> dict[uuid.UUID, float]:
    with service.context.database.read() as session:
        rows = session.execute(select(CasePrediction.case_id, CasePrediction.disagreement_prob))
        return {row[0]: row[1] for row in rows}


def looks(service: Service) -> dict[uuid.UUID, TriageDecision]:
    with service.context.database.read() as session:
        return {look.case_id: look for look in session.execute(select(TriageDecision)).scalars()}


def a_day_later(service: Service) -> None:
    with service.context.database.write() as session:
        session.execute(delete(DailyThreshold))
        for case in session.execute(select(Case)).scalars():
            session.execute(
                update(Case).where(Case.id == case.id).values(created_at=case.created_at - timedelta(days=1))
            )


def test_it_needs_a_number_of_reads_and_no_threshold(service: Service) -> None:
    assert graded(service, capacity_per_day=None) == 422
    assert graded(service, threshold=0.3) == 422
    assert graded(service) == 201


def test_probabilities_follow_from_earlier_days(service: Service) -> None:
    service.written_past = True  # yesterday is made by moving what was stored
    assert graded(service) == 201
    first = [uuid.UUID(service.add_case(f"first-{n}", cell_png(n))["id"]) for n in range(8)]
    before = looks(service)
    assert {before[case].pi for case in first if not before[case].selected} == {FLOOR}  # there is no scale yet
    a_day_later(service)
    second = [uuid.UUID(service.add_case(f"second-{n}", cell_png(100 + n))["id"]) for n in range(8)]
    phi, found = disagreement(service), looks(service)
    scale = graded_scale(np.array([phi[case] for case in first]), PER_DAY / len(first), FLOOR)
    for case in second:
        expected = 1.0 if found[case].selected else float(graded_probabilities(np.array([phi[case]]), scale, FLOOR)[0])
        assert found[case].pi == pytest.approx(expected, rel=1e-9)


def test_probabilities_are_stored_verified_and_another_one_is_named(service: Service) -> None:
    assert graded(service) == 201
    with service.context.database.write() as session:
        day = utc_now().date().isoformat()
        session.add(DailyThreshold(policy_version=2, day=day, threshold=0.9, n_cases=100))
    for n in range(8):
        service.add_case(f"case-{n}", cell_png(n))
    phi, found = disagreement(service), looks(service)
    between = [case for case, look in found.items() if FLOOR < look.pi < 1]
    assert between
    for case in between:
        assert found[case].pi == pytest.approx(0.9 * phi[case] ** 0.5, rel=1e-9)
    with service.context.database.read() as session:
        for request in session.execute(select(ReadRequest).where(ReadRequest.arm.in_(("triage", "audit")))).scalars():
            assert request.u < request.pi == found[request.case_id].pi
        assert verify_all(session, service.context).faults == []
    with service.context.database.read() as session:  # which keeps nothing
        session.execute(update(DailyThreshold).values(threshold=0.8))
        assert any("daily_thresholds" in fault for fault in verify_all(session, service.context).faults)
