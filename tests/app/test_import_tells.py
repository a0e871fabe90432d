"""Imports lose nothing quietly: what differs, what is left out and what fails is said, in plain words."""

from pathlib import Path
from typing import Any

import pytest

from app.cli.imports import import_local
from app.job_table import FUNCTIONS
from tests.app.test_imports import MANIFEST, packed, send
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png


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


def test_a_folder_is_imported_like_its_archive_and_what_is_left_out_is_named(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    for name, data in (
        ("a/1.png", cell_png(1)),
        ("b/1.png", cell_png(2)),
        ("b/slide.svs", b"large"),
        (".DS_Store", b"x"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    result = import_local(service.context, FUNCTIONS, folder, "admin", lambda _: None)
    assert (result["created"], result["ignored"]) == (2, 2)
    assert [row["external_id"] for row in result["failures"]] == [".DS_Store", "b/slide.svs"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a.png,,,,", "external_id is missing"),
        (f"a.png,{'x' * 201},,,", "external_id is longer than 200 characters"),
        ("a.png,one,,,not json", "metadata must be a JSON object of texts"),
        ("a.png,one,,,[1]", "metadata must be a JSON object of texts"),
        ("a.png,one,p,s,,more", "the row has a field more than manifest.csv has columns"),
    ],
)
def test_a_row_that_cannot_be_imported_says_why_in_plain_words(service: Service, line: str, said: str) -> None:
    shown = imported(service, packed({"a.png": cell_png(1), "manifest.csv": f"{MANIFEST}{line}\n".encode()}))
    assert shown["rows"][0]["detail"].startswith(said)


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


def test_what_is_wrong_with_an_archive_stands_beside_the_field(service: Service) -> None:
    archive, by_browser = {"archive": ("a.zip", packed({"notes.txt": b"x"}))}, {"Accept": "text/html"}
    page = service.call("admin", "POST", "/imports", files=archive, headers=by_browser)
    assert page.status_code == 422
    assert 'id="archive-fault"' in page.text
    assert "contains no image" in page.text
    assert 'name="archive"' in page.text
    assert 'aria-label="Pages"' in page.text
