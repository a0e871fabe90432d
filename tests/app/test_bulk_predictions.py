"""Predictions that are stored in bulk are, to the last bit, those that are stored one by one."""

import math
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.audit.chain.covered_rows import COVERED, row_digest
from app.audit.chain.keys import DerivedKey
from app.database.engine import insert_new
from app.database.tables import Case, CasePrediction, new_id, utc_now
from tests.app.test_comparison import added
from tests.support.service import Service, cell_png

pytestmark = pytest.mark.both_databases


def values(case_id: uuid.UUID, release_id: uuid.UUID, **changed: Any) -> Any:
    plain: dict[str, Any] = {
        "id": new_id(),
        "created_at": utc_now(),
        "case_id": case_id,
        "release_id": release_id,
        "class_probs": [0.1 + 0.2, 1e-300, 1 / 3],
        "log_concentration": 5e-324,
        "disagreement_prob": 0.1,
        "members": None,
        "out_of_distribution": True,
        "unlike_reasons": None,
        "unlike_distance": None,
        "unlike_percentile": 1.0,
        "feature_distance": 1 / 7,
        "trained_on": None,
    }
    return plain | changed


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"members": bytes(range(256)), "log_concentration": None},
        {"unlike_reasons": ["hue", 'a "name"\\ of é'], "trained_on": "training"},
        {"log_concentration": math.inf},
    ],
)
def test_what_is_stored_is_what_was_given_and_its_digest_is_the_noted_one(
    service: Service, dropout_release: Path, changed: dict[str, Any]
) -> None:
    service.add_case("case-1", cell_png(1))
    release = uuid.UUID(added(service, dropout_release))
    with service.context.database.write() as session:
        row = values(session.execute(select(Case.id)).scalar_one(), release, **changed)
        assert insert_new(session, CasePrediction, [row]) == {row["id"]}
        session.expire_all()
        found = session.get_one(CasePrediction, row["id"])
        read = {name: getattr(found, name) for name in row}
        assert read == row
        table: Any = CasePrediction.__table__
        key = DerivedKey(bytes(32), b"")
        coverage = COVERED[table.name]
        assert row_digest(key, table, read, coverage) == row_digest(key, table, row, coverage)
        session.rollback()  # no event reports it


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_what_another_job_has_stored_meanwhile_stays(service: Service) -> None:
    """On SQLite one job writes at a time, and has looked."""
    service.add_case("case-1", cell_png(1))
    with service.context.database.write() as session:
        there = session.execute(select(CasePrediction)).scalar_one()
        assert insert_new(session, CasePrediction, [values(there.case_id, there.release_id)]) == set()
        assert session.execute(select(CasePrediction.id)).scalars().all() == [there.id]
