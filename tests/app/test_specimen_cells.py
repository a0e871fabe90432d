"""Cells of a specimen, many at once: results in order, limits, retries after a crash, and imports of more than 50."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from sqlalchemy import func, select, text

from app.cases import specimen_rows
from app.cases.service import SpecimenFields, add_specimen, store_given_case
from app.cli.imports import check_local
from app.database.tables import Case, IdempotencyRecord, Specimen
from app.http.errors import ServiceUnavailable
from app.imports import import_job
from app.maintenance.erasure import erase_patient_everywhere
from app.specimens import upload
from tests.support.images import CORPUS
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, raising

Cells = list[tuple[str, bytes]]
MIB = 1024**2
BROKEN = CORPUS["truncated PNG"][0]


def specimen(service: Service, external_id: str = "S-1", patient: str | None = "p1") -> str:
    principal = service.principal("admin", "cases:write")
    with service.context.database.write() as session:
        keys = service.context.keys.audit
        return str(add_specimen(session, keys, principal, SpecimenFields(external_id, patient, "north")).id)


def sample(n: int, start: int = 0) -> Cells:
    return [(f"{number:03}.png", cell_png(number)) for number in range(start, start + n)]


def send(service: Service, to: str, cells: Cells, key: str | None = None) -> httpx.Response:
    files = [("image", cell) for cell in cells]
    return service.post("admin", f"/v1/specimens/{to}/cells", key, files=files)


def send_zip(service: Service, to: str, cells: Cells, how: int = zipfile.ZIP_STORED) -> httpx.Response:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as packed:
        for name, data in cells:
            packed.writestr(name, data)
    headers = {"Content-Type": "application/zip"}
    return service.post("admin", f"/v1/specimens/{to}/cells", content=buffer.getvalue(), headers=headers)


def n_cases(service: Service) -> int:
    return service.one(select(func.count()).select_from(Case))


def rows_of(service: Service, job: dict[str, Any]) -> list[tuple[str, str, str]]:
    shown = service.document(f"/v1/imports/{job['id']}", "admin", limit=1000)
    assert shown["job"]["state"] == "succeeded", shown["job"]["error"]
    return [(row["external_id"], row["status"], row["detail"]) for row in shown["rows"]]


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_every_cell_has_its_result_in_order_and_a_retry_the_same(service: Service) -> None:
    to, planned = specimen(service), list[str]()
    cells = sample(5)
    cells[1:3] = [("broken.png", BROKEN), ("large.png", bytes(MIB + 1))]
    cells.append((f"{'x' * 197}.png", cell_png(9)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(upload, "plan_specimen", lambda _, __, named: planned.append(str(named)))
        answer = send(service, to, cells, "k")
    body = answer.json()
    assert (answer.status_code, body["specimen"], body["n_stored"], body["n_refused"]) == (207, to, 3, 3), body
    assert [result["external_id"] for result in body["results"]] == [name for name, _ in cells]
    stored = [result["status"] == "stored" for result in body["results"]]
    assert stored == [True, False, False, True, True, False]
    told = [result["detail"] or "" for result in body["results"]]
    assert ["1 MiB" in told[2], "200 characters" in told[5], told[0]] == [True, True, ""]
    assert told[1]
    case = service.document(f"/v1/cases/{body['results'][0]['case']}")
    shown = {name: case[name] for name in ("external_id", "patient", "site", "specimen")}
    assert shown == {"external_id": "S-1/000.png", "patient": "p1", "site": "north", "specimen": to}
    assert planned == [to]
    again = send(service, to, cells, "k")
    assert (again.status_code, again.json(), again.headers["Idempotent-Replayed"]) == (207, body, "true")
    assert send(service, to, cells, "another").json() == body
    assert send(service, to, cells[:2], "k").json()["type"].endswith("idempotency-key-reused")
    assert n_cases(service) == 3


@pytest.mark.both_databases
def test_names_and_images_of_two_specimens_are_kept_apart(service: Service) -> None:
    one, other = specimen(service), specimen(service, "S-2", "p2")
    first = send(service, one, sample(2)).json()["results"]
    second = send(service, other, [("000.png", cell_png(0)), ("001.png", cell_png(7))]).json()["results"]
    assert len({result["case"] for result in first + second}) == 4
    assert [result["same_image_as"] for result in second] == [first[0]["case"], None]
    taken = send(service, one, [("000.png", cell_png(8)), ("002.png", cell_png(9))]).json()["results"]
    assert [result["status"] for result in taken] == ["refused", "stored"]
    assert "different image" in taken[0]["detail"]
    service.add_case("S-2/of another", cell_png(11), patient="p2")
    (refused,) = send(service, other, [("of another", cell_png(11))]).json()["results"]
    assert "specimen" in refused["detail"]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("error", [MemoryError(), ServiceUnavailable("busy")])
def test_a_retry_goes_on_after_a_crash_and_stores_nothing_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    to, cells, real = specimen(service), sample(6), store_given_case
    cells[1] = ("broken.png", BROKEN)

    def dies(*arguments: Any) -> Any:
        if n_cases(service) == 3:
            raise error
        return real(*arguments)

    monkeypatch.setattr(upload, "store_given_case", dies)
    assert send(service, to, cells, "k").status_code in {500, 503}
    assert n_cases(service) == 3
    monkeypatch.undo()
    monkeypatch.setattr(upload, "plan_specimen", raising(MemoryError()))
    assert send(service, to, cells, "k").status_code == 500
    assert n_cases(service) == 5
    monkeypatch.undo()
    answer = send(service, to, cells, "k")
    assert (answer.status_code, answer.json()["n_stored"], n_cases(service)) == (207, 5, 5)
    monkeypatch.setattr(upload, "prepare_case", raising(AssertionError("a retry costs no decoding")))
    assert send(service, to, cells, "k").json() == answer.json()
    whole = specimen(service, "S-2")
    monkeypatch.undo()
    results = send(service, whole, cells).json()["results"]
    for name in ("external_id", "status", "detail"):
        assert [one[name] for one in results] == [one[name] for one in answer.json()["results"]]


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_full_specimen_refuses_a_further_cell_and_answers_those_it_has(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specimen_rows, "MOST_CELLS", 3)
    to, cells = specimen(service, patient=None), sample(5)
    body = send(service, to, cells, "k").json()
    assert [one["status"] for one in body["results"]] == ["stored"] * 3 + ["refused"] * 2
    full = "specimen S-1 has 3 cells, the most that a specimen takes; put further cells into another specimen"
    assert {one["detail"] for one in body["results"][3:]} == {full}
    assert send(service, to, cells, "another").json() == body
    refused = service.upload("further", cell_png(9), specimen=to)
    assert (refused.status_code, refused.json()["detail"]) == (409, full)
    assert service.upload("S-1/000.png", cell_png(0), specimen="S-1").status_code == 200
    erase_patient_everywhere(service.context, "lead", "S-1/001.png", "asked", without_patient=True)
    assert service.upload("further", cell_png(9), specimen=to).status_code == 201
    assert service.upload("one more", cell_png(10), specimen=to).status_code == 409
    assert service.upload("elsewhere", cell_png(10), specimen="S-2").status_code == 201


def in_specimens(rows: str) -> bytes:
    """An archive of new cells, a row for each: external id, patient, site and specimen."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        lines = [f"{number}.png,{row}" for number, row in enumerate(rows.split())]
        packed.writestr("manifest.csv", "\n".join(["file,external_id,patient,site,specimen", *lines]))
        for number in range(len(lines)):
            packed.writestr(f"{number}.png", cell_png(20 + number))
    return buffer.getvalue()


def send_archive(service: Service, data: bytes) -> httpx.Response:
    return service.post("admin", "/v1/imports", content=data, headers={"Content-Type": "application/zip"})


@pytest.mark.parametrize("batch", [32, 1])
def test_a_dry_run_names_the_rows_that_their_specimen_refuses(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(specimen_rows, "MOST_CELLS", 4)
    monkeypatch.setattr(import_job, "BATCH", batch)
    to = specimen(service)
    cells = "a,p1,,A b,p2,,A c,,,A d,p1,north,A e,,,B f,p1,,B g,p2,,S-1 h,p1,south,S-1 i,,,S-1 j,p1,,A k,,,A l,,,A"
    (tmp_path / "a.zip").write_bytes(in_specimens(f"{cells} m,,,{to} n,p2,,{to} o,,,S-1 p,p1,north,S-1 q,,,{to}"))
    said = check_local(service.context, tmp_path / "a.zip", print)
    asked = send_archive(service, (tmp_path / "a.zip").read_bytes())
    work_off(service.context)
    done = rows_of(service, asked.json())
    failed = [(name, detail) for name, status, detail in done if status == "failed"]
    assert [(row["external_id"], row["detail"]) for row in said["failures"]] == failed
    assert [name for name, _ in failed] == list("bdfghlnq")
    assert "specimen A has a different patient" in failed[0][1]
    assert "specimen A has 4 cells" in failed[5][1]
    assert (said["created"], said["failed"], n_cases(service)) == (9, 8, 9)


def test_a_body_of_many_mebibytes_is_taken(service: Service) -> None:
    answer = send(service, specimen(service), [(str(number), bytes(MIB)) for number in range(20)])
    assert (answer.status_code, answer.json()["n_refused"]) == (207, 20)


def to_nobody(service: Service, _: str) -> httpx.Response:
    return send(service, "0198c2f0-6d1b-7c55-9a3e-5b1f0c2d4e6f", sample(1))


def part(name: str, *file: object) -> Callable[[Service, str], httpx.Response]:
    return lambda service, to: service.post("admin", f"/v1/specimens/{to}/cells", files=[(name, file)])


def zipped(*cells: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> Callable[[Service, str], httpx.Response]:
    return lambda service, to: send_zip(service, to, list(cells), how)


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (to_nobody, 404, "no such specimen"),
        (part("image", None, cell_png()), 422, "part 1 has no file name"),
        (part("image", "", cell_png()), 422, "part 1 has no file name"),
        (part("image", None, bytes(2 * MIB)), 400, "file name"),
        (part("cell", "a.png", cell_png()), 422, "'cell'"),
        (lambda s, to: send(s, to, [("a/1.png", cell_png(1)), ("b/1.png", cell_png(2))]), 422, "'1.png'"),
        (lambda s, to: send(s, to, [(str(n), b"") for n in range(501)]), 413, "several requests"),
        (lambda s, to: send(s, to, [(str(n), bytes(MIB)) for n in range(64)]), 413, "64 MiB"),
        (lambda s, to: s.post("admin", f"/v1/specimens/{to}/cells", json={}), 415, "application/zip"),
        (zipped(), 422, "no image"),
        (zipped(("manifest.csv", b"file,external_id\na,b\n")), 422, "/v1/imports"),
        (zipped(("a/1.png", cell_png(1)), ("b/1.png", cell_png(2))), 422, "'1.png'"),
        (zipped(*((f"{n}.txt", b"") for n in range(500)), ("1.png", cell_png())), 413, "several requests"),
        (zipped(*((f"{n}.png", bytes(MIB)) for n in range(65)), how=zipfile.ZIP_DEFLATED), 413, "64 MiB"),
    ],
)
def test_what_cannot_be_taken_is_refused_as_a_whole(
    shared_service: Service, ask: Callable[[Service, str], httpx.Response], status: int, words: str
) -> None:
    to = specimen(shared_service, f"S {words}" + str(n_of(shared_service)))
    answer = ask(shared_service, to)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.json()
    assert n_cases(shared_service) == 0


def n_of(service: Service) -> int:
    return service.one(select(func.count()).select_from(Specimen))


def test_a_zip_is_stored_by_its_names_and_says_of_other_files_why_they_are_not(service: Service) -> None:
    cells = [("s/b.png", cell_png(1)), ("__MACOSX/s/._b.png", b""), ("s/notes.txt", b"x"), ("s/a.png", cell_png(2))]
    answer = send_zip(service, specimen(service), [*cells, ("s/large.png", bytes(MIB + 1))])
    results = [(one["external_id"], one["status"]) for one in answer.json()["results"]]
    expected = [("a.png", "stored"), ("b.png", "stored"), ("large.png", "refused"), ("notes.txt", "refused")]
    assert (answer.status_code, results) == (207, expected)
    assert "not an image by its name" in answer.json()["results"][3]["detail"]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_fifty_are_stored_at_once_and_more_by_an_import_with_a_row_each(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, planned = specimen(service), list[str]()
    monkeypatch.setattr(import_job, "plan_specimen", lambda _, __, named: planned.append(str(named)))
    cells = sample(51)
    cells[2:4] = [("broken, or not.png", BROKEN), ("large.png", bytes(MIB + 1))]
    assert send(service, to, cells[1:]).json()["n_stored"] == 48
    asked = send(service, to, cells, "k")
    assert (asked.status_code, asked.json()["kind"]) == (202, "import")
    assert send(service, to, cells, "k").json() == asked.json()
    assert work_off(service.context) == 1
    rows = rows_of(service, asked.json())
    assert [name for name, _, _ in rows] == [f"S-1/{name}" for name, _ in cells]
    assert [status for _, status, _ in rows] == ["created", "known", "failed", "failed", *["known"] * 47]
    assert ("1 MiB" in rows[3][2], bool(rows[2][2]), rows[4][2]) == (True, True, "")
    assert (n_cases(service), planned) == (49, [to])
    assert {case.patient for case in service.scalars(select(Case))} == {"p1"}
    assert send(service, to, cells[:50]).json()["n_stored"] == 48
    archives = list((service.context.settings.home / "imports").glob("*"))
    assert [path.stem for path in archives] == [asked.json()["id"]]  # a retry leaves none


@pytest.mark.slow
@pytest.mark.ci
def test_an_import_with_a_column_of_specimens_plans_each_of_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = set[str]()
    monkeypatch.setattr(import_job, "plan_specimen", lambda _, __, named: planned.add(str(named)))
    asked = send_archive(service, in_specimens("1,,,A 2,,,B 3,,, 4,,,A"))
    work_off(service.context)
    assert [status for _, status, _ in rows_of(service, asked.json())] == ["created"] * 4
    assert planned == {str(found) for found in service.scalars(select(Specimen.id))}
    assert len(planned) == 2


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_nobody_finds_an_erased_cell_in_the_answer_of_its_upload(service: Service) -> None:
    to = specimen(service, patient=None)
    body = send(service, to, [("other.png", cell_png(1)), ("Jane Doe.png", cell_png(2))], "k").json()
    name = service.document(f"/v1/cases/{body['results'][1]['case']}")["external_id"]
    erase_patient_everywhere(service.context, "lead", name, "asked", without_patient=True)
    send(service, specimen(service, "S-2", "p2"), [("John Doe.png", BROKEN)])
    service.post("admin", "/v1/specimens", json={"external_id": "of John Doe", "patient": "p2"})
    erase_patient_everywhere(service.context, "lead", "p2", "asked")
    kept = [json.dumps(answer) for answer in service.scalars(select(IdempotencyRecord.body))]
    assert not [answer for answer in kept if "Jane" in answer or "John" in answer]


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_no_row_of_an_import_names_an_erased_specimen(service: Service) -> None:
    for name, patient in (('Zoë_"Doe"', "p1"), ("Zoë", "p2")):
        specimen(service, name, patient)
    asked = send_archive(service, in_specimens('a,p3,,"Zoë_""Doe""" b,p3,,Zoë c,,,"Zoë_""Doe"""')).json()
    work_off(service.context)
    before = rows_of(service, asked)
    assert [status for _, status, _ in before] == ["failed", "failed", "created"]
    erase_patient_everywhere(service.context, "lead", "p1", "asked")
    (name, _, detail), kept, _ = rows_of(service, asked)
    assert (name.partition("-")[0], detail, kept) == ("erased", "", before[1])


def test_an_erased_specimen_takes_no_cell(service: Service) -> None:
    to = specimen(service)
    service.written_past = True
    service.change(text("UPDATE specimens SET erased_at = '2026-01-01 00:00:00.000000'"))
    assert send(service, to, sample(1)).status_code == 404
    assert send(service, to, sample(51)).status_code == 404
    for name in (to, "S-1"):
        assert service.upload("a", cell_png(1), specimen=name).status_code == 422
    assert n_cases(service) == 0
