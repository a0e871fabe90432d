"""*Check only* on the page of imports: what the import would do, and no case; then the import of what was checked."""

import os
import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from sqlalchemy import func, select

from app.cli.imports import check_local
from app.database.tables import Case, ImportRow
from app.imports import import_job
from app.imports.archive_storage import archive_path
from app.imports.import_job import delete_archives
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_dry_run import archive
from tests.app.test_imports import MANIFEST, packed
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect

BROWSER = {"Accept": "text/html"}


def send(service: Service, data: bytes, who: str = "admin") -> httpx.Response:
    files = {"archive": ("a.zip", data)}
    return service.call(who, "POST", "/imports/checks", files=files, headers=BROWSER, follow_redirects=False)


def check(service: Service, data: bytes) -> str:
    """The page of a check that has ended."""
    path: str = send(service, data).headers["location"]
    work_off(service.context)
    return path


def rows(service: Service, path: str, **asked: str) -> list[tuple[str, ...]]:
    text = service.get("admin", f"{path}/rows.csv", params=asked).text
    return [tuple(line.split(",", 3)) for line in text.splitlines()[1:]]


def n_cases(service: Service) -> int:
    with service.context.database.read() as session:
        return session.execute(select(func.count()).select_from(Case)).scalar_one()


def archives(service: Service) -> list[Path]:
    return list((service.context.settings.home / "imports").iterdir())


def test_a_check_says_what_the_dry_run_says_and_the_import_does_it(service: Service, tmp_path: Path) -> None:
    collect(service, [cell_png(number) for number in range(2)], patients=False)
    source = archive(tmp_path)
    said = check_local(service.context, source, print)
    path, before = check(service, source.read_bytes()), n_cases(service)
    assert before == 2
    told: Any = sorted((int(row[0]), row[1], row[3].strip('"')) for row in rows(service, path))
    assert told == sorted((row["row"], row["external_id"], row["detail"]) for row in said["failures"])
    page = service.get("admin", path).text
    created, known, failed = said["created"], said["known"], said["failed"]
    assert f"{created} would be created, {known} are already known, {failed} would fail." in page
    assert "No case was stored." in page
    assert len(rows(service, path, status="failed")) == said["failed"]
    assert len(rows(service, path, status="ignored")) == said["ignored"]
    begun = service.call("admin", "POST", f"{path}/import", follow_redirects=False).headers["location"]
    again = service.call("admin", "POST", f"{path}/import", follow_redirects=False).headers["location"]
    assert again == begun
    work_off(service.context)
    counts = service.get("admin", f"/v1{begun}").json()["counts"]
    assert counts == {name: said[name] for name in counts}  # type: ignore[literal-required]
    assert n_cases(service) == before + said["created"]
    assert begun in service.get("admin", path).text
    delete_archives(service.context)
    assert archives(service) == []


def test_what_cannot_be_imported_at_all_is_said_beside_the_field_and_leaves_nothing(service: Service) -> None:
    page = send(service, b"no zip")
    assert (page.status_code, 'id="archive-fault"' in page.text) == (422, True)
    assert archives(service) == []
    assert send(service, b"no zip", "viewer").status_code == 403


def test_the_archive_of_a_check_is_kept_for_a_day_and_goes_with_an_erasure(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_case("mine", cell_png(50), patient="p1")
    lines = "new.png,theirs,p2,,\ngone.png,lost,p1,,\n"
    source = packed({"new.png": cell_png(50), "manifest.csv": (MANIFEST + lines).encode()})
    path = check(service, source)
    delete_archives(service.context)
    assert "Import " in service.get("admin", path).text
    assert len(archives(service)) == 1
    monkeypatch.setattr(import_job, "KEPT_AFTER_CHECK", timedelta(0))
    delete_archives(service.context)
    assert archives(service) == []
    assert "send it again" in service.get("admin", path).text
    late = service.call("admin", "POST", f"{path}/import")
    assert (late.status_code, "send it again" in late.text) == (409, True)
    monkeypatch.undo()
    path = check(service, source)
    assert "same image as mine" in service.get("admin", path).text
    erase_patient_everywhere(service.context, "lead", "p1", "asked for")
    assert archives(service) == []
    with service.context.database.read() as session:
        kept = session.execute(select(ImportRow.patient, ImportRow.external_id)).all()
    assert not [row for row in kept if row.patient == "p1"]
    page = service.get("admin", path).text
    assert "mine" not in page  # nor as the twin of a row of somebody else
    assert "lost" not in page


def test_a_check_that_a_second_worker_goes_on_with_tells_each_row_once(service: Service, tmp_path: Path) -> None:
    source = archive(tmp_path)
    path = send(service, source.read_bytes()).headers["location"]
    job_id = uuid.UUID(re.sub(r".*/", "", path))
    said = check_local(service.context, source, print)
    first = said["failures"][0]
    with service.context.database.write() as session:
        session.add(ImportRow(job_id=job_id, row=first["row"], external_id="x", status="failed", detail="as before"))
    work_off(service.context)
    assert len(rows(service, path)) == len(said["failures"])
    assert os.path.exists(archive_path(service.context.settings.home, job_id))
