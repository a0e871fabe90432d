"""A dry run of an import and *Check only* on its page: what the import would do, in the same words, and no case."""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from sqlalchemy import func, select

from app.cli.imports import check_local, import_local
from app.context import ServiceContext
from app.database.tables import Case, ImportRow
from app.database.tables.base import BaseTable
from app.imports import import_job
from app.imports.archive_storage import archive_path
from app.imports.dry_run import CheckReport
from app.imports.import_job import delete_archives
from app.imports.zip_contents import ArchiveError
from app.job_table import FUNCTIONS
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_imports import MANIFEST, packed
from tests.support.command import run_here
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect

COUNTS = ("n_rows", "created", "known", "failed", "ignored", "differs")


def stored(service: Service) -> str:
    """A digest of every row of every table, and of every file of the HOME but its database."""
    digest = hashlib.sha256()
    with service.context.database.read() as session:
        for table in BaseTable.metadata.sorted_tables:
            rows = session.execute(select(table)).all()
            digest.update(table.name.encode() + repr(sorted(map(repr, rows))).encode())
    home = service.context.settings.home
    for path in sorted(home.rglob("*")):
        if path.is_file() and "sqlite" not in path.name:
            digest.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return digest.hexdigest()


def checked(service: Service, source: Path) -> CheckReport:
    before = stored(service)
    report = check_local(service.context, source, print)
    assert stored(service) == before
    return report


def archive(tmp_path: Path) -> Path:
    """Rows of every kind."""
    manifest = MANIFEST + "".join(
        f"{line}\n"
        for line in (
            "new.png,new,p1,north,",
            "new.png,new,p1,north,",  # the same again
            "new.png,new,p2,north,",  # and of another patient
            "other.png,new,p1,north,",  # and with another image
            "other.png,twin-of-next,p1,,",
            "other.png,next,p1,,",
            "case0.png,twin of a stored one,p3,,",
            "case0.png,case-0,,,",
            "case0.png,case-0,somebody else,,",
            "new.png,case-1,,,",
            "broken.png,broken,,,",
            "missing.png,missing,,,",
            "new.png,,,,",
            "new.png,surplus,,,,more",
            'new.png,metadata,,,"[1]"',
        )
    )
    images = {"new.png": cell_png(50), "other.png": cell_png(51), "case0.png": cell_png(0), "broken.png": b"\x89PNG"}
    path = tmp_path / "batch.zip"
    path.write_bytes(packed(images | {"manifest.csv": manifest.encode(), "notes.txt": b"x", "a.dcm": b"x"}))
    return path


def test_a_dry_run_stores_nothing_and_the_import_does_what_it_said(service: Service, tmp_path: Path) -> None:
    collect(service, [cell_png(number) for number in range(2)], patients=False)
    source = archive(tmp_path)
    said = checked(service, source)
    assert checked(service, source) == said
    done: Any = import_local(service.context, FUNCTIONS, source, "admin", print)
    assert {name: said[name] for name in COUNTS} == {name: done[name] for name in COUNTS}  # type: ignore[literal-required]
    assert said["failed"] == 7
    assert said["ignored"] == 2
    twins = [row for row in said["failures"] if row["detail"].startswith("same image as ")]
    assert [row for row in said["failures"] if row not in twins] == done["failures"]
    told = {row["external_id"]: row["detail"] for row in twins}
    cases = {row.external_id: row for row in service.scalars(select(Case))}
    names = {row.id: name for name, row in cases.items()}
    first = {name: names[row.same_image_as] for name, row in cases.items() if row.same_image_as}
    by_row = {"twin-of-next": "row 5"}  # one of the archive itself is told by its row
    tagged = {name: f"same image as {by_row.get(other, other)}" for name, other in first.items()}
    assert told == {name: text for name, text in tagged.items() if not name.startswith("case-")}
    assert said["twins"] == len(told) == 2
    again = checked(service, source)
    assert again["created"] == again["twins"] == 0


def test_a_folder_is_checked_like_its_archive_and_nothing_is_left_behind(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(cell_png(number))
    said = checked(service, folder)
    assert (said["created"], said["failed"]) == (3, 0)
    assert not list((service.context.settings.home / "imports").glob("*"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ArchiveError, match="contains no image"):
        check_local(service.context, empty, print)
    with pytest.raises(ValueError, match="no such file or folder"):
        check_local(service.context, tmp_path / "nowhere", print)


def test_the_command_says_the_same_and_that_nothing_was_stored(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def parts() -> Iterator[ServiceContext]:
        yield service.context

    monkeypatch.setattr("app.cli.main.service_context", parts)
    folder = tmp_path / "slides"
    folder.mkdir()
    (folder / "one.png").write_bytes(cell_png(7))
    (folder / "two.png").write_bytes(cell_png(7))
    before = stored(service)
    done = run_here("import", folder, "--dry-run")
    assert done.returncode == 0
    assert "2 created, 0 known, 0 failed, 1 with the image of another case; nothing was stored" in done.stdout
    assert "row 2: two: same image as row 1" in done.stdout
    (folder / "three.png").write_bytes(b"x")
    failing = run_here("import", folder, "--dry-run", "--json")
    assert (failing.returncode, json.loads(failing.stdout)["failed"]) == (1, 1)
    assert stored(service) == before


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
    return service.one(select(func.count()).select_from(Case))


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
    kept = service.rows(select(ImportRow.patient, ImportRow.external_id))
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
