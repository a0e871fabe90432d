"""Pages of releases, promotion and recalibration."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.accounts.people import confirm_password
from app.accounts.permissions import GuardedRoute, Policy
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.database.tables import ReleaseRow
from app.http.errors import Conflict, Forbidden, Invalid, PreconditionFailed
from app.http.models import MetricOut, PageText
from app.http.principal import Principal
from app.metrics.cohort import Question
from app.metrics.schemas import ComparisonOut
from app.metrics.secondary_statistics import compare
from app.recalibration.change_plan import ChangePlan
from app.recalibration.report import AdaptationOut
from app.releases import service as releases_service
from app.releases.gate_verdicts import Gate, gate_against, gate_of, verdict_of
from app.releases.queries import aliases, all_releases, champion_since, existing_release, release_by_id
from app.releases.schemas import RecalibrationIn, ReleaseDetailOut, ReleaseOut
from app.releases.service import ask_predictions, ask_recalibration, move_alias, submit_judgement
from app.reports.report import WORDS
from app.web.forms import MoveForm, checked
from app.web.render import go, page
from ml.release.card import Card, CardContents, adaptation_sentence


@dataclass(frozen=True)
class ReleaseLine:
    """A release in the list.

    Attributes:
        release: as the API shows it.
        parent: that it was recalibrated from; None where that is not known here.
        method: of its recalibration; None for one that was trained.
        reasons: why the gate refused it when it was made.
        serves_since: when it became champion; None for the others.
    """

    release: ReleaseOut
    parent: ReleaseOut | None
    method: str | None
    reasons: list[str]
    serves_since: datetime | None


def releases(session: Session) -> list[ReleaseLine]:
    """Every release, newest first."""
    cards = {str(row.id): row.card for row in all_releases(session)}
    shown, since = releases_service.list_releases(session).items, champion_since(session)
    known = {release.id: release for release in shown}
    return [
        ReleaseLine(
            release,
            known.get(release.parent or ""),
            cards[release.id].get("recalibration", {}).get("method") if release.parent else None,
            [] if release.gate_passed is not False else _reasons(cards[release.id]),
            since if "champion" in release.aliases else None,
        )
        for release in shown
    ]


def _reasons(card: CardContents) -> list[str]:
    """Why the gate refused a candidate when it was made; nothing for one that it judged later."""
    gate = gate_of(card)
    return [] if gate is None else gate.reasons


@dataclass(frozen=True)
class ReleaseView:
    """A release, what the gate said about it at the time, and how it compares with the champion now.

    ``verdict`` is that against the present champion.
    """

    detail: ReleaseDetailOut
    revisions: dict[str, int]
    verdict: str
    gate: Gate | None
    compared: list[tuple[str, str, MetricOut, MetricOut]]
    beside: ComparisonOut | None
    words: dict[str, str]
    adapted: str | None = None
    parent: ReleaseOut | None = None


def _adapted(card: Card) -> str | None:
    """What other annotators changed; None where nothing is said of it that can be read, as on a card from elsewhere."""
    try:
        return adaptation_sentence(AdaptationOut.model_validate(card["calibration"]["adaptation"]).document())
    except (KeyError, TypeError, ValidationError):
        return None


def _parent(session: Session, named: str | None) -> ReleaseRow | None:
    """The release that another one names as its parent; cards of elsewhere may name what is no identifier."""
    try:
        return None if named is None else release_by_id(session, uuid.UUID(named))
    except ValueError:
        return None


def release(session: Session, context: Context, release_id: uuid.UUID) -> ReleaseView:
    """A release in full, compared with the current champion unless it is that.

    Raises:
        NotFound: no such release.
    """
    row = existing_release(session, release_id)
    detail, held_out = releases_service.detail(session, release_id), row.card.get("held_out", {})
    gate, compared = detail.gate, []
    if gate is not None and {"champion", "candidate"} <= held_out.keys():
        before, after = held_out["champion"], held_out["candidate"]
        compared = [
            (name, WORDS[name], MetricOut(**before[name]), MetricOut(**after[name])) for name in WORDS if name in before
        ]
    known = {alias.name: alias for alias in aliases(session)}
    serving = known.get("champion")
    beside: ComparisonOut | None = None
    if serving is not None and serving.release_id != release_id:
        beside = compare(session, context, release_id, Question())
    revisions = {name: known[name].revision if name in known else 0 for name in ("champion", "challenger")}
    against = gate
    if serving is not None and not detail.gate_fault:
        against = gate_against(session, row, serving.release_id)
    parent = _parent(session, detail.parent)
    return ReleaseView(
        detail,
        revisions,
        verdict_of(against),
        gate,
        compared,
        beside,
        WORDS,
        _adapted(row.card),
        None if parent is None else releases_service.describe(session, parent),
    )


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Viewer = Annotated[Principal, Depends(Policy("metrics:read"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]


@router.get("/releases")
def releases(request: Request, context: Parts, principal: _Viewer, session: Reader) -> Response:
    """Champion, challengers and candidates."""
    methods = ChangePlan.read(context.settings.change_plan).methods
    return page(request, "releases.html", principal, items=releases(session), methods=methods)


@router.get("/releases/{release_id}")
def show_release(
    release_id: uuid.UUID, request: Request, context: Parts, principal: _Viewer, session: Reader
) -> Response:
    """A release compared with the champion: what changed, and whether the gate let it through."""
    view = release(session, context, release_id)
    return page(request, "release.html", principal, view=view, form=None, faults={})


@router.post("/releases/{release_id}/move")
def move(
    release_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, form: Annotated[MoveForm, Form()]
) -> Response:
    """Promote a release, or roll back to an earlier one; what is refused stands beside its field, the rest is kept.

    Raises:
        Conflict: the gate has not let it through, and nobody chose to promote it all the same.
        Forbidden: the password is missing or wrong.
        Invalid: no reason was given.
        PreconditionFailed: somebody else moved the alias meanwhile.
    """
    try:
        with context.database.write() as session:
            _move(session, context, principal, release_id, form)
    except (Conflict, Forbidden, Invalid, PreconditionFailed) as exc:
        if "text/html" not in request.headers.get("accept", ""):
            raise
        with context.database.read() as session:
            view = release(session, context, release_id)
        field = {Forbidden: "password", Invalid: "reason"}.get(type(exc), "")
        return page(request, "release.html", principal, exc.status, view=view, form=form, faults={field: exc.detail})
    return go("/releases")


def _move(session: Session, context: Context, principal: Principal, release_id: uuid.UUID, form: MoveForm) -> None:
    """Move an alias as a form asks.

    Raises:
        Invalid: no reason was given.
    """
    reason = form.reason.strip()
    if not reason:
        raise Invalid("say why")
    confirm_password(session, principal, form.password)
    named, chosen = form.alias, form.despite_gate
    move_alias(session, context, principal.name, named, release_id, reason, form.revision, despite_gate=chosen)


@router.post("/releases/{release_id}/predict")
def predict_old_cases(release_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Ask for the predictions that old cases lack, so that the release can be compared on them."""
    ask_predictions(session, context, release_id, principal)
    return go("/jobs")


@router.post("/releases/{release_id}/judge")
def judge(release_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Ask the gate to judge a release against the champion, in a job."""
    submit_judgement(session, context, principal, release_id)
    return go("/jobs")


@router.post("/releases/recalibrate")
def recalibrate(
    context: Parts, principal: _Manager, session: Writer, method: Annotated[PageText, Form(max_length=20)] = ""
) -> Response:
    """Fit a candidate on the labels collected so far, in a job."""
    body = checked(RecalibrationIn, **({"method": method} if method else {}))
    ask_recalibration(session, context, principal, body)
    return go("/jobs")
