"""What a lead's pages show, gathered from the domains."""

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations import frozen
from app.evaluations.cohort import Partition, Question, Weighting
from app.evaluations.comparison import compare
from app.evaluations.report import WORDS, chart_csv, charts_of
from app.evaluations.schemas import EvaluationOut
from app.evaluations.service import agreement, metrics
from app.platform import audit_chain
from app.releases import service as releases_service
from app.releases.queries import aliases, all_releases, champion
from app.releases.schemas import ReleaseDetailOut, ReleaseOut
from app.tables import now


@dataclass(frozen=True)
class Asked:
    """What a report is asked about."""

    partition: Partition = "evaluation"
    weighting: Weighting = "ipw"
    group_by: Literal["site", "month"] | None = None
    site: str | None = None


@dataclass(frozen=True)
class Report:
    """A report: the document, charts by name, agreement, and what was frozen before."""

    document: dict[str, Any]
    headline: list[tuple[str, str, dict[str, Any]]]
    charts: dict[str, str]
    agreement: dict[str, Any]
    frozen: list[EvaluationOut]


_KEPT = 8
_kept: OrderedDict[tuple[Any, ...], Report] = OrderedDict()
_keeping = threading.Lock()


def report(session: Session, context: Context, asked: Asked) -> Report:
    """A report of now; kept while nothing has changed, since its page asks for several charts."""
    question = Question(asked.partition, asked.weighting, site=asked.site)
    # planned reads close by the clock too: nothing is kept beyond its minute
    key = (str(context.settings.home), audit_chain.head_of(session), now().strftime("%H:%M"), asked)
    with _keeping:
        if key in _kept:
            return _kept[key]
    document = metrics(session, context.settings.home, None, question, asked.group_by).model_dump()
    made = Report(
        document=document,
        headline=[(name, meaning, document["metrics"][name]) for name, meaning in WORDS.items()],
        charts=charts_of(document),
        agreement=agreement(session, question, None),
        frozen=frozen.list_evaluations(session).items,
    )
    with _keeping:
        _kept[key] = made
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return made


def chart(session: Session, context: Context, asked: Asked, name: str) -> str | None:
    """One chart of a report as SVG, None where there is none."""
    return report(session, context, asked).charts.get(name)


def chart_numbers(session: Session, context: Context, asked: Asked, name: str) -> str | None:
    """The numbers of one chart as CSV, None where there is no such chart."""
    found = report(session, context, asked)
    return chart_csv(found.document, name) if name in found.charts else None


@dataclass(frozen=True)
class Releases:
    """Every release, and the revision of the champion's alias."""

    items: list[ReleaseOut]
    revision: int


def releases(session: Session) -> Releases:
    """Every release, newest first."""
    alias = champion(session)
    items = [releases_service.describe(session, row) for row in all_releases(session)]
    return Releases(items, 0 if alias is None else alias.revision)


@dataclass(frozen=True)
class Release:
    """A release, its card, and what recalibration said about it beside the champion of then."""

    detail: ReleaseDetailOut
    revisions: dict[str, int]
    recalibration: dict[str, Any] | None
    compared: list[tuple[str, str, dict[str, Any], dict[str, Any]]]
    beside: dict[str, Any] | None
    words: dict[str, str]


def release(session: Session, context: Context, release_id: uuid.UUID) -> Release:
    """A release in full, and beside the champion of now unless it is that.

    Raises:
        NotFound: no such release.
    """
    detail = releases_service.detail(session, release_id)
    judged, held_out = detail.card.get("recalibration"), detail.card.get("held_out", {})
    compared = []
    if judged:
        before, after = held_out["champion"], held_out["candidate"]
        compared = [(name, WORDS[name], before[name], after[name]) for name in WORDS if name in before]
    known = {alias.name: alias for alias in aliases(session)}
    serving = known.get("champion")
    beside = None
    if serving is not None and serving.release_id != release_id:
        beside = compare(session, context.settings.home, release_id, Question()).model_dump()
    revisions = {name: known[name].revision if name in known else 0 for name in ("champion", "challenger")}
    return Release(detail, revisions, judged, compared, beside, WORDS)
