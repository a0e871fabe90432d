"""What the service asks of its database for many rows, and the files that one label enters."""

import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from sqlalchemy import select

from app.audit.chain import events
from app.database.tables import CasePrediction, ReleaseRow, new_id, utc_now
from tests.support.service import Service, cell_png
from tests.support.statements import counted

ROUNDS = (1, 12, 24)


def add_prediction_of_another_release(service: Service, number: int, case_id: str) -> None:
    with service.context.database.write() as session:
        champion = session.execute(select(ReleaseRow).order_by(ReleaseRow.id)).scalars().first()
        assert champion is not None
        release = ReleaseRow(name=f"release {number}", card_sha256=f"{number:064}", card=champion.card)
        session.add(release)
        session.flush()
        known = session.execute(
            select(CasePrediction).where(
                CasePrediction.case_id == uuid.UUID(case_id), CasePrediction.release_id == champion.id
            )
        ).scalar_one()
        names = {column.name for column in CasePrediction.__table__.columns} - {"id", "created_at", "release_id"}
        copied = {name: getattr(known, name) for name in names}
        session.add(CasePrediction(id=new_id(), created_at=utc_now(), release_id=release.id, **copied))
        session.flush()
        events.record_event(
            session,
            service.context.keys.audit,
            actor="test",
            action="release.predict",
            object_id=release.id,
            cases=[uuid.UUID(case_id)],
        )


@pytest.mark.slow
def test_a_list_of_many_rows_needs_no_more_statements_than_one_of_a_single_row(service: Service) -> None:
    service.written_past = True  # predictions without an event
    first = service.add_case("case 0", cell_png(0), patient="p0", site="north")
    code = first["prediction"]["classes"][0]
    one_case = f"/v1/cases/{first['id']}"
    lists = (
        "/v1/cases",
        "/v1/worklist",
        f"{one_case}/predictions",
        f"{one_case}/labels",
        f"{one_case}/labels?history=1",
    )
    lists += ("/v1/releases", "/v1/jobs", "/v1/audit-events?limit=1000", "/v1/policies", "/v1/evaluations")
    pages = ("/worklist", "/releases", "/jobs", "/imports", "/people", "/audit", f"/cases/{first['id']}")
    counts: dict[str, list[int]] = {}
    present = 0
    service.get("admin", "/people")  # agreements are kept until next Monday
    for target in ROUNDS:
        for number in range(present, target):
            if number:
                service.add_case(f"case {number}", cell_png(number), patient=f"p{number // 6}", site="north")
                add_prediction_of_another_release(service, number, first["id"])
            service.outside_label(first["id"], f"reader {number}", code, blind=False)  # a read stays wanted
            assert service.post("admin", "/v1/recalibrations", json={"method": "none"}).status_code == 202
        present = target
        for path in lists + pages:
            with counted(service.context.database) as statements:
                assert service.get("admin", path).status_code == 200, path
            counts.setdefault(path, []).append(len(statements))
    assert {path: row for path, row in counts.items() if len(set(row)) > 1} == {}


_APP = f"{Path(__file__).parents[2] / 'app'}/"
_MOST_FILES = 25


class _EnteredFiles:
    """Files of the service whose functions are called while it is on, in every thread that begins after it."""

    def __init__(self) -> None:
        self.on, self.names = False, set[str]()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(_APP):
            self.names.add(frame.f_code.co_filename.removeprefix(_APP))


@pytest.fixture
def entered() -> Iterator[_EnteredFiles]:
    files = _EnteredFiles()
    threading.setprofile(files.note)
    yield files
    threading.setprofile(None)
    sys.setprofile(None)


def test_one_label_enters_few_files(entered: _EnteredFiles, service: Service) -> None:
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number + 1))
    code = service.get("viewer", "/v1/releases").json()["items"][0]["classes"][0]["code"]
    reads = [service.post("anna", "/v1/reads").json() for _ in range(2)]
    statuses = []
    for read in reads:  # the second one, with everything cached
        entered.names.clear()
        sys.setprofile(entered.note)
        entered.on = True
        statuses.append(service.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": code}).status_code)
        entered.on = False
    assert statuses == [201, 201]
    assert "labels/submission.py" in entered.names, "nothing was noted"
    assert len(entered.names) <= _MOST_FILES, sorted(entered.names)
