"""An erased patient is found nowhere: not in rows, not in what rows left in the database's files, in no other file."""

import io
import shutil
import struct
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet
import pytest
from PIL import Image
from sqlalchemy import Engine, func, select, text
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from app.audit.anchor import AnchorError
from app.audit.chain import verify_proof
from app.audit.chain.keys import DerivedKey
from app.audit.verify import verify_all
from app.cli import serving
from app.cli.main import secondread
from app.context import build_context
from app.database import idempotency
from app.database.tables import Case, Erasure, ImportRow, NetworkOutput, Specimen
from app.http.errors import Conflict, NotFound
from app.imports.archive_storage import archive_path
from app.imports.dry_run import begin_check
from app.imports.import_job import begin_import
from app.imports.receiving import receive_archive
from app.job_table import refresh_snapshots, run_maintenance
from app.maintenance import backup
from app.maintenance.backup import restore_backup, write_backup
from app.maintenance.cache import refresh_cache
from app.maintenance.erasure import erase_patient_everywhere, finish_erasures, repeat_listed_erasures
from app.maintenance.erasure_registry import ErasureListError, append_missing_erasures
from app.maintenance.export import export_dataset
from app.metrics.dataset import stable_name_hash
from app.settings import Settings
from app.storage.bucket import BucketStore
from app.triage.planning import uniform_draw
from tests.support.bucket import BucketServer
from tests.support.command import run_here
from tests.support.images import encode, photo
from tests.support.jobs import work_off
from tests.support.postgres import PostgresServer
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, store, stored_image
from tests.support.snapshots import write_snapshots

PATIENT, EXTERNAL, ROW, FILE = "Zuckerkandl7", "Slide-Quixotic-9", "Slide-Unread-8", "zuckerkandlova-scan.png"
NOTE, REASON, DECLINED = "has a limp since Olomouc", "her aunt Ludmila said", "I treat her at Hradec"
SETTLED, COMMENT = "as at her visit in Pilsen", "as in her sister Libuse"
EXIF, METADATA = "Zuckerkandlova Bozena", "born in Kunratice"


def picture(seed: int = 5) -> bytes:
    """Noise, of which no compression hides the bytes, with a name in its EXIF."""
    exif = Image.Exif()
    exif[0x010E] = EXIF
    return encode(photo(seed), "PNG", exif=exif)


def packed(rows: list[str], files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.csv", "\n".join(["file,external_id,patient,site,metadata,specimen", *rows]))
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def send(service: Service, archive: bytes) -> str:
    answer = service.post("admin", "/v1/imports", content=archive, headers={"Content-Type": "application/zip"})
    return str(answer.json()["id"])


def spoil_here(service: Service, import_id: str) -> None:
    """Make an archive in HOME one that cannot be imported."""
    path = archive_path(service.context.settings.home, uuid.UUID(import_id))
    path.write_bytes(path.read_bytes().replace(b"external_id", b"exterxxl_id"))


def live_with(service: Service, spoil: Callable[[Service, str], None] = spoil_here) -> dict[str, Any]:
    """Do with a patient what a laboratory does; gives the canaries, by what they are."""
    context = service.context
    around = picture(9)
    case = service.add_case(
        EXTERNAL, picture(), field=around, patient=PATIENT, site="north", metadata=f'{{"k": "{METADATA}"}}'
    )
    read = service.lease_on("anna", case["id"])
    assert service.post("admin", f"/v1/cases/{case['id']}/comments", json={"text": COMMENT}).status_code == 201
    declined = service.post("anna", f"/v1/reads/{read}/decline", json={"reason": "other", "note": DECLINED})
    assert declined.status_code == 200, declined.text
    service.add_case("somebody-else", cell_png(3), patient="another", site="north")
    first, second = case["prediction"]["classes"][:2]
    label = service.label("outside", case["id"], first, annotator="r1", blind=True, note=NOTE).json()["label"]
    revised = {"label": second, "note": NOTE, "reason": REASON, "blind": True}
    assert service.post("outside", f"/v1/labels/{label['id']}/revisions", json=revised).status_code == 201
    assert service.settle(case["id"], split=True, reason=SETTLED).status_code == 201
    rows = [f"{FILE},{EXTERNAL}-2,{PATIENT},north,", f"missing-{FILE},{ROW},{PATIENT},north,", "b.png,b,another,,"]
    send(service, packed(rows, {FILE: picture(6), "b.png": cell_png(4)}))
    broken = send(service, packed(rows, {FILE: picture(7)}))
    spoil(service, broken)
    service.post("admin", "/v1/evaluations", json={"partition": "all", "weighting": "none"})
    work_off(context)
    write_snapshots(context)
    if context.database.engine.dialect.name == "postgresql":
        with context.database.write() as session:
            session.execute(text("ANALYZE"))  # the server does so by itself, and keeps values
    erased = service.scalars(select(Case).where(Case.patient == PATIENT))
    outputs = select(NetworkOutput).where(NetworkOutput.case_id.in_([row.id for row in erased]))
    features = [row.features for row in service.scalars(outputs)]
    keys = [getattr(row, "digest_key", None) for row in erased]
    assert service.one(select(ImportRow).where(ImportRow.external_id == ROW)).case_id is None
    assert len(erased) == 2
    assert any(row.stored_field_sha256 for row in erased)
    texts = {"name": PATIENT, "external id": EXTERNAL, "note": NOTE, "reason": REASON, "EXIF": EXIF, "row": ROW}
    texts |= {"reason of an outcome": SETTLED, "note of a declined read": DECLINED, "file": FILE, "metadata": METADATA}
    texts["comment"] = COMMENT
    numbers = {"number": stable_name_hash(f"patient:{PATIENT}"), "coin": uniform_draw(context.keys.coin, EXTERNAL)}
    several: dict[str, Any] = {}
    for number, row in enumerate(erased):
        stored = context.images.get(row.stored_sha256)
        several |= {f"pixels {number}": stored[200:264], f"upload {number}": picture(5 + number)[-300:-236]}
        several |= {f"image digest {number}": row.image_sha256, f"stored digest {number}": row.stored_sha256}
        several |= {f"raw digest {number}": bytes.fromhex(row.stored_sha256), f"features {number}": features[number]}
        if row.stored_field_sha256 is not None:
            field = context.images.get(row.stored_field_sha256)
            several |= {"pixels of the field": field[200:264], "upload of the field": around[-300:-236]}
            several |= {"field digest": row.field_sha256, "stored field digest": row.stored_field_sha256}
        several |= {} if keys[number] is None else {f"key {number}": keys[number]}
    return texts | numbers | several


@pytest.fixture
def settings_of_commands(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process are those of the service."""
    settings = service.context.settings
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.key_ring().to_bytes().decode())


@pytest.fixture
def command(settings_of_commands: None) -> Any:
    def run(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(secondread, list(arguments), input=stdin)

    return run


@pytest.mark.slow
@pytest.mark.ci
@undone("T23", "remembered answers about a case go with its patient", idempotency, "_get_only_case_id", lambda _: None)
@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_nothing_of_an_erased_patient_is_found_anywhere(
    service: Service, command: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    context = service.context
    engine = context.database.engine
    server = request.getfixturevalue("postgres") if engine.dialect.name == "postgresql" else None
    with capture_logs() as logs:
        canaries = live_with(service)
    before = {line.partition(" in ")[0] for line in remains(canaries, tmp_path, engine, server)}
    assert before == canaries.keys(), "a canary that cannot be found proves nothing"
    answer = command("patient", "erase", PATIENT, "--reason", "asked on Monday", stdin="y\n")
    assert answer.exit_code == 0, answer.output
    assert remains(canaries, tmp_path, engine, server) == set()
    write_backup(context, tmp_path / "later")
    with context.database.read_moment() as session:
        export_dataset(session, context, tmp_path / "export", "all", kind="parquet", proof=True)
        assert verify_all(session, context).faults == []
    assert remains(canaries, tmp_path, engine, server) == set()
    assert verify_proof.main([str(tmp_path / "export" / "proof.jsonl"), context.keys.audit.public_key]) == 0
    logged = repr(logs)
    assert "/v1/cases" in logged
    assert [name for name, value in canaries.items() if isinstance(value, str) and value in logged] == []


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.sqlite_only
def test_nothing_is_found_in_a_bucket_nor_in_the_home_of_another_process(
    two: tuple[Service, Service], bucket: str, buckets: BucketServer, tmp_path: Path
) -> None:
    def spoil(service: Service, import_id: str) -> None:
        store = BucketStore(bucket)
        (found,) = store.under(f"imports/{import_id}")
        buckets.overwrite(bucket, found.key, store.get(found.key).replace(b"external_id", b"exterxxl_id"))

    def found_in(folder: str) -> set[str]:
        buckets.save(bucket, tmp_path / folder)
        return remains_in_files(canaries, tmp_path)

    one, other = two
    canaries = live_with(one, spoil)
    refresh_cache(other.context)
    cases = other.scalars(select(Case).where(Case.patient == PATIENT))
    for case in cases:
        assert other.get("admin", f"/v1/cases/{case.id}/image").status_code == 200
    before = found_in("bucket before")
    shutil.rmtree(tmp_path / "bucket before")
    for place in ("bucket before", "two/cache", "two/snapshots"):
        assert any(place in line for line in before), f"{place} has nothing that could be erased"
    assert {line.partition(" in ")[0] for line in before} == canaries.keys()
    assert erase_patient_everywhere(one.context, "lead", PATIENT, "asked").unfinished is None
    refresh_cache(other.context)
    assert found_in("bucket after") == set()
    refresh_snapshots(other.context)
    refresh_cache(one.context)
    assert found_in("bucket at last") == set()
    assert other.faults() == []


@pytest.mark.slow
@pytest.mark.ci
def test_an_import_under_way_and_a_reason_that_names_the_patient_are_refused(service: Service, command: Any) -> None:
    store(service, EXTERNAL, picture(), {}, patient=PATIENT)
    waiting = send(service, packed([f"{FILE},{EXTERNAL}-2,{PATIENT},,"], {FILE: picture(6)}))
    for reason, said in (("asked", waiting), (f"{PATIENT.lower()} asked", "names the patient")):
        answer = command("patient", "erase", PATIENT, "--reason", reason, "--yes")
        assert isinstance(answer.exception, Conflict)
        assert said in answer.exception.detail
        work_off(service.context)
    assert command("patient", "erase", PATIENT, "--reason", "asked", stdin="n\n").exit_code == 1
    assert service.one(select(func.count()).where(Case.patient == PATIENT)) == 2
    assert service.one(select(func.count()).select_from(Erasure)) == 0


def test_a_patient_of_whom_only_failed_rows_are_known_is_erased(service: Service) -> None:
    send(service, packed([f"missing-{FILE},{ROW},{PATIENT},,"], {FILE: picture(6)}))
    work_off(service.context)
    report = erase_patient_everywhere(service.context, "lead", PATIENT, "asked")
    assert (report.cases, report.import_rows, report.unfinished) == (0, 2, None)  # the file that no row is about too
    known = {"name": PATIENT, "row": ROW, "file": FILE}
    assert remains_in_files(known, service.context.settings.home.parent) == set()
    with pytest.raises(NotFound):
        erase_patient_everywhere(service.context, "lead", PATIENT, "asked")


@pytest.mark.parametrize("begin", [begin_import, begin_check])
def test_a_failed_row_that_names_only_the_specimen_is_forgotten_with_its_patient(service: Service, begin: Any) -> None:
    context = service.context
    service.post("admin", "/v1/specimens", json={"external_id": f"{EXTERNAL}-slide", "patient": PATIENT})
    rows = [f"missing-{FILE},{ROW},,,,{EXTERNAL}-slide", f"other-{FILE},other,,,,"]
    with receive_archive(context.settings.home, 0) as receiver, context.database.write() as session:
        receiver.write(packed(rows, {"a.png": picture(6)}))
        begin(session, context, service.principal("admin", "cases:write"), receiver.finish())
    work_off(service.context)
    report = erase_patient_everywhere(service.context, "lead", PATIENT, "asked")
    assert report.import_rows == 2  # the file that no row is about too
    assert ROW not in service.scalars(select(ImportRow.external_id))
    assert "other" in service.scalars(select(ImportRow.external_id))


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
def test_while_somebody_reads_the_database_the_erasure_is_unfinished_and_the_worker_ends_it(service: Service) -> None:
    context = service.context
    store(service, EXTERNAL, picture(), {}, patient=PATIENT)
    with context.database.read_moment() as reading:
        reading.execute(select(Case.id)).all()
        report = erase_patient_everywhere(context, "lead", PATIENT, "asked")
        assert report.unfinished is not None
        assert finish_erasures(context).problem is not None
    run_maintenance(context)
    assert service.one(select(Erasure.finished_at)) is not None


def test_a_case_without_a_patient_is_erased_by_its_external_id(service: Service, command: Any) -> None:
    store(service, EXTERNAL, picture(), {})
    store(service, f"{EXTERNAL}-2", picture(6), {}, patient=PATIENT)
    for external_id in (f"{EXTERNAL}-2", "unknown"):
        answer = command("patient", "erase", external_id, "--case", "--reason", "asked", "--yes")
        assert isinstance(answer.exception, NotFound)  # whoever has a patient is erased as a whole
    assert command("patient", "erase", EXTERNAL, "--case", "--reason", "asked", "--yes").exit_code == 0
    left = service.scalars(select(Case.external_id).where(Case.erased_at.is_(None)))
    assert left == [f"{EXTERNAL}-2"]


def test_a_snapshot_that_was_under_way_is_written_again(service: Service, tmp_path: Path) -> None:
    context = service.context
    store(service, EXTERNAL, picture(), {}, patient=PATIENT)
    write_snapshots(context)
    snapshots = context.settings.home / "snapshots"
    shutil.copytree(snapshots, tmp_path / "aside")
    assert erase_patient_everywhere(context, "lead", PATIENT, "asked").snapshots == 1
    shutil.copytree(tmp_path / "aside", snapshots, dirs_exist_ok=True)  # its writer had read the rows before
    number = {"number": stable_name_hash(f"patient:{PATIENT}")}
    assert len(remains_in_files(number, snapshots)) == 1
    refresh_snapshots(context)
    assert remains_in_files(number, snapshots) == set()
    assert list(snapshots.glob("*/[0-9]*"))


@pytest.fixture
def backed_up(service: Service, settings_of_commands: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A backup with a patient who was erased afterwards; the environment names a new HOME."""
    context = service.context
    store(service, EXTERNAL, cell_png(1), {"r1": 0}, patient=PATIENT)
    store(service, "another", cell_png(2), {}, patient="another")
    for external_id, patient in ((f"{EXTERNAL}-bare", PATIENT), ("bare", "another")):  # specimens without cells
        service.post("admin", "/v1/specimens", json={"external_id": external_id, "patient": patient})
    monkeypatch.setenv("SECONDREAD_AUDIT_ANCHOR", str(tmp_path / "heads"))
    done = run_here("db", "backup", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    assert "erasures.jsonl" in done.stdout + done.stderr
    shutil.copy(context.settings.erasure_list, tmp_path / "older")
    report = erase_patient_everywhere(context, "lead", PATIENT, "asked")
    assert (report.cases, report.unfinished) == (1, None)
    assert any(name.startswith("backup ") for name in report.backups)
    assert run_here("db", "backup", tmp_path / "later").returncode == 0
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "new"))
    monkeypatch.delenv("SECONDREAD_DATABASE_URL")
    return tmp_path


@pytest.mark.sqlite_only
@undone("T23", "a backup comes back only with the list of erasures", backup, "require_erasure_list", lambda *_: 0)
def test_restoring_asks_for_the_list_and_erases_again(service: Service, backed_up: Path) -> None:
    new, kept = backed_up / "new", service.context.settings.erasure_list
    for number, (lists, said) in enumerate(
        (([], "there is no list of erasures"), ([backed_up / "older"], "has 0 erasures, and there were 1"))
    ):
        for path in lists:
            new.mkdir(exist_ok=True)
            shutil.copy(path, new / "erasures.jsonl")
        done = run_here("db", "restore", backed_up / "backup")
        assert (done.returncode != 0, said in done.stderr) == (True, True), (number, done.stderr)
        assert not (new / "secondread.db").exists()
    shutil.copy(kept, new / "erasures.jsonl")
    done = run_here("db", "restore", backed_up / "backup")
    assert done.returncode == 0, done.stderr
    assert "1 patients" in done.stderr
    context = build_context(Settings())
    assert remains_in_files({"name": PATIENT, "external id": EXTERNAL}, new) == set()
    with context.database.read() as session:
        assert verify_all(session, context).faults == []
        erased = session.execute(select(Case).where(Case.erased_at.is_not(None))).scalars().one()
        assert not stored_image(context, erased.stored_sha256).exists()
        left = session.execute(select(Specimen.external_id).where(Specimen.erased_at.is_(None)))
        assert left.scalars().all() == ["bare"]
    context.database.engine.dispose()


@pytest.mark.sqlite_only
def test_a_service_on_a_backup_that_was_brought_back_by_hand_erases_before_it_serves(
    service: Service, backed_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings()
    restore_backup(
        backed_up / "backup", settings.home, settings.images_folder, settings.sqlalchemy_url, settings.key_ring()
    )
    shutil.copy(service.context.settings.erasure_list, settings.home / "erasures.jsonl")
    served: list[object] = []

    def serve(application: object, *_: object) -> None:
        served.append(application)
        assert remains_in_files({"name": PATIENT}, settings.home) == set()

    monkeypatch.setattr("app.cli.server.run_server", serve)
    monkeypatch.setenv("SECONDREAD_WORKER", "false")
    with pytest.raises(AnchorError, match="has lost the head"):
        serving.serve(None, None, None)
    serving.serve(None, None, None, "the backup was brought back by hand")
    assert len(served) == 1


@pytest.mark.both_databases
def test_what_the_list_names_is_erased_once_and_a_forged_list_is_refused(service: Service) -> None:
    context = service.context
    store(service, EXTERNAL, cell_png(1), {"r1": 0}, patient=PATIENT)
    report = erase_patient_everywhere(context, "lead", PATIENT, "asked")
    path = context.settings.erasure_list
    assert (report.unfinished, len(path.read_text().splitlines())) == (None, 2)
    assert repeat_listed_erasures(context) == 0  # the database knows it
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # power failed while the line was written
    assert repeat_listed_erasures(context) == 0
    with context.database.read() as session:
        assert append_missing_erasures(path, session, context.keys.erasures) == 1
    assert path.read_bytes() == whole
    store(service, EXTERNAL, cell_png(2), {"r1": 0}, patient="somebody")
    with context.database.read() as session:
        case = session.execute(select(Case).where(Case.external_id == EXTERNAL)).scalar_one()
        path.unlink()
        session.add(Erasure(id=case.id, cases=[str(case.id)], import_rows=[], created_at=case.created_at))
        session.flush()  # as a database knows it that was lost
        assert append_missing_erasures(path, session, context.keys.erasures) == 2
    assert [repeat_listed_erasures(context), repeat_listed_erasures(context)] == [1, 0]
    assert service.scalars(select(Case.id).where(Case.external_id == EXTERNAL)) == []
    path.unlink()
    with context.database.read() as session:
        append_missing_erasures(path, session, DerivedKey(b"of another installation, long enough", b""))
    with pytest.raises(ErasureListError, match="not of this installation"):
        repeat_listed_erasures(context)


@pytest.mark.parametrize("left", ["", '{"number": 0, "era'])
def test_a_list_whose_first_line_was_cut_off_is_begun_again(service: Service, left: str) -> None:
    """A full disk leaves it so, when the first process starts."""
    context = service.context
    context.settings.erasure_list.write_text(left)
    assert repeat_listed_erasures(context) == 0
    with context.database.read() as session:
        assert append_missing_erasures(context.settings.erasure_list, session, context.keys.erasures) == 0
    assert repeat_listed_erasures(context) == 0
    assert len(context.settings.erasure_list.read_text().splitlines()) == 1


READINGS = 20


def forms(value: object) -> list[bytes]:
    """How a value may be written: as text, and as a number's or a digest's bytes."""
    if isinstance(value, bytes):
        return [value, value.hex().encode()]
    if isinstance(value, float):
        return [struct.pack("<d", value), struct.pack(">d", value), repr(value).encode()]
    if isinstance(value, int):
        return [struct.pack("<q", value), struct.pack(">q", value), str(value).encode()]
    return [str(value).encode()]


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if path.suffix == ".parquet":
        yield repr(pyarrow.parquet.read_table(BytesIO(data)).to_pydict()).encode()


def _rows(url: str) -> Iterator[tuple[str, bytes]]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        listed = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT LIKE 'information%'"
        for schema, table in connection.execute(listed).fetchall():
            rows = connection.execute(f'SELECT t::text FROM "{schema}"."{table}" t').fetchall()
            yield f"{schema}.{table}", "\n".join(row[0] or "" for row in rows).encode()


def _heap(url: str, server: PostgresServer) -> Path:
    """Folder of a database's files, with everything in them that is committed."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return server.data / "base" / str(row[0])


def remains(canaries: Mapping[str, object], folder: Path, engine: Engine, server: PostgresServer | None) -> set[str]:
    """Which canaries are found, and where: in a folder, and in the files and rows of PostgreSQL."""
    found = remains_in_files(canaries, folder)
    if server is not None:
        url = engine.url.render_as_string(hide_password=False)
        found |= remains_in_files(canaries, _heap(url, server))
        for table, content in _rows(url):
            found |= {f"{name} in {table}" for name in _found(canaries, content)}
    return found


def remains_in_files(canaries: Mapping[str, object], folder: Path) -> set[str]:
    """The folder is read anew when a file goes while it is read: a server renames and removes files as it likes."""
    for _ in range(READINGS):
        with suppress(FileNotFoundError):
            found = set()
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                names = set().union(
                    _found(canaries, path.name.encode()), *(_found(canaries, c) for c in _contents(path))
                )
                found |= {f"{name} in {path}" for name in names}
            return found
    raise AssertionError(f"the files of {folder} changed in each of {READINGS} readings")


def _found(canaries: Mapping[str, object], content: bytes) -> set[str]:
    return {name for name, value in canaries.items() if any(form in content for form in forms(value))}
