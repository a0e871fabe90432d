"""Backup and restore, erasure, exports, the audit: what a laboratory must be able to answer for."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.audit.verify import verify_all
from app.context import build_context
from app.database.tables import CaseChange, NetworkOutput
from app.http.errors import NotFound
from app.jobs.queries import job_by_id, newest_jobs
from app.jobs.service import cancel_open_jobs
from app.main import create_app
from app.maintenance.backup import check_backup, restore_backup, write_backup
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from app.maintenance.export import export_dataset
from app.settings import Settings
from ml.agreement import measure_agreement
from ml.label_files import read_label_file, to_label_table
from ml.tables import evaluate as evaluate_tables
from ml.tables import read_annotations, read_table
from ml.util.files import read_json, write_json
from tests.support.jobs import submit, work_off
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import Service, cell_png

pytestmark = [pytest.mark.both_databases, pytest.mark.slow_on_second_database]


def fill(service: Service, n: int = 6) -> list[dict[str, Any]]:
    cases = []
    for number in range(n):
        cases.append(service.add_case(f"Jane Doe {number}", cell_png(number), patient=f"p{number // 2}", site="north"))
        classes = cases[-1]["prediction"]["classes"]
        for reader in range(2):
            service.outside_label(cases[-1]["id"], f"r{reader}", classes[(number + reader) % 3])
    return cases


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Settings:
    """Settings of a service that a backup comes back to: another HOME, and another database of the same kind."""
    home = tmp_path / "elsewhere"
    url = f"sqlite:///{home / 'secondread.db'}"
    if database_kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    return Settings(home=home, database_url=url, allowed_hosts=["testserver"], min_free_bytes=0)


@pytest.mark.slow_on_second_database
def test_a_backup_made_under_load_comes_back_whole(service: Service, tmp_path: Path, elsewhere: Settings) -> None:
    cases = fill(service)
    assert write_backup(service.context, tmp_path / "backup")["n_files"] >= 6 + 5
    fill_more = service.add_case("after", cell_png(50))
    restore_backup(tmp_path / "backup", elsewhere.home, elsewhere.images_folder, elsewhere.sqlalchemy_url)
    app = create_app(elsewhere)
    with TestClient(app) as client:
        other = Service(client, app.state.context, service.keys)
        for case in cases:
            path = f"/v1/cases/{case['id']}"
            assert other.get("viewer", path).json() == service.get("viewer", path).json()
            assert other.get("viewer", f"{path}/image").content == service.get("viewer", f"{path}/image").content
        assert other.get("viewer", f"/v1/cases/{fill_more['id']}").status_code == 404
        assert other.faults() == []


@pytest.mark.both_databases
def test_what_was_under_way_in_a_backup_is_cancelled(service: Service, tmp_path: Path, elsewhere: Settings) -> None:
    asked = service.post("admin", "/v1/evaluations", json={}).json()
    ended = service.post("admin", "/v1/evaluations", json={}).json()
    service.call("admin", "DELETE", f"/v1/jobs/{ended['id']}")
    write_backup(service.context, tmp_path / "backup")
    elsewhere.home.mkdir()
    (elsewhere.home / "jobs.db").write_text("of the job engine, before")
    restore_backup(tmp_path / "backup", elsewhere.home, elsewhere.images_folder, elsewhere.sqlalchemy_url)
    context = build_context(elsewhere)
    assert cancel_open_jobs(context) == 1
    assert cancel_open_jobs(context) == 0
    with context.database.read() as session:
        assert {job.state for job in newest_jobs(session, 10)} == {"cancelled"}
    assert work_off(context) == 0
    again = submit(context, "evaluation", {})
    assert work_off(context, {"evaluation": lambda _: {}}) == 1
    with context.database.read() as session:
        assert job_by_id(session, UUID(again)).state == "succeeded"
    context.database.engine.dispose()
    assert service.document(f"/v1/jobs/{asked['id']}")["state"] == "queued"  # the original goes on


@pytest.mark.slow
@pytest.mark.ci
def test_a_backup_of_a_development_version_is_refused_at_once(service: Service, tmp_path: Path) -> None:
    write_backup(service.context, tmp_path / "backup")
    manifest = tmp_path / "backup" / "manifest.json"
    write_json(manifest, {name: value for name, value in read_json(manifest).items() if name != "revision"})
    (tmp_path / "new").mkdir()
    made = Installation(tmp_path / "new" / "home")
    done = made.run("db", "restore", "--without-list", tmp_path / "backup", check=False)
    assert (done.returncode, "development version" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert not made.home.exists()


@pytest.mark.both_databases
def test_a_backup_is_not_restored_into_a_database_that_has_tables(service: Service, tmp_path: Path) -> None:
    new = tmp_path / "new"
    write_backup(service.context, tmp_path / "backup")
    with pytest.raises(ValueError, match="there is a database already"):
        restore_backup(tmp_path / "backup", new, new / "images", service.context.settings.sqlalchemy_url)
    assert not new.exists()


def test_a_damaged_backup_and_a_used_home_are_refused(service: Service, tmp_path: Path) -> None:
    fill(service, 2)
    out, url = tmp_path / "backup", f"sqlite:///{tmp_path / 'new' / 'x.db'}"
    write_backup(service.context, out)
    with pytest.raises(ValueError, match="not empty"):
        write_backup(service.context, out)
    sqlite = service.context.database.engine.dialect.name == "sqlite"
    used = service.context.settings.home
    with pytest.raises(ValueError, match=r"not empty" if sqlite else r"another kind"):
        restore_backup(out, used, used / "images", url)
    image = next(path for path in (out / "images").rglob("*") if path.is_file())
    image.write_bytes(image.read_bytes()[:-1])
    with pytest.raises(ValueError, match=image.name):
        check_backup(out)
    shutil.rmtree(out)
    with pytest.raises(ValueError, match="not a backup"):
        check_backup(out)


@pytest.mark.slow_on_second_database
def test_erasing_a_patient_leaves_tombstones_and_the_labels(service: Service, tmp_path: Path) -> None:
    cases = fill(service)
    everything = {"partition": "all", "weighting": "none"}
    before = service.document("/v1/metrics", **everything)["metrics"]
    with service.context.database.write() as session:
        erased = erase_patient_rows(session, service.context, "lead", ErasureTarget("p1"), "the patient asked")
    assert (len(erased.cases), len(erased.images)) == (2, 2)
    for digest in erased.images:
        service.context.images.remove(digest)
    gone = cases[2]
    shown = service.document(f"/v1/cases/{gone['id']}")
    assert all(shown[name].startswith("erased-") for name in ("external_id", "patient"))
    assert service.get("viewer", f"/v1/cases/{gone['id']}/image").status_code == 404
    assert len(service.document(f"/v1/cases/{gone['id']}/labels")["items"]) == 2
    after = service.document("/v1/metrics", **everything)["metrics"]
    for name in ("L", "EL"):
        assert after[name]["value"] == pytest.approx(before[name]["value"], abs=1e-12)
    assert "Jane Doe 2" not in json.dumps(service.document("/v1/cases"))
    with service.context.database.write() as session:
        assert verify_all(session, service.context).faults == []
        assert len(session.execute(select(NetworkOutput)).scalars().all()) == 4
        kept = {table: list(session.execute(text(f"SELECT * FROM {table}")).all()) for table in ("cases", "idempotency_records", "audit_events")}  # fmt: skip # noqa: E501
        with pytest.raises(NotFound):
            erase_patient_rows(session, service.context, "lead", ErasureTarget("p1"), "again")
    assert "Jane Doe 2" not in json.dumps(kept, default=str)
    assert gone["prediction"]["image_sha256"] not in json.dumps(kept["cases"], default=str)
    (event,) = service.document("/v1/audit-events", "admin", action="patient.erase")["items"]
    assert (event["reason"], event["details"]["n_cases"]) == ("the patient asked", 2)
    named = service.scalars(select(CaseChange.case_id).where(CaseChange.sequence == event["sequence"]))
    assert set(named) == set(erased.cases)
    with service.context.database.read() as session:
        written = export_dataset(session, service.context, tmp_path / "out", "all")
    assert written == {"n_cases": 6, "n_labels": 12, "n_kept_for_sets": 0}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_exports_are_read_by_evaluate_and_agreement(service: Service, tmp_path: Path, kind: Any) -> None:
    fill(service)
    service.export(tmp_path / "out", kind=kind, images=False)
    labels, predictions = (tmp_path / "out" / f"{name}.{kind}" for name in ("labels", "predictions"))
    assert evaluate_tables(labels, predictions, cluster="patient").n_labels == 12
    assert measure_agreement(labels, cluster="patient").n_annotators == 2
    assert not list((tmp_path / "out" / "images").iterdir())
    if kind == "parquet":
        audit = pyarrow.parquet.read_table(tmp_path / "out" / "audit.parquet")
        with service.context.database.read() as session:
            assert audit.num_rows == verify_all(session, service.context).n_events


def test_an_export_for_label_studio_has_the_labels_of_its_table(service: Service, tmp_path: Path) -> None:
    fill(service)
    service.export(tmp_path / "out", kind="label-studio", images=False)
    labels = read_annotations(tmp_path / "out" / "labels.csv")
    read = to_label_table(read_label_file(tmp_path / "out" / "label-studio.json"))
    assert not read.bad_rows
    theirs = read_annotations(read.columns)
    rows = [theirs.case_ids.index(case_id) for case_id in labels.case_ids]
    assert (theirs.annotators, theirs.classes) == (labels.annotators, labels.classes)
    assert theirs.counts()[rows].tolist() == labels.counts().tolist()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.one_database
def test_an_export_with_croissant_is_read_by_its_library(service: Service, tmp_path: Path) -> None:
    fill(service)
    service.export(tmp_path / "out", kind="croissant")
    # of its own process, because the library warns on import
    code = (
        "import json, mlcroissant, sys; dataset = mlcroissant.Dataset(sys.argv[1]); issues = dataset.metadata.issues;"
        "rows = {name: [{key.split('-', 1)[-1]: str(value) for key, value in row.items()}"
        " for row in dataset.records(name)] for name in ('labels', 'predictions', 'classes')};"
        "rows['images'] = [row['images/content'].size for row in dataset.records('image-files')];"
        "print(json.dumps([sorted(issues.errors), rows]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out" / "croissant.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    errors, rows = json.loads(done.stdout)
    assert errors == []
    table = read_table(tmp_path / "out" / "labels.csv")
    assert [row["label"] for row in rows["labels"]] == [f"b'{code}'" for code in table["label"].to_pylist()]
    assert (len(rows["predictions"]), len(rows["images"])) == (6, 6)


def test_the_audit_is_paged_filtered_and_for_admins_only(service: Service) -> None:
    cases = fill(service, 3)
    seen = [event["sequence"] for event in service.items("/v1/audit-events", "admin", limit=7)]
    assert seen == list(range(len(seen), 0, -1))
    of_case = service.document("/v1/audit-events", "admin", object_id=cases[0]["id"])["items"]
    assert [event["action"] for event in of_case] == ["case.add"]
    assert service.get("viewer", "/v1/audit-events").status_code == 403
    assert service.get("anna", "/v1/audit-events").status_code == 403
