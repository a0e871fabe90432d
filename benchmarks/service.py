"""Cost of the service as it grows, on PostgreSQL: storing a case, and pages among a million.

    python -m benchmarks.service --save

Each figure is that of the same call with few and with many rows, measured in one run.
"""

import uuid
from dataclasses import replace
from pathlib import Path

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
from benchmarks.harness import DEMO, Figures, fresh_settings, main, median_clock, postgres
from tests.support.jobs import work_off
from tests.support.service import cell_png, put_release

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
            query = select(Case).order_by(Case.need.desc(), Case.id.desc()).offset(int(self.filled * 0.9)).limit(1)
            session.execute(text("SET LOCAL statement_timeout = 0"))
            return session.execute(query).scalar_one()

    def store_outputs(self, session: Session) -> None:
        prediction = self.template.prediction
        values = {
            "network": self.template.served.predictor.release.network_sha256,
            "logits": np.asarray(prediction.logits[0], "<f4").tobytes(),
            "features": np.asarray(prediction.features[0], "<f4").tobytes(),
        }
        session.execute(text("SET LOCAL statement_timeout = 0"))
        session.execute(text(_OUTPUTS), values)

    def predict_again(self) -> None:
        """Predict all cases without a prediction by a job, from stored outputs."""
        with self.context.database.write() as session:
            self.store_outputs(session)
            service.submit_job(session, self.context, "prediction", {"release": str(self.release.id)}, None)
        work_off(self.context)


def measure(quick: bool) -> Figures:
    """Milliseconds of each call on the clock."""
    small, large, million = (50, 100, 200) if quick else (1_000, 100_000, 1_000_000)
    stores, pages = (3, 3) if quick else (200, 40)
    with postgres() as server, fresh_settings(server) as settings:
        context = build_context(settings)
        bench = Bench(context, DEMO)

        def store_one(n: int) -> float:
            bench.fill(n)
            return 1000 * median_clock(bench.store, stores)

        figures = {f"store a case, {n:,} cases (ms)": store_one(n) for n in (small, large)}
        few, many = figures.values()
        figures["ratio"] = many / few
        bench.fill(million)
        end = bench.deep()
        calls = {
            f"page of 50 of one site, {million:,} cases, first (ms)": lambda: bench.page(None),
            "the same, nine tenths down (ms)": lambda: bench.page(uuid.UUID(int=end.id.int)),
            f"worklist page of 50, {million:,} cases, first (ms)": lambda: bench.worklist(None),
            "the same, nine tenths down (ms) ": lambda: bench.worklist((end.need, end.id)),
        }
        figures |= {name: 1000 * median_clock(call, pages) for name, call in calls.items()}
        context.database.engine.dispose()
    return figures


if __name__ == "__main__":
    main(__doc__, {"service": measure})
