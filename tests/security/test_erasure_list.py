"""A backup that was made before an erasure brings nobody back."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from app.audit.chain.keys import DerivedKey
from app.audit.verify import verify_all
from app.cli import serving
from app.context import build_context
from app.database.tables import Case, Erasure
from app.maintenance import backup
from app.maintenance.backup import restore_backup
from app.maintenance.erasure import erase_patient_everywhere, repeat_listed_erasures
from app.maintenance.erasure_registry import ErasureListError, append_missing_erasures
from app.settings import Settings
from tests.support.command import run_here
from tests.support.remains import remains
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, store, stored_image

PATIENT, EXTERNAL = "Zuckerkandl7", "Slide-Quixotic-9"


@pytest.fixture
def backed_up(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A backup with a patient who was erased afterwards; the environment names a new HOME."""
    settings, context = service.context.settings, service.context
    store(service, EXTERNAL, cell_png(1), {"r1": 0}, patient=PATIENT)
    store(service, "another", cell_png(2), {}, patient="another")
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.key_ring().to_bytes().decode())
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("SECONDREAD_AUDIT_ANCHOR", str(tmp_path / "heads"))
    done = run_here("db", "backup", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    assert "erasures.jsonl" in done.stdout + done.stderr
    shutil.copy(settings.erasure_list, tmp_path / "older")
    report = erase_patient_everywhere(context, "lead", PATIENT, "asked")
    assert (report.cases, report.unfinished) == (1, None)
    assert any(name.startswith("backup ") for name in report.backups)
    assert run_here("db", "backup", tmp_path / "later").returncode == 0
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "new"))
    monkeypatch.delenv("SECONDREAD_DATABASE_URL")
    return tmp_path


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
    assert remains({"name": PATIENT, "external id": EXTERNAL}, [new], context.database.engine, None) == set()
    with context.database.read() as session:
        assert verify_all(session, context).faults == []
        erased = session.execute(select(Case).where(Case.erased_at.is_not(None))).scalars().one()
        assert not stored_image(context, erased.stored_sha256).exists()
    context.database.engine.dispose()


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
        context = build_context(settings)
        assert remains({"name": PATIENT}, [settings.home], context.database.engine, None) == set()
        context.database.engine.dispose()

    monkeypatch.setattr("app.cli.server.run_server", serve)
    monkeypatch.setenv("SECONDREAD_WORKER", "false")
    serving.serve(None, None, None)
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
    with context.database.read() as session:
        assert session.execute(select(Case.id).where(Case.external_id == EXTERNAL)).first() is None
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
