"""Evaluations from a snapshot and what came after it are those of all rows; every other test checks it too."""

import json
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert, select

from app.context import ServiceContext
from app.database.tables import Account, Annotator, Case, CasePrediction, Label, PolicyRow, ReadRequest, new_id, utc_now
from app.metrics import snapshot
from app.metrics.snapshot import load_current_dataset, refresh_snapshot, write_snapshot
from app.releases.queries import all_releases, class_codes
from ml.util.files import write_json
from tests.app.test_evaluations import same
from tests.support.service import Service, cell_png, collect
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots
from tests.support.waiting import patient

pytestmark = pytest.mark.both_databases

FEW, MANY = 1_000, 20_000


@pytest.fixture(autouse=True)
def _only_the_snapshots_of_the_test(service: Service) -> None:
    service.before_change = lambda: None


def release_of(context: ServiceContext) -> tuple[uuid.UUID, list[str]]:
    with context.database.read() as session:
        row = all_releases(session)[0]
        return row.id, class_codes(row)


def folders(context: ServiceContext) -> list[str]:
    found = (context.settings.home / "snapshots").glob("*/*")
    return sorted(path.name for path in found)


def metrics(service: Service) -> Any:
    return service.document("/v1/metrics", partition="all", group_by="site")


def fill(context: ServiceContext, n: int) -> None:
    """Cases with predictions and one or two labels each, whose requests were answered."""
    rng = np.random.default_rng(0)
    release_id, classes = release_of(context)
    with context.database.write() as session:
        account = session.execute(select(Account.id)).scalars().first()
        policy = session.execute(select(PolicyRow.version)).scalar_one()
        readers = [{**new_row(), "name": f"reader {k}", "account_id": account if k else None} for k in range(2)]
        session.execute(insert(Annotator), readers)
        probs, concentrations = rng.dirichlet(np.full(len(classes), 0.5), n), rng.normal(2, 0.5, n)
        cases = [case_row(i, account) for i in range(n)]
        predictions = [
            new_row(case_id=case["id"], release_id=release_id, class_probs=f.tolist(), log_concentration=a)
            | {"disagreement_prob": 0.5}
            for case, f, a in zip(cases, probs, concentrations.tolist(), strict=True)
        ]
        labels = [
            label_row(cases[i]["id"], readers[k]["id"], str(rng.choice(classes, p=probs[i])), account)
            for i in range(n)
            for k in range(1 + int(i % 10 < 3))
        ]
        requests = [request_row(label, int(label["annotator_id"] == readers[1]["id"]), policy) for label in labels]
        for table, rows in ((Case, cases), (CasePrediction, predictions), (Label, labels), (ReadRequest, requests)):
            session.execute(insert(table), rows)


def new_row(**values: Any) -> dict[str, Any]:
    return {"id": new_id(), "created_at": utc_now(), **values}


def case_row(number: int, account: Any) -> dict[str, Any]:
    sizes = {"width": 1, "height": 1, "u": 0.5, "need": 0.0, "waiting": False, "case_metadata": {}}
    digests = dict.fromkeys(("image_sha256", "stored_sha256"), f"{number:064x}")
    return new_row(
        external_id=f"bulk {number}",
        patient=f"p{number // 4}",
        site=f"site {number % 3}",
        partition="evaluation",
        pi=1.0 if number % 10 == 0 else 0.3,
        created_by=account,
        **sizes,
        **digests,
    )


def label_row(case_id: uuid.UUID, annotator_id: uuid.UUID, code: str, account: Any) -> dict[str, Any]:
    kind = {"kind": "label", "position": 0, "blind": True, "post_reveal": False, "round": "planned"}
    return new_row(case_id=case_id, annotator_id=annotator_id, class_code=code, created_by=account, **kind)


def request_row(label: dict[str, Any], second: int, policy: int) -> dict[str, Any]:
    when = {"due_at": utc_now(), "due_on": "2026-01-01", "shuffle": 0, "state": "answered", "label_id": label["id"]}
    why = {"round": "planned", "arm": "audit" if second else "first", "u": 0.5, "pi": 1.0, "policy_version": policy}
    return new_row(case_id=label["case_id"], ordinal=second + 1, **why, **when)


@pytest.mark.slow
@pytest.mark.slow_on_second_database
@pytest.mark.parametrize("n", [FEW, pytest.param(MANY, marks=pytest.mark.heavy)])
def test_many_cases_by_snapshot_and_tail_equal_the_full_recomputation(service: Service, n: int) -> None:
    context = service.context
    fill(context, n)
    service.written_past = True
    home = context.settings.home
    full = metrics(service)
    assert full["n_cases"] == n
    release_id, classes = release_of(context)
    assert write_snapshot(context.database, context.folders, release_id, classes) == n
    same(metrics(service), full)
    collect(service, [cell_png(i) for i in range(12)], patients=True)
    some = [str(found_id) for found_id in service.scalars(select(Case.id).limit(40))]
    for case_id in some:
        service.outside_label(case_id, "late reader", classes[0])
    by_snapshot = metrics(service)
    assert by_snapshot["n_labels"] > full["n_labels"] + 40
    shutil.move(home / "snapshots", home / "away")
    same(by_snapshot, metrics(service))
    shutil.move(home / "away", home / "snapshots")


def test_a_snapshot_grows_old_and_is_replaced(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    context = service.context
    release_id, classes = release_of(context)
    write_snapshots(context)
    first = folders(context)
    assert not refresh_snapshot(context, release_id, classes)
    collect(service, [cell_png(i) for i in range(4)], patients=False)
    assert not refresh_snapshot(context, release_id, classes)  # few changes are read from the database
    monkeypatch.setattr("app.metrics.snapshot._MAX_CHANGED_CASES", 3)
    assert refresh_snapshot(context, release_id, classes)
    second = folders(context)
    assert len(first) == len(second) == 1
    assert int(second[0]) > int(first[0])
    assert_snapshots_tell_all(context)


def test_several_writers_at_once_leave_one_whole_snapshot(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add_cases(3)
    context = service.context
    release_id, classes = release_of(context)
    together = threading.Barrier(6)

    def last_file(path: Path, document: dict[str, Any]) -> None:
        write_json(path, document)
        together.wait(patient(20))  # nobody is faster than the others

    monkeypatch.setattr(snapshot, "write_json", last_file)
    of_release = context.database, context.folders, release_id, classes
    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write_snapshot, *of_release) for _ in range(6)]
    assert [writer.result() for writer in writers] == [3] * 6
    assert len(folders(context)) == 1
    with context.database.read() as session:
        assert len(load_current_dataset(session, context.settings.home, release_id, classes)) == 3


def test_an_unfinished_or_foreign_snapshot_is_not_used(service: Service) -> None:
    context = service.context
    classes = release_of(context)[1]
    collect(service, [cell_png(i) for i in range(3)], patients=False)
    write_snapshots(context)
    folder = next((context.settings.home / "snapshots").glob("*/*"))
    about = json.loads((folder / "snapshot.json").read_text())
    (folder / "snapshot.json").write_text(json.dumps(about | {"most": [about["most"][0], "f" * 64]}))
    service.outside_label(service.add_case("after", cell_png(9))["id"], "r0", classes[0])
    assert_snapshots_tell_all(context)  # the chain never went through this event
    (folder / "snapshot.json").write_text(json.dumps(about | {"version": 0}))
    assert_snapshots_tell_all(context)
    (folder / "snapshot.json").write_text(json.dumps(about))
    (folder / "pi.npy").unlink()
    assert_snapshots_tell_all(context)
    write_snapshots(context)
    assert_snapshots_tell_all(context)


def keep_database(context: ServiceContext, copy: Path) -> None:
    with context.database.engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    shutil.copy(context.settings.sqlalchemy_url.removeprefix("sqlite:///"), copy)


def bring_back(context: ServiceContext, copy: Path) -> None:
    path = Path(context.settings.sqlalchemy_url.removeprefix("sqlite:///"))
    context.database.engine.dispose()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, path)


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_what_a_snapshot_shows_beyond_its_watermark_comes_back_with_no_older_database(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = service.context
    release_id, classes = release_of(context)
    case = service.add_case("before", cell_png(1))
    read_all = snapshot._load_all_blocks

    def read_after_a_label(*arguments: Any) -> Any:
        keep_database(context, tmp_path / "older.db")  # after the watermark was read
        service.outside_label(case["id"], "reader", classes[0])
        return read_all(*arguments)

    monkeypatch.setattr(snapshot, "_load_all_blocks", read_after_a_label)
    write_snapshot(context.database, context.folders, release_id, classes)
    assert_snapshots_tell_all(context)
    bring_back(context, tmp_path / "older.db")
    assert_snapshots_tell_all(context)
