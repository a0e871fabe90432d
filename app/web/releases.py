"""Pages of releases, promotion, recalibration and of the classes."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Form, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, confirm_password
from app.context import ServiceContext
from app.database.tables import ReleaseRow
from app.http.models import ClassOut, MetricOut, PageText
from app.jobs.service import OPEN, JobOut, job_out, newest_jobs
from app.metrics.service import CohortQuery, ComparisonOut, compare_with_champion
from app.recalibration.service import AdaptationOut, ChangePlan, is_refusal
from app.releases import service as releases_service
from app.releases.service import ClassSetting
from app.reports.service import METRIC_MEANINGS
from app.web.forms import (
    ClassesForm,
    ClassRow,
    MoveForm,
    back_to,
    require_reason,
    validate_form,
)
from app.web.jobs import RefusedRecalibration, describe_refusal
from app.web.page import ManagerForm, ManagerPage, Page, ViewerPage
from app.web.render import redirect_to
from ml.calibration.calibration import Calibration
from ml.release.artifact import has_constant_concentration
from ml.release.card import Card, CardContents, adaptation_sentence
from ml.util.files import read_json

#: Jobs of a kind among which one that has ended is looked for.
_NEWEST = 10


@dataclass(frozen=True)
class ReleaseLine:
    """A release in the list."""

    # as the API shows it
    release: releases_service.ReleaseOut
    # that it was recalibrated from; None where that is not known here
    parent: releases_service.ReleaseOut | None
    # of its recalibration; None for one that was trained
    method: str | None
    # why the gate refused it when it was made
    reasons: list[str]
    # when it became champion; None for the others
    serves_since: datetime | None


def load_release_lines(session: Session) -> list[ReleaseLine]:
    """Every release, newest first."""
    cards = {str(row.id): row.card for row in releases_service.all_releases(session)}
    releases_out, since = releases_service.list_releases(session).items, releases_service.champion_since(session)
    releases_by_id = {release.id: release for release in releases_out}
    return [
        ReleaseLine(
            release,
            releases_by_id.get(release.parent or ""),
            cards[release.id].get("recalibration", {}).get("method") if release.parent else None,
            [] if release.gate_passed is not False else _list_gate_reasons(cards[release.id]),
            since if "champion" in release.aliases else None,
        )
        for release in releases_out
    ]


def _list_gate_reasons(card: CardContents) -> list[str]:
    """Reasons why the gate refused a candidate when it was made; none for one judged later."""
    gate = releases_service.read_card_gate(card)
    return [] if gate is None else gate.reasons


@dataclass(frozen=True)
class ReleaseView:
    """A release, the gate's verdict at the time, and its comparison with the champion now."""

    # ``verdict`` is that against the present champion.

    detail: releases_service.ReleaseDetailOut
    revisions: dict[str, int]
    verdict: str
    gate: releases_service.Gate | None
    compared: list[tuple[str, str, MetricOut, MetricOut]]
    beside: ComparisonOut | None
    words: dict[str, str]
    adapted: str | None = None
    parent: releases_service.ReleaseOut | None = None
    constant_concentration: bool = False


def _has_constant_concentration(context: ServiceContext, row: ReleaseRow) -> bool:
    """By the calibration itself: cards of earlier versions do not state it."""
    path = context.folders.path(f"releases/{row.id}") / "calibration.json"
    try:
        return has_constant_concentration(row.card, Calibration.from_dict(read_json(path)))
    except (OSError, ValueError):
        return False


def _describe_adaptation(card: Card) -> str | None:
    try:
        return adaptation_sentence(AdaptationOut.model_validate(card["calibration"]["adaptation"]).document())
    except (KeyError, TypeError, ValidationError):
        return None


def _find_parent_release(session: Session, named: str | None) -> ReleaseRow | None:
    try:
        return None if named is None else releases_service.release_by_id(session, uuid.UUID(named))
    except ValueError:
        return None


def load_release_view(session: Session, context: ServiceContext, release_id: uuid.UUID) -> ReleaseView:
    """A release in full, compared with the current champion unless it is that."""
    row = releases_service.existing_release(session, release_id)
    detail, held_out = releases_service.read_release_detail(session, release_id), row.card.get("held_out", {})
    gate, compared = detail.gate, []
    if gate is not None and not detail.metrics_stated_by_maker and {"champion", "candidate"} <= held_out.keys():
        before, after = held_out["champion"], held_out["candidate"]
        compared = [
            (name, METRIC_MEANINGS[name], MetricOut(**before[name]), MetricOut(**after[name]))
            for name in METRIC_MEANINGS
            if name in before
        ]
    aliases_by_name = {alias.name: alias for alias in releases_service.read_aliases(session)}
    serving = aliases_by_name.get("champion")
    beside: ComparisonOut | None = None
    if serving is not None and serving.release_id != release_id:
        beside = compare_with_champion(session, context, release_id, CohortQuery())
    revisions = {
        name: aliases_by_name[name].revision if name in aliases_by_name else 0 for name in ("champion", "challenger")
    }
    against = gate
    if serving is not None and not detail.gate_fault:
        against = releases_service.find_gate_against_champion(session, row, serving.release_id)
    parent = _find_parent_release(session, detail.parent)
    return ReleaseView(
        detail,
        revisions,
        releases_service.gate_verdict(against),
        gate,
        compared,
        beside,
        METRIC_MEANINGS,
        _describe_adaptation(row.card),
        None if parent is None else releases_service.describe_release(session, parent),
        _has_constant_concentration(context, row),
    )


@dataclass(frozen=True)
class RecalibrationView:
    """The recalibration on the page of releases: what is under way, what the last one came to, and the way back."""

    # recalibrations and promotion checks that have not ended
    running: list[JobOut]
    # the newest recalibration that has ended
    last: JobOut | None
    # why that one was refused
    refused: RefusedRecalibration | None
    # what it made, with its last promotion check and the verdict against the present champion
    candidate: releases_service.ReleaseOut | None
    gate: releases_service.Gate | None
    verdict: str
    # that the champion replaced
    previous: releases_service.ReleaseOut | None
    # of the champion
    revision: int
    plan: ChangePlan


def load_recalibration_view(session: Session, context: ServiceContext) -> RecalibrationView:
    """The newest recalibration with its candidate, and the release to go back to."""
    jobs = [*newest_jobs(session, _NEWEST, "recalibration"), *newest_jobs(session, _NEWEST, "judgement")]
    last = next((job for job in jobs if job.kind == "recalibration" and job.state not in OPEN), None)
    result = last.result if last is not None else None
    row = None if result is None else _find_parent_release(session, str(result["release"]))
    champion = releases_service.get_champion_alias(session)
    back = None if champion is None else releases_service.previous_champion(session, champion.release_id)
    has_gate = row is not None and releases_service.find_gate_fault(row.card) is None
    against = None
    if row is not None and has_gate and champion is not None:
        against = releases_service.find_gate_against_champion(session, row, champion.release_id)
    return RecalibrationView(
        [job_out(job) for job in jobs if job.state in OPEN],
        None if last is None else job_out(last),
        describe_refusal(session, last) if last is not None and is_refusal(last.error) else None,
        None if row is None else releases_service.describe_release(session, row),
        releases_service.find_last_gate(session, row) if row is not None and has_gate else None,
        releases_service.gate_verdict(against),
        None if back is None else releases_service.describe_release(session, back),
        0 if champion is None else champion.revision,
        ChangePlan.read(context.settings.change_plan),
    )


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.get("/releases")
def show_releases(page: ViewerPage) -> Response:
    """Champion, challengers and candidates; a recalibration from its button to its verdict."""
    view = load_recalibration_view(page.session, page.context)
    return page.render("releases.html", items=load_release_lines(page.session), view=view)


@router.get("/releases/{release_id}")
def show_release(release_id: uuid.UUID, page: ViewerPage) -> Response:
    """A release compared with the champion: what changed, and whether the gate let it through."""
    return page.render("release.html", view=load_release_view(page.session, page.context, release_id))


def _show_page_of_move(page: Page, release_id: uuid.UUID) -> Response:
    return show_releases(page) if page.refused.typed.get("listed") else show_release(release_id, page)


@router.post("/releases/{release_id}/move")
@back_to(_show_page_of_move)
def move_release_alias(release_id: uuid.UUID, page: ManagerForm, form: Annotated[MoveForm, Form()]) -> Response:
    """Promote a release, or roll back to an earlier one."""
    reason = require_reason(form.reason)
    confirm_password(page.session, page.principal, form.password)
    releases_service.move_alias(
        page.session,
        page.context,
        page.principal.name,
        form.alias,
        release_id,
        reason,
        form.revision,
        despite_gate=form.despite_gate,
    )
    return redirect_to("/releases")


@router.post("/releases/{release_id}/predict")
def predict_old_cases(release_id: uuid.UUID, page: ManagerForm) -> Response:
    """Ask for the predictions that old cases lack, so that the release can be compared on them."""
    releases_service.request_predictions(page.session, page.context, release_id, page.principal)
    return redirect_to("/jobs")


@router.post("/releases/{release_id}/judge")
def judge_release(release_id: uuid.UUID, page: ManagerForm) -> Response:
    """Ask the gate to judge a release against the champion, in a job."""
    releases_service.submit_judgement(page.session, page.context, page.principal, release_id)
    return redirect_to("/releases")


@router.post("/releases/recalibrate")
@back_to(show_releases)
def recalibrate_release(page: ManagerForm, method: Annotated[PageText, Form(max_length=20)] = "") -> Response:
    """Fit a candidate on the labels collected so far, in a job."""
    body = validate_form(releases_service.RecalibrationIn, **({"method": method} if method else {}))
    releases_service.request_recalibration(page.session, page.context, page.principal, body)
    return redirect_to("/releases")


@router.get("/classes")
def show_classes(page: ManagerPage) -> Response:
    """Names, order, groups and keys of the classes, with every version."""
    typed = page.refused.at("/classes").typed
    stored = [ClassRow.of(place, info) for place, info in enumerate(releases_service.reading_classes(page.session), 1)]
    version, _ = releases_service.class_settings(page.session)
    versions = releases_service.list_class_settings(page.session)
    return page.render("classes.html", rows=ClassRow.typed(typed) or stored, version=version, versions=versions)


def _set_classes(page: Page, settings: Sequence[ClassSetting], seen: int, released: Sequence[ClassOut]) -> None:
    keys = page.context.keys.audit
    releases_service.change_class_settings(page.session, keys, page.principal, settings, seen, released)


def _released_classes(session: Session) -> list[ClassOut]:
    return releases_service.cached_release_classes(session, releases_service.served_release_id(session))


@router.post("/classes")
@back_to(show_classes)
def change_classes(page: ManagerForm, form: Annotated[ClassesForm, Form()]) -> Response:
    """Set the classes by a new version."""
    released = _released_classes(page.session)
    _set_classes(page, form.settings(released), form.version, released)
    return redirect_to("/classes")


@router.post("/classes/restore")
@back_to(show_classes)
def restore_classes(
    page: ManagerForm, version: Annotated[int, Form(ge=0, le=2**31 - 1)], seen: Annotated[int, Form(ge=0, le=2**31 - 1)]
) -> Response:
    """Set the classes as an earlier version did, or as the release has them."""
    settings = releases_service.restored_settings(page.session, version)
    _set_classes(page, settings, seen, _released_classes(page.session))
    return redirect_to("/classes")
