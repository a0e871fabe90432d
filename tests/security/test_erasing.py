"""An erased patient is found nowhere: not in rows, not in what rows left in the database's files, in no other file."""

import io
import shutil
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sqlalchemy import func, select, text
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from app.audit.chain import verify_proof
from app.audit.verify import verify_all
from app.cli.main import secondread
from app.database import idempotency
from app.database.tables import Case, Erasure, ImportRow, NetworkOutput
from app.http.errors import Conflict, NotFound
from app.imports.archive_storage import archive_path
from app.job_table import refresh_snapshots, run_maintenance
from app.maintenance.backup import write_backup
from app.maintenance.cache import refresh_cache
from app.maintenance.erasure import erase_patient_everywhere, finish_erasures
from app.maintenance.export import export_dataset
from app.metrics.dataset import stable_name_hash
from app.storage.bucket import BucketStore
from app.triage.planning import uniform_draw
from tests.support.bucket import BucketServer
from tests.support.images import encode, photo
from tests.support.jobs import work_off
from tests.support.remains import remains
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, store
from tests.support.snapshots import write_snapshots

PATIENT, EXTERNAL, ROW, FILE = "Zuckerkandl7", "Slide-Quixotic-9", "Slide-Unread-8", "zuckerkandlova-scan.png"
NOTE, REASON, DECLINED = "has a limp since Olomouc", "her aunt Ludmila said", "I treat her at Hradec"
EXIF, METADATA = "Zuckerkandlova Bozena", "born in Kunratice"


def picture(seed: int = 5) -> bytes:
    """Noise, of which no compression hides the bytes, with a name in its EXIF."""
    exif = Image.Exif()
    exif[0x010E] = EXIF
    return encode(photo(seed), "PNG", exif=exif)


def packed(rows: list[str], files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.csv", "\n".join(["file,external_id,patient,site,metadata", *rows]))
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
    """Do with a patient what a laboratory does; gives the canaries, by what they are.

    Args:
        service: of the laboratory.
        spoil: makes an import's archive one that cannot be imported.
    """
    context = service.context
    around = picture(9)
    case = service.add_case(
        EXTERNAL, picture(), field=around, patient=PATIENT, site="north", metadata=f'{{"k": "{METADATA}"}}'
    )
    read = service.lease_on("anna", case["id"])
    declined = service.post("anna", f"/v1/reads/{read}/decline", json={"reason": "other", "note": DECLINED})
    assert declined.status_code == 200, declined.text
    service.add_case("somebody-else", cell_png(3), patient="another", site="north")
    first, second = case["prediction"]["classes"][:2]
    label = service.label("outside", case["id"], first, annotator="r1", blind=True, note=NOTE).json()["label"]
    revised = {"label": second, "note": NOTE, "reason": REASON, "blind": True}
    assert service.post("outside", f"/v1/labels/{label['id']}/revisions", json=revised).status_code == 201
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
    with context.database.read() as session:
        erased = list(session.execute(select(Case).where(Case.patient == PATIENT)).scalars())
        outputs = session.execute(select(NetworkOutput).where(NetworkOutput.case_id.in_([row.id for row in erased])))
        features = [row.features for row in outputs.scalars()]
        keys = [getattr(row, "digest_key", None) for row in erased]
        assert session.execute(select(ImportRow).where(ImportRow.external_id == ROW)).scalar_one().case_id is None
    assert len(erased) == 2
    assert any(row.stored_field_sha256 for row in erased)
    texts = {"name": PATIENT, "external id": EXTERNAL, "note": NOTE, "reason": REASON, "EXIF": EXIF, "row": ROW}
    texts |= {"note of a declined read": DECLINED, "file": FILE, "metadata": METADATA}
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
def command(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings = service.context.settings
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.key_ring().to_bytes().decode())

    def run(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(secondread, list(arguments), input=stdin)

    return run


def test_what_a_server_renames_while_its_files_are_searched_is_found(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_bytes(b"nothing")
    (folder / "pg_internal.init.17").write_bytes(PATIENT.encode())
    read = Path.read_bytes

    def renaming(path: Path) -> bytes:
        if (folder / "pg_internal.init.17").exists():
            (folder / "pg_internal.init.17").rename(folder / "A_pg_internal.init")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", renaming)
    found = remains({"name": PATIENT}, [folder], service.context.database.engine, None)
    assert found == {f"name in {folder / 'A_pg_internal.init'}"}


@undone("T23", "remembered answers about a case go with its patient", idempotency, "_get_only_case_id", lambda _: None)
@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_nothing_of_an_erased_patient_is_found_anywhere(
    service: Service,
    command: Any,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    context = service.context
    engine = context.database.engine
    server = request.getfixturevalue("postgres") if engine.dialect.name == "postgresql" else None
    with capture_logs() as logs:
        canaries = live_with(service)
    before = {line.partition(" in ")[0] for line in remains(canaries, [tmp_path], engine, server)}
    assert before == canaries.keys(), "a canary that cannot be found proves nothing"
    answer = command("patient", "erase", PATIENT, "--reason", "asked on Monday", stdin="y\n")
    assert answer.exit_code == 0, answer.output
    assert remains(canaries, [tmp_path], engine, server) == set()
    write_backup(context, tmp_path / "later")
    with context.database.read_moment() as session:
        export_dataset(session, context, tmp_path / "export", "all", kind="parquet", proof=True)
        assert verify_all(session, context).faults == []
    assert remains(canaries, [tmp_path], engine, server) == set()
    assert verify_proof.main([str(tmp_path / "export" / "proof.jsonl"), context.keys.audit.public_key]) == 0
    logged = repr(logs)
    assert "/v1/cases" in logged
    assert [name for name, value in canaries.items() if isinstance(value, str) and value in logged] == []


def test_nothing_is_found_in_a_bucket_nor_in_the_home_of_another_process(
    two: tuple[Service, Service], bucket: str, buckets: BucketServer, tmp_path: Path
) -> None:
    def spoil(service: Service, import_id: str) -> None:
        store = BucketStore(bucket)
        (found,) = store.under(f"imports/{import_id}")
        buckets.overwrite(bucket, found.key, store.get(found.key).replace(b"external_id", b"exterxxl_id"))

    def found_in(folder: str) -> set[str]:
        buckets.save(bucket, tmp_path / folder)
        return remains(canaries, [tmp_path], one.context.database.engine, None)

    one, other = two
    canaries = live_with(one, spoil)
    refresh_cache(other.context)
    with other.context.database.read() as session:
        cases = session.execute(select(Case).where(Case.patient == PATIENT)).scalars().all()
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
    with other.context.database.read() as session:
        assert verify_all(session, other.context).faults == []


def test_an_import_under_way_and_a_reason_that_names_the_patient_are_refused(service: Service, command: Any) -> None:
    store(service, EXTERNAL, picture(), {}, patient=PATIENT)
    waiting = send(service, packed([f"{FILE},{EXTERNAL}-2,{PATIENT},,"], {FILE: picture(6)}))
    for reason, said in (("asked", waiting), (f"{PATIENT.lower()} asked", "names the patient")):
        answer = command("patient", "erase", PATIENT, "--reason", reason, "--yes")
        assert isinstance(answer.exception, Conflict)
        assert said in answer.exception.detail
        work_off(service.context)
    assert command("patient", "erase", PATIENT, "--reason", "asked", stdin="n\n").exit_code == 1
    with service.context.database.read() as session:
        assert session.execute(select(func.count()).where(Case.patient == PATIENT)).scalar_one() == 2
        assert session.execute(select(func.count()).select_from(Erasure)).scalar_one() == 0


def test_a_patient_of_whom_only_failed_rows_are_known_is_erased(service: Service) -> None:
    send(service, packed([f"missing-{FILE},{ROW},{PATIENT},,"], {FILE: picture(6)}))
    work_off(service.context)
    report = erase_patient_everywhere(service.context, "lead", PATIENT, "asked")
    assert (report.cases, report.import_rows, report.unfinished) == (0, 2, None)  # the file that no row is about too
    assert (
        remains(
            {"name": PATIENT, "row": ROW, "file": FILE},
            [service.context.settings.home.parent],
            service.context.database.engine,
            None,
        )
        == set()
    )
    with pytest.raises(NotFound):
        erase_patient_everywhere(service.context, "lead", PATIENT, "asked")


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
    with context.database.read() as session:
        assert session.execute(select(Erasure.finished_at)).scalar_one() is not None


def test_an_image_that_another_case_has_too_stays_and_its_case_is_named(service: Service) -> None:
    store(service, EXTERNAL, picture(), {}, patient=PATIENT)
    store(service, "elsewhere", picture(), {}, patient="another")
    with service.context.database.read() as session:
        other = session.execute(select(Case.id).where(Case.external_id == "elsewhere")).scalar_one()
    report = erase_patient_everywhere(service.context, "lead", PATIENT, "asked")
    assert (report.images, report.shared) == (0, [str(other)])
    assert service.get("viewer", f"/v1/cases/{other}/image").status_code == 200


def test_a_case_without_a_patient_is_erased_by_its_external_id(service: Service, command: Any) -> None:
    store(service, EXTERNAL, picture(), {})
    store(service, f"{EXTERNAL}-2", picture(6), {}, patient=PATIENT)
    for external_id in (f"{EXTERNAL}-2", "unknown"):
        answer = command("patient", "erase", external_id, "--case", "--reason", "asked", "--yes")
        assert isinstance(answer.exception, NotFound)  # whoever has a patient is erased as a whole
    assert command("patient", "erase", EXTERNAL, "--case", "--reason", "asked", "--yes").exit_code == 0
    with service.context.database.read() as session:
        left = session.execute(select(Case.external_id).where(Case.erased_at.is_(None))).scalars().all()
    assert left == [f"{EXTERNAL}-2"]


def test_a_snapshot_that_was_under_way_is_written_again(service: Service, tmp_path: Path) -> None:
    context = service.context
    store(service, EXTERNAL, picture(), {}, patient=PATIENT)
    write_snapshots(context)
    snapshots, engine = context.settings.home / "snapshots", context.database.engine
    shutil.copytree(snapshots, tmp_path / "aside")
    assert erase_patient_everywhere(context, "lead", PATIENT, "asked").snapshots == 1
    shutil.copytree(tmp_path / "aside", snapshots, dirs_exist_ok=True)  # its writer had read the rows before
    number = {"number": stable_name_hash(f"patient:{PATIENT}")}
    assert len(remains(number, [snapshots], engine, None)) == 1
    refresh_snapshots(context)
    assert remains(number, [snapshots], engine, None) == set()
    assert list(snapshots.glob("*/[0-9]*"))
