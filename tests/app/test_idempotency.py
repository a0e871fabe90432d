"""Remembered answers: how long they are kept, what is not kept, and what an erasure takes along."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.database import idempotency
from app.database.tables import IdempotencyRecord, utc_now
from app.job_table import run_maintenance
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from tests.support.service import Service, cell_png


def kept(service: Service) -> int:
    with service.context.database.read() as session:
        return session.execute(select(func.count()).select_from(IdempotencyRecord)).scalar_one()


def test_old_answers_are_swept_and_young_ones_stay(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.idempotency.SWEEP_ROWS", 2)
    monkeypatch.setattr("app.job_table.SWEEP_ROWS", 2)
    for number in range(6):
        service.upload(f"case {number}", cell_png(number), f"key {number}")
    old = utc_now() - idempotency.KEPT - timedelta(minutes=1)
    with service.context.database.write() as session:
        keys = [f"key {number}" for number in range(5)]
        session.execute(update(IdempotencyRecord).where(IdempotencyRecord.key.in_(keys)).values(created_at=old))
    run_maintenance(service.context)
    assert kept(service) == 1
    assert service.upload("case 5", cell_png(5), "key 5").headers["idempotent-replayed"] == "true"
    again = service.upload("case 0", cell_png(0), "key 0")
    assert (again.status_code, "idempotent-replayed" in again.headers) == (200, False)  # the case itself is known


def test_an_answer_that_is_swept_while_it_is_asked_for_is_asked_for_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the sweep may commit between the insertion that meets the key and the reading of its answer."""
    service.post("anna", "/v1/reads", "key")
    monkeypatch.setattr(idempotency, "insert_if_absent", lambda *_: False)
    swept = service.post("anna", "/v1/reads", "another key")
    assert (swept.status_code, "retry-after" in swept.headers) == (503, True)


def test_nothing_to_read_is_not_remembered(service: Service) -> None:
    assert service.post("anna", "/v1/reads", "one key").status_code == 204
    assert kept(service) == 0
    service.add_case("case")
    assert service.post("anna", "/v1/reads", "one key").status_code == 201
    assert service.post("anna", "/v1/reads", "one key").headers["idempotent-replayed"] == "true"


def test_an_erasure_forgets_the_answers_that_show_its_cases_and_no_others(service: Service) -> None:
    case = service.add_case("gone", cell_png(0), patient="p")
    service.upload("stays", cell_png(1), "stays", patient="q")
    before = kept(service)
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "test", ErasureTarget("p"), "asked for")
    assert kept(service) == before - 1
    with service.context.database.read() as session:
        bodies: list[Any] = list(session.execute(select(IdempotencyRecord.body)).scalars())
        ids = list(session.execute(select(IdempotencyRecord.case_id)).scalars())
    assert not [body for body in bodies if isinstance(body, dict) and body.get("external_id") == "gone"]
    assert uuid.UUID(case["id"]) not in ids


def test_another_image_under_a_known_id_leaves_nothing_behind(service: Service) -> None:
    service.add_case("case", cell_png(0))
    images = sorted(path.name for path in service.context.settings.images_folder.rglob("*") if path.is_file())
    assert service.upload("case", cell_png(1)).status_code == 409
    assert sorted(path.name for path in service.context.settings.images_folder.rglob("*") if path.is_file()) == images
