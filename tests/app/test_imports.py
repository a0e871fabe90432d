"""Imports of many images: rows with results and reasons, resumed where they stopped, hostile archives refused."""

import hashlib
import io
import json
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select

from app.cases.ingest import prepare_case
from app.cli.imports import import_local
from app.database.tables import Case, ImportRow
from app.http.errors import InvalidValue, TooLarge
from app.imports import archive_storage, import_job
from app.imports.archive_storage import archive_path
from app.imports.import_job import KEPT_FOR_RETRIES
from app.imports.receiving import receive_archive
from app.job_table import FUNCTIONS, run_maintenance
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png

MANIFEST = "file,external_id,patient,site,metadata\n"


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def send(service: Service, data: bytes, who: str = "admin", key: str | None = None) -> Any:
    return service.post(who, "/v1/imports", key, content=data, headers={"Content-Type": "application/zip"})


def example() -> bytes:
    lines = [
        'a.png,one,p1,north,"{""slide"": ""7""}"',
        "b.png,two,p1,,",
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
    assert service.get("admin", path).json()["rows"] == []
    assert work_off(service.context) == 1
    shown = service.get("admin", path).json()
    assert shown["job"]["state"] == "succeeded", shown["job"]["error"]
    assert shown["counts"] == {"created": 2, "known": 0, "failed": 6, "ignored": 0, "differs": 0}
    assert [row["status"] for row in shown["rows"]] == ["created"] * 2 + ["failed"] * 6
    reasons = [row["detail"] for row in shown["rows"]]
    expected = {2: "not in the archive", 3: "readable", 5: "external_id", 6: "another image", 7: "JSON"}
    for number, words in expected.items():
        assert words in reasons[number], reasons[number]
    case = service.get("viewer", f"/v1/cases/{shown['rows'][0]['case_id']}").json()
    assert (case["external_id"], case["patient"], case["site"], case["metadata"]) == (
        "one",
        "p1",
        "north",
        {"slide": "7"},
    )
    only = service.get("admin", path, params={"status": "failed", "limit": 4}).json()
    assert ([row["row"] for row in only["rows"]], only["next_cursor"]) == ([3, 4, 5, 6], "6")
    rest = service.get("admin", path, params={"status": "failed", "cursor": 6}).json()
    assert [row["row"] for row in rest["rows"]] == [7, 8]
    again = send(service, example())
    work_off(service.context)
    counts = service.get("admin", f"/v1/imports/{again.json()['id']}").json()["counts"]
    assert counts == {"created": 0, "known": 2, "failed": 6, "ignored": 0, "differs": 0}


@pytest.mark.both_databases
def test_a_retried_upload_is_one_import(service: Service) -> None:
    data = packed({"a.png": cell_png(1)})
    first, second = (send(service, data, key="k") for _ in range(2))
    assert first.json() == second.json()
    assert work_off(service.context) == 1
    assert not list((service.context.settings.home / "imports").glob(".*.part"))
    assert service.get("viewer", "/v1/cases").json()["items"][0]["external_id"] == "a"  # named by its file


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
    assert service.get("admin", path).json()["counts"]["created"] == 4
    assert service.post("admin", f"/v1/jobs/{asked['id']}/retry").status_code == 202
    work_off(service.context)
    assert service.get("admin", path).json()["counts"]["created"] == 6
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
def test_an_archive_that_cannot_be_imported_is_refused_at_once(
    shared_service: Service, data: bytes, words: str
) -> None:
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
    states = {job_id: service.get("admin", f"/v1/imports/{job_id}").json()["job"] for job_id in (damaged, gone, whole)}
    assert [job["state"] for job in states.values()] == ["failed", "failed", "succeeded"]
    assert "not a zip archive" in states[damaged]["error"]
    assert "send it again" in states[gone]["error"]


def test_the_command_imports_a_folder_with_progress_and_twice_adds_nothing(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    folder.mkdir()
    for index in range(3):
        (folder / f"cell-{index}.png").write_bytes(cell_png(index))
    (folder / "manifest.csv").write_text(
        MANIFEST + "".join(f"cell-{i}.png,case {i},p{i},,\n" for i in range(3)) + "gone.png,x,,,\n"
    )
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
    page = service.call("admin", "POST", "/imports", files={"archive": ("a.zip", b"no zip")})
    assert page.status_code == 422
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


def test_an_archive_is_deleted_once_nobody_needs_it(service: Service) -> None:
    """After success at once; after a failure a week later, since trying it again goes on where it stopped."""
    done, failed = (send(service, packed({f"{name}.png": cell_png(number)})) for number, name in enumerate("ab"))
    ids = [answer.json()["id"] for answer in (done, failed)]
    waiting = {job_id: archive_path(service.context.settings.home, UUID(job_id)) for job_id in ids}
    broken = waiting[failed.json()["id"]]
    content = broken.read_bytes()
    broken.write_bytes(b"no zip")
    run_maintenance(service.context)
    assert all(path.exists() for path in waiting.values())  # they wait for their jobs
    work_off(service.context)
    run_maintenance(service.context)
    assert [path.exists() for path in waiting.values()] == [False, True]
    broken.write_bytes(content)
    assert service.post("admin", f"/v1/jobs/{failed.json()['id']}/retry").status_code == 202
    work_off(service.context)
    assert service.get("admin", f"/v1/jobs/{failed.json()['id']}").json()["state"] == "succeeded"
    run_maintenance(service.context)
    assert not broken.exists()


def test_an_archive_of_a_failed_import_is_kept_for_a_week(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = UUID(send(service, packed({"a.png": cell_png()})).json()["id"])
    path = archive_path(service.context.settings.home, job_id)
    path.write_bytes(b"no zip")
    work_off(service.context)
    orphan = path.with_name(f"{uuid4()}.zip")
    orphan.write_bytes(b"of a request that was rolled back")
    run_maintenance(service.context)
    assert path.exists()
    assert orphan.exists()
    service.clock.ahead = KEPT_FOR_RETRIES + timedelta(minutes=1)
    monkeypatch.setattr(archive_storage, "_get_file_age", lambda _: 100_000.0)
    run_maintenance(service.context)
    assert not path.exists()
    assert not orphan.exists()
    again = service.post("admin", f"/v1/jobs/{job_id}/retry")
    assert again.status_code == 202
    work_off(service.context)
    assert "send it again" in service.get("admin", f"/v1/jobs/{job_id}").json()["error"]


def imported(service: Service, data: bytes) -> dict[str, Any]:
    job = send(service, data).json()
    work_off(service.context)
    shown: dict[str, Any] = service.get("admin", f"/v1/imports/{job['id']}").json()
    assert shown["job"]["state"] == "succeeded", shown["job"]["error"]
    return shown


def test_a_row_that_says_something_else_than_its_case_tells_so(service: Service) -> None:
    header, image = MANIFEST, {"a.png": cell_png(1), "b.png": cell_png(2)}
    first = 'a.png,one,p1,north,"{""slide"": ""7""}"\nb.png,two,p2,north,\n'
    imported(service, packed(image | {"manifest.csv": (header + first).encode()}))
    second = 'a.png,one,p9,south,"{""slide"": ""8""}"\nb.png,two,,,\n'
    shown = imported(service, packed(image | {"manifest.csv": (header + second).encode()}))
    assert [(row["status"], row["detail"]) for row in shown["rows"]] == [
        ("known", "differs from what is stored: patient, site, metadata"),
        ("known", ""),
    ]
    assert (shown["counts"]["known"], shown["counts"]["differs"]) == (2, 1)
    path = f"/v1/imports/{shown['job']['id']}"
    assert [row["row"] for row in service.get("admin", path, params={"status": "differs"}).json()["rows"]] == [1]
    case = service.get("viewer", f"/v1/cases/{shown['rows'][0]['case_id']}").json()
    assert (case["patient"], case["site"]) == ("p1", "north")
    page = service.get("admin", f"/imports/{shown['job']['id']}").text
    assert "1 row says something else" in page
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
    words |= {"slideA/3.dcm": "DICOM", "labels.csv": "labels are not imported", "notes.txt": "not an image"}
    for name, said in words.items():
        assert said in left_out[name]
    assert (shown["counts"]["created"], shown["counts"]["failed"], shown["counts"]["ignored"]) == (3, 0, 5)
    page = service.get("admin", f"/imports/{shown['job']['id']}", params={"status": "ignored"}).text
    assert "notes.txt" in page
    manifest = b"file,external_id\na.png,m\n"
    named = imported(service, packed({"a.png": cell_png(5), "b.png": cell_png(6), "manifest.csv": manifest}))
    assert [(row["external_id"], row["status"]) for row in named["rows"]] == [("m", "created"), ("b.png", "ignored")]
    assert named["rows"][1]["detail"] == "no row of manifest.csv names it"


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
    asked = send(service, buffer.getvalue())
    work_off(service.context)
    rows = service.get("admin", f"/v1/imports/{asked.json()['id']}").json()["rows"]
    assert [row["status"] for row in rows] == ["created", "failed"]
    assert "larger than" in rows[1]["detail"]
