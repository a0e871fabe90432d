"""Cost of metrics and report over many labelled cases on PostgreSQL.

    python -m benchmarks.reports --save

`GET /v1/metrics` is answered from the snapshot and from all rows, and the two answers must be equal to 1e-9. The report
is made by a job of the worker; the processor time of the job and of the pages is that of this process.
"""

import json
import math
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import psycopg
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.accounts import people as auth
from app.audit.installation import claim_database
from app.context import ServiceContext
from app.database.migration import upgrade_schema
from app.database.tables import Annotator, PolicyRow, PublishedReportRow, new_digest_key
from app.main import create_app
from app.metrics.load import load_dataset
from app.metrics.snapshot import write_snapshot
from app.releases.queries import class_codes
from app.reports.publishing import renew_report
from benchmarks.harness import DEMO, Figures, fresh_settings, interleaved, main, median_clock, postgres, spend
from ml.distributions.families import DirichletCpe
from ml.util.arrays import FloatArray, IntArray
from tests.support.service import put_release

CELLS_A_PATIENT, READ_TWICE, AUDITED = 4, 0.2, 0.1
PAGES = ("/report", "/policy", "/report/numbers/triage.csv")
MADE = "2026-06-01 12:00:00+00"


@dataclass(frozen=True)
class Labelled:
    """A service with labelled cases, and how it is asked."""

    context: ServiceContext
    release_id: uuid.UUID
    classes: list[str]
    client: TestClient
    labelling_key: str


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
        ids = session.scalars(select(Annotator.id).where(Annotator.account_id.in_(accounts)))
        readers = [str(annotator_id) for annotator_id in ids]
    read = [(i, k, other_id()) for i in range(n) for k in range(cells.reads[i])]
    with psycopg.connect(context.settings.sqlalchemy_url.replace("+psycopg", "")) as connection:
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


def largest_gap(first: Any, second: Any) -> float:
    """Largest difference of two JSON documents; infinite if their shapes differ."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return max((largest_gap(first[key], second[key]) for key in first), default=0.0)
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return max((largest_gap(*pair) for pair in zip(first, second, strict=True)), default=0.0)
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second)
    return 0.0 if first == second else math.inf


@contextmanager
def labelled_cases(n: int) -> Iterator[Labelled]:
    """A service with so many labelled cases, a client of its lead, and a key that may label."""
    with postgres() as server, fresh_settings(server) as settings:
        app = create_app(settings)
        context: ServiceContext = app.state.context
        upgrade_schema(context.database.engine)
        claim_database(context.database, context.keys.audit)
        with context.database.write() as session:
            row = put_release(session, context.keys.audit, DEMO, settings.releases_folder)
            release_id, classes = row.id, class_codes(row)
            auth.add_account(session, context.keys.audit, "lead", "admin")
            auth.add_account(session, context.keys.audit, "lis", "service")
            lead = auth.add_key(session, context.keys.audit, "lead", [])[1]
            lis = auth.add_key(session, context.keys.audit, "lis", ["labels:write"])[1]
        fill(context, release_id, classes, n)
        with TestClient(app, headers={"Authorization": f"Bearer {lead}"}) as client:
            yield Labelled(context, release_id, classes, client, lis)
        context.database.engine.dispose()


def metrics(quick: bool) -> Figures:
    """Seconds on the clock of metrics and snapshots.

    Raises:
        RuntimeError: the answers from the snapshot and from all rows differ.
    """
    n = 2_000 if quick else 1_000_000
    with labelled_cases(n) as made:
        context, figures = made.context, {"cases": float(n), "classes": float(len(made.classes))}

        def get(partition: str) -> Any:
            return made.client.get("/v1/metrics", params={"partition": partition}).raise_for_status().json()

        def measure_both(when: str) -> None:
            for partition in ("evaluation", "all"):
                median = median_clock(partial(get, partition), 2 if quick else 7)
                figures[f"GET /v1/metrics, {partition}, {when} (s)"] = median

        def write() -> None:
            write_snapshot(context.database, context.folders, made.release_id, made.classes)

        figures["read all rows (s)"] = spend(lambda: _all_rows(made)).clock
        figures["write the first snapshot (s)"] = spend(write).clock
        measure_both("from the snapshot")
        labels = 10 if quick else 500
        for number in range(labels):
            _label(made, number * (n // labels))
        measure_both("after 500 more labels")
        by_snapshot, home, answers = get("all"), context.settings.home, []
        (home / "snapshots").rename(home / "away")
        figures["the same, all, from all rows (s)"] = spend(lambda: answers.append(get("all"))).clock
        (home / "away").rename(home / "snapshots")
        gap = figures["largest difference of the two answers"] = largest_gap(by_snapshot, answers[0])
        figures["write the next snapshot (s)"] = spend(write).clock
    if gap > 1e-9:
        raise RuntimeError(f"the answers differ by {gap}")
    return figures


def _label(made: Labelled, number: int) -> None:
    headers = {"Authorization": f"Bearer {made.labelling_key}", "Idempotency-Key": other_id()}
    body = {"label": made.classes[0], "annotator": "late reader", "blind": True}
    made.client.post(f"/v1/cases/{case_id(number)}/labels", json=body, headers=headers).raise_for_status()


def _all_rows(made: Labelled) -> None:
    with made.context.database.read() as session:
        load_dataset(session, made.release_id, made.classes)


def report(quick: bool) -> Figures:
    """Processor seconds of the job that makes the report, and of its pages."""
    figures: Figures = {}
    for n in (40, 200) if quick else (200, 100_000):
        with labelled_cases(n) as made:
            context = made.context
            write_snapshot(context.database, context.folders, made.release_id, made.classes)

            def get(path: str, client: TestClient = made.client) -> None:
                client.get(path).raise_for_status()

            get("/help")
            spent = {"the page before there is a report": spend(lambda get=get: get("/report")).processor}
            with context.database.read() as session:
                key = session.execute(select(PublishedReportRow.key)).scalar_one()
            job = partial(renew_report, context, key, context.database.write)
            spent["the worker's job"] = spend(job).processor
            pages = {f"GET {path}": partial(get, path) for path in PAGES}
            spent |= interleaved(pages, 1 if quick else 7)
        figures |= {f"{name}, {n:,} cases (CPU s)": round(value, 3) for name, value in spent.items()}
    return figures


if __name__ == "__main__":
    main(__doc__, {"snapshot": metrics, "report": report})
