"""What `GET /v1/metrics` costs over many labelled cases on PostgreSQL, from the snapshot and from all rows.

One figure is checked: the two answers are equal to 1e-9.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.accounts import people as auth
from app.audit.installation import claim_database
from app.context import ServiceContext
from app.database.migration import upgrade_schema
from app.database.tables import PolicyRow, new_digest_key
from app.main import create_app
from app.metrics.load import load_dataset
from app.metrics.snapshot import write_snapshot
from app.releases.queries import class_codes
from app.settings import Settings
from ml.distributions.families import DirichletCpe
from ml.util.arrays import FloatArray, IntArray
from tests.support.postgres import PostgresServer, find_binaries
from tests.support.service import put_release

CELLS_A_PATIENT, READ_TWICE, AUDITED = 4, 0.2, 0.1
MADE = "2026-06-01 12:00:00+00"


def copy(connection: psycopg.Connection[Any], table: str, rows: Iterable[dict[str, Any]]) -> None:
    rows = iter(rows)
    first = next(rows)
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(first)}) FROM STDIN") as target:
        for row in chain([first], rows):
            target.write_row(list(row.values()))
    connection.commit()


def case_id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


def other_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Simulated:
    """Cells whose annotators are drawn from the distribution that is predicted; some are read twice."""

    probs: FloatArray
    concentration: FloatArray
    dpe: FloatArray
    pi: FloatArray
    labels: IntArray
    reads: IntArray
    stain: FloatArray

    @classmethod
    def of(cls, n: int, k: int) -> "Simulated":
        rng = np.random.default_rng(0)
        probs, concentration = rng.dirichlet(np.full(k, 0.3), n), rng.normal(2, 0.5, n)
        true = rng.standard_gamma(probs * np.exp(concentration)[:, None] + 1e-9)
        levels = np.cumsum(true / true.sum(axis=1, keepdims=True), axis=1)
        labels = np.stack([(rng.random(n)[:, None] > levels).sum(axis=1).clip(0, k - 1) for _ in range(2)], axis=1)
        dpe = DirichletCpe(probs, concentration).disagreement_probs
        pi = np.where(dpe > np.quantile(dpe, 1 - READ_TWICE), 1.0, AUDITED)
        return cls(probs, concentration, dpe, pi, labels, 1 + (rng.random(n) < pi), rng.normal(0.3, 0.05, (n, 3)))


def fill(context: ServiceContext, release_id: uuid.UUID, classes: list[str], n: int) -> None:
    """Cases of n / 4 patients at seven sites, each read once or twice by two of four annotators."""
    cells = Simulated.of(n, len(classes))
    with context.database.write() as session:
        account = auth.add_account(session, context.keys.audit, "filler", "service").id
        policy = session.execute(select(PolicyRow.version)).scalar_one()
        accounts = [auth.add_account(session, context.keys.audit, f"reader {i}", "annotator").id for i in range(4)]
    readers = [other_id() for _ in range(4)]
    read = [(i, k, other_id()) for i in range(n) for k in range(cells.reads[i])]
    with psycopg.connect(context.settings.sqlalchemy_url.replace("+psycopg", "")) as connection:
        people = (
            {"id": reader, "created_at": MADE, "name": f"reader {reader}", "account_id": account_id}
            for reader, account_id in zip(readers, accounts, strict=True)
        )
        copy(connection, "annotators", people)
        copy(connection, "cases", (case_row(cells, i, account) for i in range(n)))
        copy(connection, "predictions", (prediction_row(cells, i, release_id) for i in range(n)))
        labels = (
            label_row(request, i, readers[k and 1 + i % 3], classes[cells.labels[i, k]], account)
            for i, k, request in read
        )
        copy(connection, "labels", labels)
        copy(
            connection,
            "read_requests",
            (request_row(request, i, k, float(cells.pi[i]), policy) for i, k, request in read),
        )
    with context.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("ANALYZE"))


def case_row(cells: Simulated, i: int, account: uuid.UUID) -> dict[str, Any]:
    patient = i // CELLS_A_PATIENT
    partition = "evaluation" if patient % 2 else "calibration"
    fixed = {"case_metadata": "{}", "width": 96, "height": 96, "u": 0.5, "need": 0.0, "waiting": False}
    names = {"id": case_id(i), "created_at": MADE, "external_id": f"filler {i}", "created_by": account}
    place = {"patient": f"p{patient}", "site": f"site {i % 7}", "partition": partition, "pi": float(cells.pi[i])}
    image = dict.fromkeys(("image_sha256", "stored_sha256", "pixels_sha256"), f"{i:064x}")
    image["stain"] = json.dumps(cells.stain[i].tolist())
    return names | place | image | fixed | {"digest_key": new_digest_key()}


def prediction_row(cells: Simulated, i: int, release_id: uuid.UUID) -> dict[str, Any]:
    return {
        "id": other_id(),
        "created_at": MADE,
        "case_id": case_id(i),
        "release_id": release_id,
        "class_probs": json.dumps(cells.probs[i].tolist()),
        "log_concentration": float(cells.concentration[i]),
        "disagreement_prob": float(cells.dpe[i]),
        "out_of_distribution": i % 200 == 0,
    }


def label_row(label_id: str, i: int, reader: str, code: str, account: uuid.UUID) -> dict[str, Any]:
    kind = {"kind": "label", "purpose": "read", "position": 0, "blind": True, "post_reveal": False, "round": "planned"}
    what = {"case_id": case_id(i), "annotator_id": reader, "class_code": code, "created_by": account}
    return {"id": label_id, "created_at": MADE} | what | kind


def request_row(label_id: str, i: int, second: int, pi: float, policy: int) -> dict[str, Any]:
    why = {"round": "planned", "arm": "audit" if second else "first", "u": 0.5, "pi": pi if second else 1.0}
    when = {"due_at": MADE, "due_on": MADE[:10], "shuffle": 0, "state": "answered", "label_id": label_id}
    what = {"id": other_id(), "created_at": MADE, "case_id": case_id(i), "ordinal": second + 1}
    return what | why | when | {"policy_version": policy}


def seconds(call: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def largest_gap(first: Any, second: Any) -> float:
    """Largest difference of two JSON documents; infinite where their shapes differ."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return max((largest_gap(first[key], second[key]) for key in first), default=0.0)
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return max((largest_gap(*pair) for pair in zip(first, second, strict=True)), default=0.0)
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second)
    return 0.0 if first == second else math.inf


def measure(settings: Settings, release: Path, n: int) -> dict[str, float]:
    app = create_app(settings)
    context: ServiceContext = app.state.context
    upgrade_schema(context.database.engine)
    claim_database(context.database, context.keys.audit)
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, release, settings.releases_folder)
        release_id, classes = row.id, class_codes(row)
        auth.add_account(session, context.keys.audit, "lead", "admin")
        auth.add_account(session, context.keys.audit, "lis", "service")
        keys = {name: auth.add_key(session, context.keys.audit, name, scopes)[1]
                for name, scopes in (("lead", []), ("lis", ["labels:write"]))}  # fmt: skip
    found: dict[str, float] = {"cases": float(n), "classes": float(len(classes))}
    found["fill the tables (s)"] = seconds(lambda: fill(context, release_id, classes, n))[0]
    with TestClient(app) as client:

        def get(partition: str) -> Any:
            headers = {"Authorization": f"Bearer {keys['lead']}"}
            answer = client.get("/v1/metrics", params={"partition": partition}, headers=headers)
            answer.raise_for_status()
            return answer.json()

        def label(number: int) -> None:
            headers = {"Authorization": f"Bearer {keys['lis']}", "Idempotency-Key": other_id()}
            body = {"label": classes[0], "annotator": "late reader", "blind": True}
            client.post(f"/v1/cases/{case_id(number)}/labels", json=body, headers=headers).raise_for_status()

        found["read all rows (s)"] = seconds(lambda: _all_rows(context, release_id, classes))[0]
        found["write the first snapshot (s)"] = seconds(
            lambda: write_snapshot(context.database, context.folders, release_id, classes)
        )[0]

        def medians(when: str) -> None:
            for partition in ("evaluation", "all"):
                median = statistics.median(seconds(partial(get, partition))[0] for _ in range(7))
                found[f"GET /v1/metrics, {partition}, {when} (s)"] = median

        medians("from the snapshot")
        for number in range(500):
            label(number * (n // 500))
        medians("after 500 more labels")
        by_snapshot = get("all")
        (settings.home / "snapshots").rename(settings.home / "away")
        spent, full = seconds(lambda: get("all"))
        found["the same, all, from all rows (s)"] = spent
        found["largest difference of the two answers"] = largest_gap(by_snapshot, full)
        (settings.home / "away").rename(settings.home / "snapshots")
        found["write the next snapshot (s)"] = seconds(
            lambda: write_snapshot(context.database, context.folders, release_id, classes)
        )[0]
    context.database.engine.dispose()
    return found


def _all_rows(context: ServiceContext, release_id: uuid.UUID, classes: list[str]) -> None:
    with context.database.read() as session:
        load_dataset(session, release_id, classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", type=Path, help="a release folder, for example .secondread/demo/release")
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is missing (Debian package postgresql)")
    server = PostgresServer(binaries)
    try:
        with tempfile.TemporaryDirectory() as home:
            url = server.url(server.create())
            settings = Settings(home=Path(home), database_url=url, min_free_bytes=0, allowed_hosts=["testserver"])
            found = measure(settings, arguments.release, arguments.cases)
    finally:
        server.stop()
    for name, value in found.items():
        print(f"{value:14.6g}  {name}")
    if found["largest difference of the two answers"] > 1e-9:
        sys.exit("the answers differ")
    if arguments.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_snapshot.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
