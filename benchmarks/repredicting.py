"""A new calibration's predictions of old cases from stored outputs: the job, and what the rows alone cost.

    python -m benchmarks.repredicting --save

The job reads stored outputs, predicts, writes a row for each case with its digest in the audit, and sets the places of
the worklist; its processor time, PostgreSQL's and that of predicting alone are separate figures. In the same run the
same rows are written bare, with their keys and indexes and nothing else: by ``COPY`` into PostgreSQL and by
``executemany`` into SQLite. The snapshot for evaluations, which the job ends with, is counted apart.
"""

import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psycopg
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from app.audit.chain.covered_rows import row_digest
from app.context import build_context
from app.database.tables import CasePrediction, new_id, utc_now
from app.jobs import service
from app.metrics import snapshot as metrics_snapshot
from app.predictions.stored import prediction_values
from app.recalibration import predict_old_cases
from benchmarks.harness import DEMO, Figures, fresh_settings, main, postgres, postmaster, processor_seconds, spend
from benchmarks.service import Bench
from ml.release.artifact import read_release
from ml.release.predictor import prediction_of
from tests.support.jobs import work_off

# cases whose outputs are at hand at once if predicting alone is timed, as in the job
CHUNK = predict_old_cases.CHUNK
_WARM, _SAMPLES = 1_000, 997
_PATIENCE = 3_600.0
_OUTPUTS = """
INSERT INTO network_outputs (id, created_at, case_id, network_sha256, logits, features, digest_key)
SELECT gen_random_uuid(), now(), c.id, %(network)s, s.logits, s.features, c.digest_key FROM cases c
JOIN samples s ON s.number = substr(c.external_id, 8)::int %% %(size)s
WHERE c.external_id LIKE 'filler %%' ON CONFLICT DO NOTHING"""
# cases stored now have a digest of their pixels; those that ``Bench`` fills in are of an earlier version
_DIGESTS = "UPDATE cases SET pixels_sha256 = image_sha256 WHERE pixels_sha256 IS NULL"
_BARE = "CREATE TABLE bare (LIKE predictions INCLUDING ALL)"
_KEYS = "ALTER TABLE bare ADD FOREIGN KEY (case_id) REFERENCES cases, ADD FOREIGN KEY (release_id) REFERENCES releases"


def job(bench: Bench, database: int) -> dict[str, float]:
    """Predict what has no prediction yet; by the clock and by processor time of the worker and of PostgreSQL."""
    context, snapshot = bench.context, [0.0]
    with context.database.write() as session:
        service.submit_job(session, context, "prediction", {"release": str(bench.release.id)}, None)

    def refresh(*given: Any) -> None:
        snapshot[0] += spend(lambda: metrics_snapshot.refresh_snapshot(*given)).clock

    own, theirs = time.process_time(), processor_seconds(database)
    with patch.object(predict_old_cases, "refresh_snapshot", refresh):
        clock = spend(lambda: work_off(context, within=_PATIENCE)).clock
    return {
        "the job without the snapshot (s)": clock - snapshot[0],
        "its snapshot (s)": snapshot[0],
        "the worker, with the snapshot (CPU s)": time.process_time() - own,
        "PostgreSQL, with the snapshot (CPU s)": processor_seconds(database) - theirs,
    }


def samples(bench: Bench, n: int) -> tuple[Any, Any]:
    """Logits (n, K) and features (n, D) around those of an image."""
    rng, given = np.random.default_rng(0), bench.template.prediction
    return tuple(
        (np.asarray(one[:1]) + rng.normal(0, 1, (n, one.shape[1]))).astype("<f4")
        for one in (given.logits, given.features)
    )


def store_outputs(bench: Bench, connection: psycopg.Connection[Any]) -> None:
    """What the network made of every case that has nothing of it yet, and digests of their pixels."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE samples (number int, logits bytea, features bytea) ON COMMIT DROP")
        with cursor.copy("COPY samples FROM STDIN (FORMAT binary)") as target:
            target.set_types(["int4", "bytea", "bytea"])
            for number, (logits, features) in enumerate(zip(*samples(bench, _SAMPLES), strict=True)):
                target.write_row((number, logits.tobytes(), features.tobytes()))
        network = bench.template.served.predictor.release.network_sha256
        cursor.execute(_OUTPUTS, {"network": network, "size": _SAMPLES})
        cursor.execute(_DIGESTS)
    connection.commit()
    connection.autocommit = True
    connection.execute("ANALYZE")
    connection.autocommit = False


def without_database(bench: Bench, n: int) -> dict[str, float]:
    """Processor time of predicting so many cases from outputs in memory, and of the rows and their digests."""
    release, key = read_release(bench.context.folders.path(f"releases/{bench.release.id}")), bench.context.keys.audit
    size = min(CHUNK, n)
    logits, features = samples(bench, size)
    table: Any = CasePrediction.__table__
    ids, unused = [new_id() for _ in range(size)], [None] * size
    spent = np.zeros(3)
    for _ in range(n // size):
        begun = time.process_time()
        prediction = prediction_of(release, logits, features)
        predicted = time.process_time()
        rows = prediction_values(ids, bench.release.id, prediction, unused, utc_now())
        made = time.process_time()
        for row in rows:
            row_digest(key.rows, table, row)
        spent += np.diff([begun, predicted, made, time.process_time()])
    names = ("predicting alone (CPU s)", "making the rows alone (CPU s)", "digests of the rows alone (CPU s)")
    return dict(zip(names, (spent * n / (n // size * size)).tolist(), strict=True))


def bare_postgres(connection: psycopg.Connection[Any], folder: Path) -> float:
    """Write the same rows into a table with the same keys and indexes, by one ``COPY``."""
    rows = folder / "rows.copy"
    with connection.cursor() as cursor:
        with cursor.copy("COPY predictions TO STDOUT") as source, rows.open("wb") as file:
            for block in source:
                file.write(block)
        cursor.execute(_BARE)
        cursor.execute(_KEYS)

        def write() -> None:
            with cursor.copy("COPY bare FROM STDIN") as target, rows.open("rb") as file:
                while block := file.read(2**20):
                    target.write(block)
            connection.commit()

        return spend(write).clock


def bare_sqlite(connection: psycopg.Connection[Any], folder: Path) -> float:
    """Write the same rows into SQLite's table with its keys and indexes, in one transaction."""
    table: Any = CasePrediction.__table__
    names = [column.name for column in table.columns]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(_as_sqlite(name) for name in names)} FROM predictions")
        rows = cursor.fetchall()
    database = sqlite3.connect(folder / "bare.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
    for index in table.indexes:
        database.execute(str(CreateIndex(index).compile(dialect=sqlite.dialect())))

    def write() -> None:
        database.execute("BEGIN")
        database.executemany(f"INSERT INTO predictions VALUES ({', '.join('?' * len(names))})", rows)
        database.execute("COMMIT")

    spent = spend(write).clock
    database.close()
    return spent


def _as_sqlite(name: str) -> str:
    """A column as SQLite keeps it: identifiers and documents as text."""
    kinds = {"id": "replace({}::text, '-', '')", "created_at": "{}::text", "out_of_distribution": "{}::int"}
    kinds |= {
        "case_id": kinds["id"],
        "release_id": kinds["id"],
        "class_probs": "{}::text",
        "unlike_reasons": "{}::text",
    }
    return kinds.get(name, "{}").format(name)


def measure(quick: bool) -> Figures:
    """Every figure for so many cases."""
    n = 1_000 if quick else 200_000
    with postgres() as server, fresh_settings(server) as settings, tempfile.TemporaryDirectory() as folder:
        context, figures = build_context(settings), {"cases": float(n)}
        bench, database = Bench(context, DEMO), postmaster(server)
        with psycopg.connect(settings.sqlalchemy_url.replace("+psycopg", "")) as connection:
            for total in (_WARM, _WARM + n):  # the first job pays for what is loaded
                bench.fill(total)
                store_outputs(bench, connection)
                figures |= job(bench, database)
            figures |= without_database(bench, n)
            figures["the same rows bare, PostgreSQL (s)"] = bare_postgres(connection, Path(folder))
            figures["the same rows bare, SQLite (s)"] = bare_sqlite(connection, Path(folder))
        context.database.engine.dispose()
    # every part of it grows with the number of cases: chunks of one size, in transactions of their own
    for name in ("the job without the snapshot", "the same rows bare, PostgreSQL", "the same rows bare, SQLite"):
        figures[f"{name}, 10⁶ at this rate (s)"] = figures[f"{name} (s)"] * 10**6 / n
    spent = sum(figures[f"{who}, with the snapshot (CPU s)"] for who in ("the worker", "PostgreSQL"))
    return figures | {"worker and PostgreSQL, 10⁶ at this rate (CPU s)": spent * 10**6 / n}


if __name__ == "__main__":
    main(__doc__, {"repredicting": measure})
