"""Imports of many images and their dry runs: rows with results and reasons, resumed, hostile archives refused."""

import hashlib
import io
import json
import uuid
import zipfile
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2 as httpx
import pytest
from sqlalchemy import func, select

from app.cases.ingest import prepare_case
from app.cli.imports import check_local, import_local
from app.database.tables import Case, ImportRow
from app.database.tables.base import BaseTable
from app.http.errors import InvalidValue, TooLarge
from app.imports import archive_storage, import_job
from app.imports.archive_storage import archive_path
from app.imports.dry_run import CheckReport
from app.imports.import_job import KEPT_FOR_RETRIES, delete_archives
from app.imports.receiving import receive_archive
from app.imports.zip_contents import ArchiveError
from app.job_table import FUNCTIONS, run_maintenance
from app.maintenance.erasure import erase_patient_everywhere
from tests.support.command import run_here
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect

BROWSER = {"Accept": "text/html"}
MANIFEST = "file,external_id,patient,site,metadata\n"


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def slides(tmp_path: Path, files: dict[str, bytes]) -> Path:
    (tmp_path / "slides").mkdir()
    for name, data in files.items():
        (tmp_path / "slides" / name).write_bytes(data)
    return tmp_path / "slides"


def send(service: Service, data: bytes, who: str = "admin", key: str | None = None) -> Any:
    return service.post(who, "/v1/imports", key, content=data, headers={"Content-Type": "application/zip"})


def example() -> bytes:
    lines = [
        'a.png,one,p1,north,"{""slide"": ""7""}"',
        "b.png,two,p1, ,",
        "missing.png,three,,,",
        "text.png,four,,,",
        ",five,,,",
        "a.png,,,,",
        "b.png,one,,,",
        "a.png,six,,,not json",
    ]
    manifest = (MANIFEST + "\n".join(lines) + "\n").encode()
    return packed(
        {"x/a.png": cell_png(1), "x/b.png": cell_png(2), "x/text.png": b"no image", "x/manifest.csv": manifest}
    )


@pytest.mark.slow
def test_each_row_becomes_a_case_or_a_reason(service: Service) -> None:
    asked = send(service, example())
    assert (asked.status_code, asked.json()["state"]) == (202, "queued")
    path = f"/v1/imports/{asked.json()['id']}"
    assert service.document(path, "admin")["rows"] == []
    assert work_off(service.context) == 1
    shown = service.document(path, "admin")
    assert shown["job"]["state"] == "succeeded", shown["job"]["error"]
    assert shown["counts"] == {"created": 2, "known": 0, "failed": 6, "ignored": 0, "differs": 0}
    assert [row["status"] for row in shown["rows"]] == ["created"] * 2 + ["failed"] * 6
    expected = {2: "not in the archive", 3: "readable", 5: "external_id", 6: "different image", 7: "JSON"}
    for number, words in expected.items():
        assert words in shown["rows"][number]["detail"]
    case = service.document(f"/v1/cases/{shown['rows'][0]['case_id']}")
    told = [case[name] for name in ("external_id", "patient", "site", "metadata")]
    assert told == ["one", "p1", "north", {"slide": "7"}]
    only = service.document(path, "admin", status="failed", limit=4)
    assert ([row["row"] for row in only["rows"]], only["next_cursor"]) == ([3, 4, 5, 6], "6")
    rest = service.document(path, "admin", status="failed", cursor=6)
    assert [row["row"] for row in rest["rows"]] == [7, 8]
    counts = imported(service, example())["counts"]
    assert counts == {"created": 0, "known": 2, "failed": 6, "ignored": 0, "differs": 0}


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_retried_upload_is_one_import(service: Service) -> None:
    data = packed({"a.png": cell_png(1)})
    first, second = (send(service, data, key="k") for _ in range(2))
    assert first.json() == second.json()
    assert work_off(service.context) == 1
    assert not list((service.context.settings.home / "imports").glob(".*.part"))
    assert service.document("/v1/cases")["items"][0]["external_id"] == "a"  # named by its file


@pytest.mark.slow
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_an_import_that_died_goes_on_where_it_stopped(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_job, "BATCH", 2)
    asked = send(service, packed({f"{i}.png": cell_png(i) for i in range(6)})).json()
    prepared: list[str] = []
    real = prepare_case

    def dies(context: Any, fields: Any, data: bytes, field: bytes | None) -> Any:
        prepared.append(fields.external_id)
        if len(prepared) == 5:
            raise MemoryError
        return real(context, fields, data)

    monkeypatch.setattr(import_job, "prepare_case", dies)
    work_off(service.context)
    path = f"/v1/imports/{asked['id']}"
    assert service.document(path, "admin")["counts"]["created"] == 4
    assert service.post("admin", f"/v1/jobs/{asked['id']}/retry").status_code == 202
    work_off(service.context)
    assert service.document(path, "admin")["counts"]["created"] == 6
    assert prepared == ["0", "1", "2", "3", "4", "4", "5"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a zip"),
        (b"PK\x03\x04 and so on", "not a zip"),
        (packed({"a.txt": b"x"}), "no image"),
        (packed({"manifest.csv": b"name,external_id\n"}), "'file' is missing"),
        (packed({"manifest.csv": (MANIFEST[:-1] + ",extra\n").encode()}), "unknown column"),
        (packed({"manifest.csv": b"\xff\xfe\x00"}), "UTF-8"),
        (packed({"manifest.csv": MANIFEST.encode()}), "no row"),
        (packed({"a/manifest.csv": b"x", "b/manifest.csv": b"x"}), "2 files"),
    ],
)
def test_an_archive_that_cannot_be_imported_is_refused(shared_service: Service, data: bytes, words: str) -> None:
    answer = send(shared_service, data)
    assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.json()


def test_names_in_an_archive_reach_no_file(service: Service) -> None:
    evil = ["../../evil.png", "/etc/evil.png", "a\\..\\evil.png"]
    send(service, packed({name: cell_png(i) for i, name in enumerate(evil)}))
    work_off(service.context)
    home = service.context.settings.home
    assert not list(home.rglob("*evil*"))
    assert not list(home.parent.glob("*evil*"))
    assert service.one(select(func.count()).select_from(Case)) >= 1


def test_an_archive_damaged_on_disk_ends_its_own_import_only(service: Service) -> None:
    damaged, gone, whole = (send(service, packed({f"{i}.png": cell_png(i)})).json()["id"] for i in range(3))
    home = service.context.settings.home
    archive_path(home, UUID(damaged)).write_bytes(b"PK\x03\x04 and so on")
    archive_path(home, UUID(gone)).unlink()
    assert work_off(service.context) == 3
    states = {one: service.document(f"/v1/imports/{one}", "admin")["job"] for one in (damaged, gone, whole)}
    assert [job["state"] for job in states.values()] == ["failed", "failed", "succeeded"]
    assert "not a zip archive" in states[damaged]["error"]
    assert "upload it again" in states[gone]["error"]


def test_the_command_imports_a_folder_with_progress_and_twice_adds_nothing(service: Service, tmp_path: Path) -> None:
    manifest = MANIFEST + "".join(f"cell-{i}.png,case {i},p{i},,\n" for i in range(3)) + "gone.png,x,,,\n"
    images = {f"cell-{index}.png": cell_png(index) for index in range(3)}
    folder = slides(tmp_path, images | {"manifest.csv": manifest.encode()})
    said: list[str] = []
    first = import_local(service.context, FUNCTIONS, folder, "admin", said.append)
    assert (first["created"], first["known"], first["failed"]) == (3, 0, 1)
    assert "not in the archive" in first["failures"][0]["detail"]
    again = import_local(service.context, FUNCTIONS, folder, "admin", said.append)
    assert (again["created"], again["known"]) == (0, 3)
    with pytest.raises(ValueError, match="no account"):
        import_local(service.context, FUNCTIONS, folder, "nobody", said.append)
    assert service.one(select(func.count()).select_from(ImportRow)) == 8
    assert json.dumps(first)


def left_behind(service: Service) -> list[Path]:
    return list((service.context.settings.home / "imports").glob("*"))


def test_a_refused_archive_leaves_nothing_behind_wherever_it_came_from(service: Service, tmp_path: Path) -> None:
    assert send(service, b"no zip").status_code == 422
    for path in ("/imports", "/imports/checks"):
        page = service.call("admin", "POST", path, files={"archive": ("a.zip", b"no zip")}, headers=dict(BROWSER))
        assert (page.status_code, 'id="archive-fault"' in page.text) == (422, True)
    (tmp_path / "a.zip").write_bytes(b"no zip")
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "a.zip", tmp_path / "empty"):
        with pytest.raises((InvalidValue, ValueError)):
            import_local(service.context, FUNCTIONS, source, "admin", lambda _: None)
    assert left_behind(service) == []


def test_an_archive_beyond_the_limit_is_refused_while_it_arrives(tmp_path: Path) -> None:
    with receive_archive(tmp_path, 0, limit=2**20) as receiver:
        receiver.write(bytes(2**20))
        with pytest.raises(TooLarge, match="1 MiB"):
            receiver.write(b"x")
    assert list((tmp_path / "imports").iterdir()) == []


def test_two_archives_at_once_do_not_share_a_file(tmp_path: Path) -> None:
    small, other = packed({"a.png": cell_png(1)}), packed({"a.png": cell_png(2), "b.png": cell_png(3)})
    with receive_archive(tmp_path, 0) as one, receive_archive(tmp_path, 0) as two:
        one.write(small[:9])
        two.write(other)
        one.write(small[9:])
        first, second = one.finish(), two.finish()
        assert (first.n_rows, second.n_rows) == (1, 2)
        assert first.sha256 == hashlib.sha256(small).hexdigest()
        assert (first.path.read_bytes(), second.path.read_bytes()) == (small, other)


@pytest.mark.slow
@pytest.mark.ci
def test_an_archive_is_deleted_once_nobody_needs_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """After success at once; after a failure a week later, since trying it again goes on where it stopped."""
    names = ("done", "retried", "failed")
    sent = {name: send(service, packed({f"{name}.png": cell_png(k)})).json()["id"] for k, name in enumerate(names)}
    paths = {name: archive_path(service.context.settings.home, UUID(job_id)) for name, job_id in sent.items()}
    content, orphan = paths["retried"].read_bytes(), paths["done"].with_name(f"{uuid4()}.zip")
    for path in (paths["retried"], paths["failed"], orphan):  # the last one is of a request that was rolled back
        path.write_bytes(b"no zip")

    def left() -> set[str]:
        run_maintenance(service.context)
        return {name for name, path in (paths | {"orphan": orphan}).items() if path.exists()}

    assert left() == {*names, "orphan"}  # they wait for their jobs
    work_off(service.context)
    assert left() == {"retried", "failed", "orphan"}
    paths["retried"].write_bytes(content)
    for name, after in (("retried", {"failed", "orphan"}), ("failed", set())):
        if name == "failed":
            service.clock.ahead = KEPT_FOR_RETRIES + timedelta(minutes=1)
            monkeypatch.setattr(archive_storage, "_get_file_age", lambda _: 100_000.0)
            assert left() == set()
        assert service.post("admin", f"/v1/jobs/{sent[name]}/retry").status_code == 202
        work_off(service.context)
        assert left() == after
    assert service.document(f"/v1/jobs/{sent['retried']}")["state"] == "succeeded"
    assert "upload it again" in service.document(f"/v1/jobs/{sent['failed']}")["error"]


def imported(service: Service, data: bytes) -> Any:
    job = send(service, data).json()
    work_off(service.context)
    shown = service.document(f"/v1/imports/{job['id']}", "admin")
    assert shown["job"]["state"] == "succeeded", shown["job"]["error"]
    return shown


def test_a_row_that_says_something_else_than_its_case_tells_so(service: Service) -> None:
    header, image = MANIFEST, {"a.png": cell_png(1), "b.png": cell_png(2)}
    first = 'a.png,one,p1,north,"{""slide"": ""7""}"\nb.png,two,p2,north,\n'
    imported(service, packed(image | {"manifest.csv": (header + first).encode()}))
    second = 'a.png,one,p9,south,"{""slide"": ""8""}"\nb.png,two,,,\n'
    shown = imported(service, packed(image | {"manifest.csv": (header + second).encode()}))
    assert [(row["status"], row["detail"]) for row in shown["rows"]] == [
        ("known", "differs from the stored data: patient, site, metadata"),
        ("known", ""),
    ]
    assert (shown["counts"]["known"], shown["counts"]["differs"]) == (2, 1)
    path = f"/v1/imports/{shown['job']['id']}"
    assert [row["row"] for row in service.document(path, "admin", status="differs")["rows"]] == [1]
    case = service.document(f"/v1/cases/{shown['rows'][0]['case_id']}")
    assert (case["patient"], case["site"]) == ("p1", "north")
    assert "1 row differs" in service.get("admin", f"/imports/{shown['job']['id']}").text
    german = service.get("admin", f"/imports/{shown['job']['id']}", headers={"Accept-Language": "de"}).text
    assert "weicht von dem ab, was gespeichert ist: patient, site, metadata" in german


def test_every_file_of_an_archive_becomes_a_row_or_is_named_with_the_reason(service: Service) -> None:
    files = {
        "slideA/1.png": cell_png(1),
        "slideB/1.png": cell_png(2),
        "slideB/2.png": cell_png(3),
        "__MACOSX/slideA/._1.png": b"x",
        "slideA/.DS_Store": b"x",
        "slideA/3.dcm": b"x",
        "labels.csv": b"x",
        "notes.txt": b"x",
    }
    shown = imported(service, packed(files))
    created = [row["external_id"] for row in shown["rows"] if row["status"] == "created"]
    assert created == ["slideA/1", "slideB/1", "2"]
    left_out = {row["external_id"]: row["detail"] for row in shown["rows"] if row["status"] == "ignored"}
    assert set(left_out) == set(files) - {"slideA/1.png", "slideB/1.png", "slideB/2.png"}
    words = {"__MACOSX/slideA/._1.png": "operating system", "slideA/.DS_Store": "operating system"}
    words |= {"slideA/3.dcm": "DICOM", "labels.csv": "nor a file of labels", "notes.txt": "not an image"}
    for name, said in words.items():
        assert said in left_out[name]
    assert (shown["counts"]["created"], shown["counts"]["failed"], shown["counts"]["ignored"]) == (3, 0, 5)
    page = service.get("admin", f"/imports/{shown['job']['id']}", params={"status": "ignored"}).text
    assert "notes.txt" in page
    manifest = b"file,external_id\na.png,m\n"
    named = imported(service, packed({"a.png": cell_png(5), "b.png": cell_png(6), "manifest.csv": manifest}))
    assert [(row["external_id"], row["status"]) for row in named["rows"]] == [("m", "created"), ("b.png", "ignored")]
    assert named["rows"][1]["detail"] == "no row of manifest.csv names it"


@pytest.mark.slow
@pytest.mark.ci
def test_failed_rows_come_as_a_file_that_no_spreadsheet_computes(service: Service) -> None:
    lines = ["gone.png,=1+1,,,", "a.png,fine,,,", "gone.png,two,,,"]
    body = (MANIFEST + "\n".join(lines) + "\n").encode()
    shown = imported(service, packed({"a.png": cell_png(1), "manifest.csv": body}))
    answer = service.get("admin", f"/imports/{shown['job']['id']}/rows.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="import-failed.csv"'
    header, first, second = answer.text.splitlines()
    assert header == "row,external_id,result,why"
    assert first.startswith("1,'=1+1,failed,file 'gone.png' is not in the archive")
    assert second.startswith("3,two,failed")


def test_a_bomb_fails_its_row_only(service: Service) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", cell_png(1))
        archive.writestr("b.png", b"\0" * (64 * 1024**2))
    rows = imported(service, buffer.getvalue())["rows"]
    assert [row["status"] for row in rows] == ["created", "failed"]
    assert "larger than" in rows[1]["detail"]


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
    manifest = MANIFEST + "".join(
        f"{line}\n"
        for line in (
            "new.png,new,p1,north,",
            "new.png,new,p1,north,",  # the same again
            "new.png,new,p2,north,",  # and of another patient
            "other.png,new,p1,north,",  # and with different image
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
    twins = [row for row in said["failures"] if row["detail"].startswith("duplicate image of ")]
    assert [row for row in said["failures"] if row not in twins] == done["failures"]
    told = {row["external_id"]: row["detail"] for row in twins}
    cases = {row.external_id: row for row in service.scalars(select(Case))}
    names = {row.id: name for name, row in cases.items()}
    first = {name: names[row.same_image_as] for name, row in cases.items() if row.same_image_as}
    by_row = {"twin-of-next": "row 5"}  # one of the archive itself is told by its row
    tagged = {name: f"duplicate image of {by_row.get(other, other)}" for name, other in first.items()}
    assert told == {name: text for name, text in tagged.items() if not name.startswith("case-")}
    assert said["twins"] == len(told) == 2
    again = checked(service, source)
    assert again["created"] == again["twins"] == 0


def test_a_folder_is_checked_like_its_archive_and_nothing_is_left_behind(service: Service, tmp_path: Path) -> None:
    said = checked(service, slides(tmp_path, {f"{number}.png": cell_png(number) for number in range(3)}))
    assert (said["created"], said["failed"]) == (3, 0)
    assert not list((service.context.settings.home / "imports").glob("*"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArchiveError, match="contains no image"):
        check_local(service.context, tmp_path / "empty", print)
    with pytest.raises(ValueError, match="no such file or folder"):
        check_local(service.context, tmp_path / "nowhere", print)


def test_the_command_says_the_same(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.main.service_context", lambda: nullcontext(service.context))
    folder = slides(tmp_path, {"one.png": cell_png(7), "two.png": cell_png(7)})
    before = stored(service)
    done = run_here("import", folder, "--dry-run")
    assert done.returncode == 0
    assert "2 created, 0 known, 0 failed, 1 with a duplicate image; nothing was stored" in done.stdout
    assert "row 2: two: duplicate image of row 1" in done.stdout
    (folder / "three.png").write_bytes(b"x")
    failing = run_here("import", folder, "--dry-run", "--json")
    assert (failing.returncode, json.loads(failing.stdout)["failed"]) == (1, 1)
    assert stored(service) == before


def send_to_check(service: Service, data: bytes) -> httpx.Response:
    files = {"archive": ("a.zip", data)}
    return service.call("admin", "POST", "/imports/checks", files=files, headers=BROWSER, follow_redirects=False)


def check(service: Service, data: bytes) -> str:
    """The page of a check that has ended."""
    path: str = send_to_check(service, data).headers["location"]
    work_off(service.context)
    return path


def rows(service: Service, path: str, **asked: str) -> list[tuple[str, ...]]:
    text = service.get("admin", f"{path}/rows.csv", params=asked).text
    return [tuple(line.split(",", 3)) for line in text.splitlines()[1:]]


def n_cases(service: Service) -> int:
    return service.one(select(func.count()).select_from(Case))


@pytest.mark.slow
@pytest.mark.ci
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
    assert f"{created} would be created, {known} are already stored, {failed} would fail." in page
    assert "No cells were stored." in page
    assert len(rows(service, path, status="failed")) == said["failed"]
    assert len(rows(service, path, status="ignored")) == said["ignored"]
    begun = service.call("admin", "POST", f"{path}/import", follow_redirects=False).headers["location"]
    again = service.call("admin", "POST", f"{path}/import", follow_redirects=False).headers["location"]
    assert again == begun
    work_off(service.context)
    counts = service.document(f"/v1{begun}", "admin")["counts"]
    assert counts == {name: said[name] for name in counts}  # type: ignore[literal-required]
    assert n_cases(service) == before + said["created"]
    assert begun in service.get("admin", path).text
    delete_archives(service.context)
    assert left_behind(service) == []


def test_the_archive_of_a_check_is_kept_for_a_day_or_erased(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add_case("mine", cell_png(50), patient="p1")
    lines = "new.png,theirs,p2,,\ngone.png,lost,p1,,\n"
    source = packed({"new.png": cell_png(50), "manifest.csv": (MANIFEST + lines).encode()})
    path = check(service, source)
    delete_archives(service.context)
    assert "Import " in service.get("admin", path).text
    assert len(left_behind(service)) == 1
    monkeypatch.setattr(import_job, "KEPT_AFTER_CHECK", timedelta(0))
    delete_archives(service.context)
    assert left_behind(service) == []
    assert "Upload it again" in service.get("admin", path).text
    late = service.call("admin", "POST", f"{path}/import")
    assert (late.status_code, "upload it again" in late.text) == (409, True)
    monkeypatch.undo()
    path = check(service, source)
    assert "duplicate image of mine" in service.get("admin", path).text
    erase_patient_everywhere(service.context, "lead", "p1", "asked for")
    assert left_behind(service) == []
    assert not service.rows(select(ImportRow.row).where(ImportRow.patient == "p1"))
    page = service.get("admin", path).text
    assert "mine" not in page  # nor as the twin of a row of somebody else
    assert "lost" not in page


def test_a_check_that_a_second_worker_goes_on_with_tells_each_row_once(service: Service, tmp_path: Path) -> None:
    source = archive(tmp_path)
    path = send_to_check(service, source.read_bytes()).headers["location"]
    job_id = uuid.UUID(path.rpartition("/")[2])
    said = check_local(service.context, source, print)
    first = said["failures"][0]
    with service.context.database.write() as session:
        session.add(ImportRow(job_id=job_id, row=first["row"], external_id="x", status="failed", detail="as before"))
    work_off(service.context)
    assert len(rows(service, path)) == len(said["failures"])
    assert archive_path(service.context.settings.home, job_id).exists()
