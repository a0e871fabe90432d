"""What the service costs as it grows, on PostgreSQL: storing a case, pages of a million, predicting anew, metrics.

Each figure is a ratio of the same call with few and with many rows, measured in one run, or the time of one whole job.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.audit.installation import claim_database
from app.cases import queries
from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext, build_context
from app.database.migration import upgrade_schema
from app.database.tables import Case
from app.http.principal import Principal
from app.jobs import service
from app.metrics.cohort import CohortQuery
from app.metrics.service import compute_metrics
from app.settings import Settings
from tests.support.jobs import work_off
from tests.support.postgres import PostgresServer, find_binaries
from tests.support.service import cell_png, put_release

SMALL, LARGE, MILLION = 1_000, 100_000, 1_000_000
_CASES = """
INSERT INTO cases (id, created_at, external_id, patient, site, case_metadata, image_sha256, stored_sha256,
                   pixels_sha256, width, height, partition, created_by, u, pi, need, waiting, digest_key)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, now(), 'filler ' || i, 'p' || i / 10,
       'site ' || i % 7, '{}', lpad(to_hex(i), 64, '0'), lpad(to_hex(i), 64, '0'),
       lpad(to_hex(i), 64, '0'), 96, 96,
       CASE WHEN i / 10 % 2 = 0 THEN 'evaluation' ELSE 'calibration' END, :account, 0.5, 1, random(), true,
       sha256(convert_to('key ' || i, 'UTF8'))
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) i"""
_OUTPUTS = """
INSERT INTO network_outputs (id, created_at, case_id, network_sha256, logits, features, digest_key)
SELECT gen_random_uuid(), now(), c.id, :network, :logits, :features, c.digest_key FROM cases c
WHERE c.external_id LIKE 'filler %'
ON CONFLICT DO NOTHING"""


def median_ms(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


class Bench:
    """A service on a fresh PostgreSQL with a release, filled by SQL."""

    def __init__(self, context: ServiceContext, release: Path) -> None:
        self.context, self.filled = context, 0
        upgrade_schema(context.database.engine)
        claim_database(context.database, context.keys.audit)  # before the first rows, which have events
        with context.database.write() as session:
            self.release = put_release(session, context.keys.audit, release, context.settings.releases_folder)
            account = auth.add_account(session, context.keys.audit, "bench", "service")
        self.principal = Principal(account.id, "bench", "service", frozenset({"cases:write"}))
        self.template = prepare_case(context, CaseIn(external_id="template", patient="q", metadata={}), cell_png())

    def fill(self, total: int) -> None:
        with self.context.database.write() as session:
            session.execute(text("SET LOCAL statement_timeout = 0"))
            values = {"first": self.filled, "last": total - 1, "account": self.principal.account_id}
            session.execute(text(_CASES), values)
        self.filled = total
        with self.context.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("ANALYZE"))

    def store(self) -> None:
        fields = CaseIn(external_id=uuid.uuid4().hex, patient=uuid.uuid4().hex, metadata={})
        with self.context.database.write() as session:
            store_case(session, self.context, self.principal, replace(self.template, fields=fields))

    def page(self, after: uuid.UUID | None) -> None:
        with self.context.database.read() as session:
            queries.page_of_cases(session, queries.CaseFilter(site="site 3"), after=after, limit=50)

    def worklist(self, after: tuple[float, uuid.UUID] | None) -> None:
        with self.context.database.read() as session:
            queries.page_by_need(session, after=after, limit=50)

    def deep(self) -> Case:
        with self.context.database.read() as session:
            found = select(Case).order_by(Case.need.desc(), Case.id.desc()).offset(int(self.filled * 0.9)).limit(1)
            session.execute(text("SET LOCAL statement_timeout = 0"))
            return session.execute(found).scalar_one()

    def store_outputs(self, session: Session) -> None:
        prediction = self.template.prediction
        values = {
            "network": self.template.served.predictor.release.network_sha256,
            "logits": np.asarray(prediction.logits[0], "<f4").tobytes(),
            "features": np.asarray(prediction.features[0], "<f4").tobytes(),
        }
        session.execute(text("SET LOCAL statement_timeout = 0"))
        session.execute(text(_OUTPUTS), values)

    def predict_again(self) -> float:
        with self.context.database.write() as session:
            self.store_outputs(session)
            service.submit_job(session, self.context, "prediction", {"release": str(self.release.id)}, None)
        started = time.perf_counter()
        work_off(self.context)
        return time.perf_counter() - started

    def metrics(self) -> float:
        with self.context.database.read() as session:
            session.execute(text("SET LOCAL statement_timeout = 0"))
            started = time.perf_counter()
            compute_metrics(
                session, self.context, self.release.id, CohortQuery(partition="all", weighting="none"), None
            )
            return time.perf_counter() - started


def measure(context: ServiceContext, release: Path) -> dict[str, float]:
    bench, found = Bench(context, release), {}
    bench.fill(SMALL)
    found["store a case, 1,000 cases (ms)"] = small = median_ms(bench.store, 200)
    bench.fill(LARGE)
    found["store a case, 100,000 cases (ms)"] = large = median_ms(bench.store, 200)
    found["ratio"] = large / small
    found["new predictions for 100,000 cases from stored outputs (s)"] = bench.predict_again()
    found["metrics over 100,000 predictions without labels, recomputed (s)"] = bench.metrics()
    bench.fill(MILLION)
    end = bench.deep()
    found["page of 50 of one site, 1,000,000 cases, first (ms)"] = median_ms(lambda: bench.page(None), 40)
    found["the same, nine tenths down (ms)"] = median_ms(lambda: bench.page(uuid.UUID(int=end.id.int)), 40)
    found["worklist page of 50, 1,000,000 cases, first (ms)"] = median_ms(lambda: bench.worklist(None), 40)
    found["the same, nine tenths down (ms) "] = median_ms(lambda: bench.worklist((end.need, end.id)), 40)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", type=Path, help="a release folder, for example .secondread/demo/release")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is missing (Debian package postgresql)")
    server = PostgresServer(binaries)
    try:
        with tempfile.TemporaryDirectory() as home:
            url = server.url(server.create())
            context = build_context(Settings(home=Path(home), database_url=url, min_free_bytes=0))
            found = measure(context, arguments.release)
            context.database.engine.dispose()
    finally:
        server.stop()
    for name, value in found.items():
        print(f"{value:12.2f}  {name}")
    if arguments.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_service.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
