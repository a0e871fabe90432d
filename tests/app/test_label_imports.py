"""Imports of labels: from files of an archive to labels of outside annotators, with each bad row named."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from app.accounts.people import add_key
from app.cli.imports import check_local, import_local
from app.database.tables import Annotator, AuditEvent, Case, CountedLabel, ImportRow, Job, Label, utc_now
from app.http.errors import Conflict
from app.http.models import ClassOut
from app.imports import label_import, label_rows, zip_contents
from app.imports.label_rows import ArchiveLabels
from app.imports.zip_contents import ArchiveError, open_archive
from app.job_table import FUNCTIONS
from app.labels.batch import store_labels
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_imports import check, packed, rows, send
from tests.app.test_label_batches import twin, what_is_stored
from tests.app.test_leases import classes_of, set_policy
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png

__all__ = ["twin"]
AT = "2026-03-01T12:00:00+02:00"
FIXTURES = Path(__file__).parents[1] / "ml" / "label_files"


def table(*labels: tuple[object, ...], header: str = "image,annotator,label,at,blinded") -> bytes:
    return "\n".join([header, *(",".join(map(str, label)) for label in labels), ""]).encode()


def imported(service: Service, data: bytes, **asked: Any) -> dict[str, Any]:
    job = service.post("admin", "/v1/imports", content=data, headers={"Content-Type": "application/zip"}, **asked)
    assert job.status_code == 202, job.text
    work_off(service.context)
    return finished(service, job.json()["id"])


def finished(service: Service, job_id: str) -> dict[str, Any]:
    shown = service.document(f"/v1/imports/{job_id}", "admin")
    assert shown["job"]["state"] == "succeeded", shown["job"]["error"]
    return dict(shown)


def failed(shown: dict[str, Any]) -> dict[str, str]:
    """Why each label failed, by its place."""
    return {row["place"]: row["detail"] for row in shown["rows"] if row["place"]}


def n_labels(service: Service) -> int:
    return service.one(select(func.count()).select_from(Label))


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
def test_an_import_stores_what_single_posts_store(
    service: Service, twin: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_import, "LABELS_AT_ONCE", 5)
    codes, everybody = classes_of(service), [(cell, reader) for cell in range(4) for reader in range(3)]
    given = [(f"case {cell}.png", f"r{reader}", codes[cell * reader % 3], AT, reader > 0) for cell, reader in everybody]
    for one in (service, twin):
        set_policy(one, threshold=0.0, adjudicate_below=0.999999)
    images = {f"case {cell}.png": cell_png(cell) for cell in range(4)}
    shown = imported(service, packed(images | {"labels.csv": table(*given)}))
    assert shown["labels"] == shown["job"]["result"]["labels"] == {"stored": 12, "known": 0, "failed": 0}
    cases = {case["external_id"]: case["id"] for case in twin.add_cases(4)}
    for image, annotator, code, at, blind in given:
        answer = twin.label(
            "outside", cases[image.removesuffix(".png")], code, annotator=annotator, blind=blind, at=at
        ).json()
        assert answer["label"]["at"] == "2026-03-01T10:00:00Z"
    assert what_is_stored(service) == what_is_stored(twin)
    batches = select(AuditEvent.details).where(AuditEvent.action == "label.batch").order_by(AuditEvent.sequence)
    assert [len(details["labels"]) for details in service.scalars(batches)] == [5, 5, 2]
    assert service.faults() == twin.faults() == []


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
def test_a_job_that_died_stores_every_label_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_import, "LABELS_AT_ONCE", 3)
    codes, calls = classes_of(service), list[int]()
    service.add_cases(2)
    given = [(f"case {number % 2}", f"r{number // 2}", codes[number % 3], "", "") for number in range(8)]

    def dies(*args: Any, **options: Any) -> Any:
        calls.append(len(args[3]))
        results = store_labels(*args, **options)
        if len(calls) == 2:  # what the chunk has written is rolled back
            raise MemoryError
        return results

    monkeypatch.setattr(label_import, "store_labels", dies)
    job = send(service, packed({"labels.csv": table(*given, ("case 9", "r", codes[0], "", ""))})).json()
    work_off(service.context)
    assert service.document(f"/v1/imports/{job['id']}", "admin")["labels"] == {"stored": 3, "known": 0, "failed": 0}
    assert service.post("admin", f"/v1/jobs/{job['id']}/retry").status_code == 202
    work_off(service.context)
    shown = finished(service, job["id"])
    assert (calls, shown["labels"]) == ([3, 3, 3, 3], {"stored": 8, "known": 0, "failed": 1})
    assert n_labels(service) == 8
    again = imported(service, packed({"labels.csv": table(*given)}))
    assert (again["labels"], n_labels(service)) == ({"stored": 0, "known": 8, "failed": 0}, 8)
    assert service.faults() == []


#: Labels with the place of each and what is said about it; `$` is the first class.
BAD = [
    (("gone.png", "r1", "$", "", ""), "no such cell"),
    (("a.png", "r1", "no class", "", ""), "unknown class 'no class'; the classes are "),
    (("a.png", "r1", "$", "yesterday", ""), "is not a time"),
    (("a.png", "r1", "$", "2999-01-01T00:00:00Z", ""), "`at` is in the future"),
    (("a.png", "r1", "$", "", "perhaps"), "neither yes nor no"),
    (("", "r1", "$", "", ""), "the image is not named"),
    (("a.png", "r1", "", "", ""), "the label is empty"),
    (("a.png", "anna", "$", "", ""), "has an account here"),
    (("a.png", "Anna ", "$", "", ""), "has an account here"),
    (("a.png", "r" * 101, "$", "", ""), "annotator has more than 100"),
    (("i" * 201, "r1", "$", "", ""), "external_id is longer than 200"),
    (("a.png", "r1", "$", "", "", "more"), "6 cells, and the header has 5"),
    (("a.png", "r1", "$"), "3 cells, and the header has 5"),
    (("same.png", "r1", "$", "", ""), "may be the cell 'sub/x/same' or 'sub/y/same'"),
    (("text.png", "r1", "$", "", ""), "no such cell"),
    (("x", "r1", "$", "", ""), "no such cell"),
    (("../a.png", "r1", "$", "", ""), "no such cell"),
    (("a.png", "\u202er", "$", "", ""), "annotator must not contain the character U+202E"),
]


def bad_archive(code: str, other: str) -> bytes:
    """An archive of cells, with one right label, every bad one, a changed one, and files that cannot be read."""
    bad = [tuple(str(cell).replace("$", code) for cell in label) for label, _ in BAD]
    changed = ("a.png", "r0", other, "", "")
    images = {f"sub/{name}.png": cell_png(k) for k, name in enumerate(("a", "x/same", "y/same"))}
    files = {"sub/text.png": b"no image", "sub/labels.csv": table(("a.png", "r0", code, AT, "yes"), *bad, changed)}
    files |= {"zz/labels.csv": b"image,label,label\na.png,x,x\n", "zz/annotations.json": b'[{"annotations": []}]'}
    return packed(images | files)


@pytest.mark.slow
@pytest.mark.ci
def test_each_bad_label_is_named_by_a_dry_run_and_by_the_import(service: Service, tmp_path: Path) -> None:
    first, second = classes_of(service)[:2]
    (tmp_path / "a.zip").write_bytes(bad_archive(first, second))
    said = check_local(service.context, tmp_path / "a.zip", print)
    path = check(service, (tmp_path / "a.zip").read_bytes())
    assert (n_labels(service), service.one(select(func.count()).select_from(Case))) == (0, 0)
    assert said["labels"] == {"stored": 1, "known": 0, "failed": len(BAD) + 3}
    assert "Labels: 1 would be stored, 0 are already stored, 21 would fail." in service.get("admin", path).text
    shown = imported(service, (tmp_path / "a.zip").read_bytes())
    assert (shown["counts"]["created"], shown["counts"]["failed"], shown["labels"]) == (3, 1, said["labels"])
    whys = failed(shown)
    for number, (label, words) in enumerate(BAD, 3):
        assert words in whys[f"sub/labels.csv row {number}"], (label, words)
    assert "there is no 'data'" in whys["zz/annotations.json"]
    assert "several columns 'label'" in whys["zz/labels.csv"]
    stored = service.one(select(CountedLabel))
    change = whys[f"sub/labels.csv row {len(BAD) + 3}"]
    assert change.startswith(f"r0 labelled this cell {first} (label {stored.id}); send a revision of that label")
    told = {row["place"]: row["detail"] for row in said["failures"] if row["place"]}
    assert (
        told.items()
        <= (
            whys
            | {f"sub/labels.csv row {len(BAD) + 3}": change.replace(f"label {stored.id}", "earlier in this import")}
        ).items()
    )
    assert (stored.class_code, stored.blind, stored.given_at.isoformat()) == (first, True, "2026-03-01T10:00:00+00:00")
    lines = rows(service, f"/imports/{shown['job']['id']}", status="failed")
    assert [line[3].strip('"') for line in lines if "row 4:" in line[3]] == [
        f"sub/labels.csv row 4: {whys['sub/labels.csv row 4']}"
    ]
    page = service.get("admin", f"/imports/{shown['job']['id']}").text
    assert "Labels: 1 stored, 0 already stored, 21 failed" in page
    assert service.scalars(select(Annotator.name).where(Annotator.account_id.is_(None))) == ["r0"]


def named_by(tmp_path: Path, files: dict[str, bytes], *images: str, label_file: str = "labels.csv") -> list[str]:
    """External id, or the reason, of each image that a label file names."""
    (tmp_path / "a.zip").write_bytes(
        packed(files | {label_file: table(*((image, "r", "b", "", "") for image in images))})
    )
    with open_archive(tmp_path / "a.zip") as archive:
        labels = ArchiveLabels(archive, [ClassOut(code="b", name="Blast", shortcut="1")])
        return [label.problem or "/".join(label.names) for label in labels]


def test_a_label_names_its_cell_by_path_identifier_or_the_end_of_its_path(tmp_path: Path) -> None:
    manifest = b"file,external_id\ns/1.png,one\nt/1.png,two\nt/2.png,three\n"
    files = {"m/manifest.csv": manifest, "m/s/1.png": b"x", "m/t/1.png": b"x", "m/t/2.png": b"x"}
    asked = ("1.png", "s/1.png", "two", "t/2.png", "m/t/2.png", "/home/me/m/t/2.png", "u/2.png", "2.png")
    told = named_by(tmp_path, files, *asked, label_file="m/s/labels.csv")
    # no 2.png is in the folder of the label file, where another slide's may have that name
    assert told == ["one", "one", "two", "three", "three", "three", "u/2.png/u/2", "2.png"]
    told = named_by(tmp_path, files, "1.png", "2.png")
    assert "may be the cell 'one' or 'two'; name it by its path or its external id" in told[0]
    assert told[1] == "three"
    told = named_by(tmp_path, files, "/a/m/t/2.png", "/b/m/t/2.png")  # of which folder the archive was packed is open
    assert told == [f"/{slide}/m/t/2.png//{slide}/m/t/2" for slide in "ab"]
    renamed = {"manifest.csv": b"file,external_id\n1.png,2.png\n2.png,3.png\n", "1.png": b"x", "2.png": b"x"}
    told = named_by(tmp_path, renamed, "2.png", "./2.png", "3.png")
    assert "may be the cell '3.png' or '2.png'" in told[0]
    assert told[1:] == ["3.png", "3.png"]


@pytest.mark.parametrize("written", ["b", "B", "Blast", "BLAST"])
def test_a_class_is_named_by_code_or_name_in_any_case(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.zip").write_bytes(packed({"labels.csv": table(("x", "r", written, "", ""))}))
    classes = [ClassOut(code="b", name="Blast", shortcut="1"), ClassOut(code="band", name="Band", shortcut="2")]
    with open_archive(tmp_path / "a.zip") as archive:
        assert [label.body and label.body.label for label in ArchiveLabels(archive, classes)] == ["b"]
        twice = [*classes, ClassOut(code="X", name="b", shortcut="3")]
        (label,) = ArchiveLabels(archive, twice)
        assert (label.problem == "") == (written != "B")  # which is either code


def test_exports_of_other_tools_are_read_next_to_images(service: Service) -> None:
    names = ("cell 1", "cell 2", "cell 3", "slide-1/cell 4", "slide-2/cell 5", "cell 6", "Zelle_ä")
    files = {f"{name}.png": cell_png(k) for k, name in enumerate(names)} | {"notes.csv": b"cell,size,colour\n1,2,red\n"}
    for name in ("label-studio.json", "cvat.xml", "coco.json", "labels-wide.csv"):
        files[name] = (FIXTURES / name.removeprefix("labels-")).read_bytes()
    shown = imported(service, packed(files))
    assert {row["external_id"] for row in shown["rows"] if row["status"] == "ignored"} == {"notes.csv"}
    given = select(Annotator.name, func.count()).join(CountedLabel, CountedLabel.annotator_id == Annotator.id)
    n_given = {"1": 4, "ana": 4, "ben@example.org": 5, "chi": 4, "chi@example.org": 4}
    assert dict(map(tuple, service.rows(given.group_by(Annotator.name)))) == n_given
    assert shown["labels"] == {"stored": 21, "known": 8, "failed": 26}  # two tools state the same labels
    whys = failed(shown)
    assert "rectanglelabels is not a label of the whole image" in whys["label-studio.json task 11 annotation 4"]
    assert "has an account" in whys["coco.json annotation 2"]
    assert "has an account" in whys["cvat.xml image cell 6.png"]
    assert "unknown class '2'" in whys["labels-wide.csv row 2"]  # a number, which may mean any class


def test_labels_need_their_scope(service: Service) -> None:
    labels = packed({"labels.csv": table(("case 0", "r", classes_of(service)[0], "", ""))})
    images = packed({"a.png": cell_png(1)})
    asked = {"content": labels, "headers": {"Content-Type": "application/zip"}}
    with service.context.database.write() as session:
        for name, scopes in {"cells": ["cases:write"], "both": ["cases:write", "labels:write"]}.items():
            service.keys[name] = add_key(session, service.context.keys.audit, "outside", scopes)[1]
    refused = service.post("cells", "/v1/imports", **asked)
    assert (refused.status_code, "needs the scope labels:write" in refused.json()["detail"]) == (403, True)
    assert service.post("outside", "/v1/imports", **asked).status_code == 403
    path = "/v1/imports?class_folders=true"
    assert service.post("cells", path, content=images, headers=asked["headers"]).status_code == 403
    assert [send(service, data, who).status_code for data, who in ((images, "cells"), (labels, "both"))] == [202, 202]
    held = check(service, labels)
    assert service.call("cells", "POST", f"{held}/import").status_code == 403
    assert service.call("admin", "POST", f"{held}/import", follow_redirects=False).status_code == 303
    work_off(service.context)
    before = n_labels(service)
    old = send(service, labels).json()["id"]  # asked for when no scope was needed, and waiting through an upgrade
    with service.context.database.write() as session:
        job = session.get_one(Job, UUID(old))
        job.parameters = {"sha256": job.parameters["sha256"]}
    work_off(service.context)
    assert finished(service, old)["labels"] == {"stored": 0, "known": 0, "failed": 0}
    assert n_labels(service) == before


@pytest.mark.slow
@pytest.mark.ci
def test_folders_become_labels_only_if_that_is_chosen(service: Service) -> None:
    codes = classes_of(service)
    sorted_cells = packed({f"cells/{code}/{code}.png": cell_png(k) for k, code in enumerate(codes)})
    path = check(service, sorted_cells)
    assert 'name="class_folders"' in service.get("admin", path).text
    assert imported(service, sorted_cells)["labels"]["stored"] == 0
    begun = service.call("admin", "POST", f"{path}/import", data={"class_folders": "true"}, follow_redirects=False)
    work_off(service.context)
    assert finished(service, begun.headers["location"].rpartition("/")[2])["labels"]["stored"] == len(codes)
    labels = select(Case.external_id, CountedLabel.class_code, Annotator.name, CountedLabel.blind)
    labels = labels.join(Case, Case.id == CountedLabel.case_id).join(
        Annotator, Annotator.id == CountedLabel.annotator_id
    )
    assert sorted(map(tuple, service.rows(labels))) == sorted((code, code, "unnamed", False) for code in codes)
    assert imported(service, sorted_cells, params={"class_folders": "true"})["labels"]["known"] == len(codes)
    other = packed({"cells/other/1.png": cell_png(9), f"cells/{codes[0]}/2.png": cell_png(8)})
    assert 'name="class_folders"' not in service.get("admin", check(service, other)).text
    job = service.post(
        "admin", "/v1/imports?class_folders=1", content=other, headers={"Content-Type": "application/zip"}
    )
    work_off(service.context)
    ended = service.document(f"/v1/jobs/{job.json()['id']}")
    assert (ended["state"], "not all named like classes" in ended["error"]) == ("failed", True)
    assert service.one(select(func.count()).select_from(Case)) == len(codes)


def test_two_parts_of_a_folder_store_its_labels_once(service: Service, tmp_path: Path) -> None:
    code, folder = classes_of(service)[0], tmp_path / "slides"
    folder.mkdir()
    service.add_cases(1)
    for number in range(5):
        (folder / f"{number}.png").write_bytes(cell_png(number + 1))
    cells = [f"{number}.png" for number in range(5)] + ["case 0", "gone"]
    (folder / "labels.csv").write_bytes(table(*((cell, "r", code, "", "") for cell in cells)))
    parts = [import_local(service.context, FUNCTIONS, folder, "admin", print, (part, 2)) for part in (1, 2)]
    assert [part["labels"]["stored"] for part in parts] == [3, 3]
    assert sum(part["labels"]["failed"] for part in parts) == 1
    assert n_labels(service) == 6


def test_more_labels_than_the_limit_or_a_damaged_file_store_nothing(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = classes_of(service)[0]
    service.add_cases(1)
    labels = table(*(("case 0", f"r{number}", code, "", "") for number in range(4)))
    damaged = bytearray(packed({"labels.csv": labels}))
    damaged[damaged.index(b"r3")] ^= 1  # its checksum is wrong
    assert "damaged" in failed(imported(service, bytes(damaged)))["labels.csv"]
    with monkeypatch.context() as patch:
        patch.setattr(zip_contents, "MAX_LABELS", 9)
        for name, data in {"labels.json": b'[{"annotations": 1}]', "labels.csv": labels}.items():
            assert "larger than" in failed(imported(service, packed({name: data})))[name]
    monkeypatch.setattr(label_rows, "MAX_ROWS", 3)
    (tmp_path / "a.zip").write_bytes(packed({"labels.csv": labels}))
    with pytest.raises(ArchiveError, match="more than 3 labels"):
        check_local(service.context, tmp_path / "a.zip", print)
    assert n_labels(service) == 0


def test_the_time_of_a_label_is_stored_shown_and_exported(service: Service, tmp_path: Path) -> None:
    code, case = classes_of(service)[0], service.add_cases(1)[0]["id"]
    ahead = {minutes: (utc_now() + timedelta(minutes=minutes)).isoformat() for minutes in (4, 6)}
    for number, (at, status) in enumerate([(ahead[6], 422), ("2026-03-01T12:00:00", 422), (1, 422), (ahead[4], 201)]):
        answer = service.label("outside", case, code, annotator=f"r{number}", blind=True, at=at)
        assert answer.status_code == status, answer.text
    sent = {"external_id": "case 0", "annotator": "r9", "label": code, "blind": True, "at": AT}
    batch = [sent, sent, sent | {"annotator": "r8", "at": ahead[6]}, sent | {"at": ahead[4]}]
    answer = service.post("outside", "/v1/labels", json={"labels": batch}).json()
    assert [row["status"] for row in answer["results"]] == ["stored", "known", "refused", "refused"]
    times = {label["annotator"]: label["at"] for label in service.document(f"/v1/cases/{case}/labels")["items"]}
    assert (times["r9"], times.keys()) == ("2026-03-01T10:00:00Z", {"r3", "r9"})
    service.export(tmp_path / "out", images=False)
    lines = (tmp_path / "out" / "labels.csv").read_text().splitlines()
    assert lines[0].endswith(',"at"')
    assert sum(line.endswith(',"2026-03-01T10:00:00+00:00"') for line in lines) == 1


def test_an_erasure_reaches_labels_that_failed_and_imports_that_wait(service: Service) -> None:
    code = classes_of(service)[0]
    service.add_case("mine", cell_png(1), patient="p1")
    service.add_case("other", cell_png(2), patient="p2")
    given = [("mine", "r", code, "", ""), ("mine", "r", "x", "", ""), ("p1 lost", "r", code, "", "")]
    shown = imported(service, packed({"p1/labels.csv": table(*given, ("other", "r", "x", "", ""))}))
    waiting = send(service, packed({"labels.csv": table(("mine", "r2", code, "", ""))})).json()["id"]
    with pytest.raises(Conflict, match="contains this patient"):
        erase_patient_everywhere(service.context, "lead", "p1", "asked for")
    assert service.call("admin", "DELETE", f"/v1/jobs/{waiting}").status_code == 200
    erase_patient_everywhere(service.context, "lead", "p1", "asked for")
    left = service.rows(
        select(ImportRow.external_id, ImportRow.place).where(ImportRow.job_id == UUID(shown["job"]["id"]))
    )
    assert len(left) == 3  # the name of the file may be about the patient, too
    assert not [row for row in left if row[1] or "p1" in row[0]]
    assert service.document(f"/v1/imports/{shown['job']['id']}", "admin")["counts"]["failed"] == 0
    assert service.faults() == []
