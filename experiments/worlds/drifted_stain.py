"""A laboratory whose stain drifts half way: what the service said before, what after, and what recalibrating mends."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from PIL import Image
from pydantic import SecretStr
from sqlalchemy import select

from app.accounts import people as auth
from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext, build_context
from app.database.migration import upgrade_schema
from app.database.tables import Account, utc_now
from app.demo import filling
from app.http.principal import Principal
from app.jobs import service
from app.jobs.queries import job_by_id
from app.labels.schemas import LabelIn
from app.labels.submission import submit_label
from app.metrics.cohort import CohortQuery
from app.metrics.schemas import MetricsOut
from app.metrics.service import compute_metrics
from app.settings import Settings
from ml.datasets.cells import simulate_cell
from ml.images.preprocess import encode_png
from tests.support.jobs import work_off
from tests.support.service import put_release

# with half of the second number in the evaluation partition, the gain in L_φ (.008) is five standard errors
BEFORE, AFTER = 600, 2800


def darker(pixels: Any) -> Any:
    """A stain that was left on too long: three fifths more optical density, most of it in the red."""
    density = -np.log10((pixels.astype(np.float64) + 1) / 256)
    return np.asarray(np.clip(256 * 10 ** -(density * [1.8, 1.5, 1.4]) - 1, 0, 255).round(), dtype=np.uint8)


def store(context: ServiceContext, principal: Principal, first: int, count: int, rng: Any, *, drifted: bool) -> None:
    """Cells, each read by two of six outside annotators."""
    for number in range(first, first + count):
        cell = simulate_cell(number, seed=44, size=96)
        image = Image.fromarray(darker(cell.pixels) if drifted else cell.pixels)
        fields = CaseIn(external_id=f"c{number}", patient=f"p{number // 4}", metadata={})
        new = prepare_case(context, fields, encode_png(image))
        codes = new.served.predictor.release.classes
        with context.database.write() as session:
            _, case = store_case(session, context, principal, new)
            for person in rng.choice(6, size=2, replace=False):
                code = codes[int(rng.choice(len(codes), p=cell.true_probs / cell.true_probs.sum()))]
                body = LabelIn(label=code, annotator=f"reader {person}", blind=True)
                submit_label(session, context, principal, UUID(case.id), body)


@dataclass(frozen=True)
class Drift:
    """What became of a laboratory.

    Attributes:
        release: that was served.
        then: metrics before the stain drifted.
        drifted: metrics of what came after.
        report: of the recalibration on what came after.
    """

    release: str
    then: MetricsOut
    drifted: MetricsOut
    report: dict[str, Any]

    def rows(self) -> dict[str, dict[str, float]]:
        """Headline metrics before, after, and after recalibrating."""
        before, after = self.report["champion"], self.report["candidate"]
        return {
            name: {
                "before": float(self.then.metrics[name].value or 0),
                "drifted": before[name]["value"],
                "recalibrated": after[name]["value"],
            }
            for name in ("L", "CE", "L_D", "CE_D")
        }


def live(folder: Path) -> Drift:
    """Train the demo's release, store cells of both stains with their labels, and recalibrate."""
    key = SecretStr("the same coins and partitions in every run")
    settings = Settings(home=folder / "home", min_free_bytes=0, secret_key=key)
    settings.home.mkdir()
    context = build_context(settings)
    upgrade_schema(context.database.engine)
    filling.make_release(folder / "run", folder / "release", print)
    with context.database.write() as session:
        release = put_release(session, context.keys.audit, folder / "release", settings.releases_folder)
        auth.add_account(session, context.keys.audit, "robot", "service")
        account = session.execute(select(Account)).scalar_one()
    principal = Principal(account.id, "robot", "service", frozenset({"cases:write", "labels:write"}))
    rng = np.random.default_rng(0)
    store(context, principal, 0, BEFORE, rng, drifted=False)
    change = utc_now()
    store(context, principal, BEFORE, AFTER, rng, drifted=True)
    with context.database.read() as session:
        then = compute_metrics(session, context, None, CohortQuery(until=change), None)
        drifted = compute_metrics(session, context, None, CohortQuery(since=change), None)
    with context.database.write() as session:
        job_id = service.submit_job(session, context, "recalibration", {"since": change.isoformat()}, None).id
    work_off(context)
    with context.database.read() as session:
        job = job_by_id(session, job_id)
        assert job.state == "succeeded", job.error
        report = job.result
    assert report is not None
    return Drift(str(release.id), then, drifted, report)
