"""Pages for reading: first steps, queue, form and finished reads."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, RequireScope, annotator_of_account
from app.annotators.models.service import model_in_use
from app.annotators.reference_cells.service import stands_for
from app.audit.chain.keys import AnnotatorKeys
from app.cases import service as cases
from app.context import AppContext
from app.database.engine import ReadSession, WriteSession
from app.http.errors import InvalidValue
from app.http.languages import gettext, localize_decimal, ngettext
from app.http.models import ClassOut, PageText, PosteriorOut
from app.http.principal import Principal
from app.labels import service as label_service
from app.releases.service import reading_classes, release_by_id
from app.triage.service import ReadEligibility, current_policy, eligibility_of, eligibility_of_account
from app.web.charts import PosteriorChart, posterior_bars
from app.web.first_steps import first_steps
from app.web.forms import (
    IdempotentForm,
    answer_of_handle,
    correction_handle,
    read_handle,
    read_of_handle,
    validate_form,
)
from app.web.reference_cells import ShownClass, classes_at_stake
from app.web.render import redirect_to, render_page

#: Cases shown on one page.
WORKLIST_LENGTH = 120


@dataclass(frozen=True)
class BlindItem:
    """A case as an annotator sees it in the list: nothing but its handle and its number."""

    case_id: uuid.UUID
    number: str
    read: bool


def case_number(case_id: uuid.UUID) -> str:
    """Short number of a case that says nothing about its content, unlike a file name."""
    return case_id.hex[-6:].upper()


@dataclass(frozen=True)
class BlindWorklist:
    """Cases that an annotator leases and has read, how many are waiting, and whether reads go to them."""

    items: list[BlindItem]
    n_read: int
    progress: label_service.DayProgress
    standing: ReadEligibility


def blind_worklist(session: Session, keys: AnnotatorKeys, principal: Principal, zone: tzinfo) -> BlindWorklist:
    """Cases that this annotator leases, then those they have read, newest first; of the others only how many wait."""
    leased = [uuid.UUID(read.case_id) for read in label_service.list_leases(session, principal)]
    read = label_service.labelled_cases(session, principal, label_service.LISTED)
    listed = [(case_id, False) for case_id in leased] + [(case_id, True) for case_id in read]
    handles = [(cases.case_handle(keys, principal, case_id), done) for case_id, done in listed]
    items = [BlindItem(handle, case_number(handle), done) for handle, done in handles]
    standing, day = (
        eligibility_of_account(session, principal.account_id),
        label_service.get_day_progress(session, principal, zone),
    )
    if not standing.may_read:
        day = replace(day, n_waiting=0)
    return BlindWorklist(items, label_service.count_labelled_cases(session, principal), day, standing)


def upcoming_case(session: Session, keys: AnnotatorKeys, principal: Principal) -> uuid.UUID | None:
    """Handle of the case that this annotator would be given next, without giving it."""
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None or not eligibility_of(session, annotator).may_read:
        return None
    named = label_service.peek_next_case(session, keys.order, annotator.id)
    return None if named is None else cases.case_handle(keys, principal, named)


@dataclass(frozen=True)
class LeadsWorklist:
    """A page of the cases that wait for a read, their total number, and the available filters."""

    # ``same_image``: by case the others with the same pixels, id and external id.

    page: cases.WorklistOut
    n_waiting: int
    sites: list[str]
    same_image: dict[str, list[tuple[uuid.UUID, str]]]


def load_leads_worklist(session: Session, chosen: cases.CaseFilter, cursor: str | None) -> LeadsWorklist:
    """Cases that wait for a read, most urgent first."""
    worklist_page = cases.get_worklist_page(session, cursor, WORKLIST_LENGTH, chosen)
    alike = cases.same_images(session, [uuid.UUID(item.case.id) for item in worklist_page.items])
    same_image = {str(case_id): others for case_id, others in alike.items()}
    return LeadsWorklist(
        worklist_page, cases.count_waiting_cases(session, chosen), cases.list_sites(session), same_image
    )


@dataclass(frozen=True)
class CaseView:
    """A case in full."""

    case: cases.CaseOut
    number: str
    names: dict[str, str]
    posterior: PosteriorOut | None
    bars: PosteriorChart | None
    labels: list[label_service.LabelOut]
    history: list[label_service.LabelOut]
    requests: list[cases.RequestOut]
    exposures: list[tuple[str, datetime]]
    enough: str
    own: label_service.LabelOut | None
    classes: list[ClassOut]
    form_key: str
    progress: label_service.DayProgress
    remarks: list[str]
    by_name: bool
    at_stake: list[ShownClass]
    stands_for: str | None
    release_name: str = ""


def case_view(
    session: Session,
    keys: AnnotatorKeys,
    principal: Principal,
    case_id: uuid.UUID,
    zone: tzinfo,
    *,
    by_name: bool = True,
) -> CaseView:
    """Everything about a case; only for those who may see it."""
    case_out, classes = cases.show_case(session, case_id), reading_classes(session)
    handle = cases.case_handle(keys, principal, case_id)
    class_names = {info.code: info.name for info in classes}
    after = bars = None
    if case_out.prediction is not None:
        after = label_service.show_case_posterior(session, case_id, by_name=by_name)
        class_names = {code: class_names.get(code, code) for code in case_out.prediction.classes}
        bars = posterior_bars(class_names, case_out.prediction, after, after.label_counts)
    labels = [label_service.label_out(active) for active in cases.labels_of_case(session, case_id)]
    requests = cases.requests_of(session, [case_id]).get(case_id, [])
    mine = [label for label in labels if label.annotator == principal.name] if principal.blind else []
    return CaseView(
        case=case_out.model_copy(update={"id": str(handle)}),
        number=case_number(handle),
        names=class_names,
        posterior=after,
        bars=bars,
        labels=labels,
        history=[label_service.label_out(active) for active in cases.label_history(session, case_id)],
        requests=[cases.request_out(*row) for row in requests],
        exposures=[] if principal.blind else cases.exposures_of(session, case_id),
        enough=_describe_label_need(session, after),
        own=mine[-1] if mine else None,
        classes=classes,
        form_key=uuid.uuid4().hex,
        progress=label_service.get_day_progress(session, principal, zone)
        if principal.blind
        else label_service.DayProgress(0, 0),
        remarks=_list_annotator_remarks(session, after, labels, class_names) if "manage" in principal.scopes else [],
        by_name=by_name,
        at_stake=_load_classes_at_stake(session, mine, labels, after),
        stands_for=None if principal.blind else stands_for(session, case_id),
        release_name=""
        if case_out.prediction is None
        else _release_name(session, uuid.UUID(case_out.prediction.release)),
    )


def _load_classes_at_stake(
    session: Session,
    mine: list[label_service.LabelOut],
    labels: list[label_service.LabelOut],
    after: PosteriorOut | None,
) -> list[ShownClass]:
    """The two classes that a case is between, with their reference cells."""
    own = mine[-1].label if mine else None
    others = [label.label for label in labels if label not in mine and label.label is not None]
    return classes_at_stake(session, own, others, {} if after is None else dict(after.class_probs))


def _release_name(session: Session, release_id: uuid.UUID) -> str:
    row = release_by_id(session, release_id)
    return "" if row is None else row.name


def _list_annotator_remarks(
    session: Session, after: PosteriorOut | None, labels: list[label_service.LabelOut], names: dict[str, str]
) -> list[str]:
    """Sentences on the annotators of a case by the model in use, for admins only."""
    in_use = None if after is None or after.reader_model is None else model_in_use(session, uuid.UUID(after.release))
    return (
        []
        if in_use is None
        else label_service.remarks_on(in_use[1], [label.annotator for label in labels], list(names.values()))
    )


def _describe_label_need(session: Session, after: PosteriorOut | None) -> str:
    """Sentence on how many more labels a case needs."""
    if after is None or after.further_labels_expected is None or after.majority_prob is None:
        return ""
    policy = current_policy(session)
    error = localize_decimal(f"{policy.target_error:g}")
    if after.further_labels_expected == 0:
        return gettext(
            "Enough annotators have read this case for class probabilities right to %(error)s "
            "(expected squared error).",
            error=error,
        )
    if policy.adjudicate_below is not None and after.majority_prob >= policy.adjudicate_below:
        return gettext("Not every probability is sure yet, but the leading class is.")
    return ngettext(
        "About %(n)s more label would be needed for class probabilities right to %(error)s (expected squared error).",
        "About %(n)s more labels would be needed for class probabilities right to %(error)s (expected squared error).",
        after.further_labels_expected,
        error=error,
    )


@dataclass(frozen=True)
class BlindCase:
    """A case to be read, or an answer to be corrected: its image and the classes, nothing else."""

    # handle of the case
    case_id: uuid.UUID
    number: str
    classes: list[ClassOut]
    # of the form that declines
    form_key: str
    # the lease; None for a case that the annotator does not hold
    read: label_service.ReadOut | None
    # names the read in the forms of its account's pages; None without one
    handle: str | None
    # names what the form answers: the read, or the answer that it replaces
    answer: str | None
    # class code of the answer that is replaced; empty for a first answer
    given: str
    # where an answer leads
    next_page: str
    # page that corrects the answer before; None where there is none
    back: str | None
    lease_seconds: int
    # of the annotator's day
    progress: label_service.DayProgress
    # of the image; None where nobody said
    microns_per_pixel: float | None
    # whether the wider field around the cell is there
    field: bool
    # whether the page goes on by itself: what is shown after each answer needs a page of its own
    resident: bool


def case_to_read(
    session: Session, keys: AnnotatorKeys, principal: Principal, case: cases.ResolvedCase, zone: tzinfo
) -> BlindCase | None:
    """The blind view of a case, None once this annotator has committed a label."""
    cases.case_by_id(session, case.id)
    if not principal.blind or cases.has_committed(session, principal, case):
        return None
    leased = [read for read in label_service.list_leases(session, principal) if read.case_id == str(case.named)]
    policy = current_policy(session)
    read, known_as = leased[0] if leased else None, cases.case_handle(keys, principal, case.named)
    handle = None if read is None else read_handle(keys, principal.account_id, uuid.UUID(read.id))
    return BlindCase(
        case_id=known_as,
        number=case_number(known_as),
        classes=reading_classes(session),
        form_key=uuid.uuid4().hex,
        read=read,
        handle=handle,
        answer=handle,
        given="",
        next_page=f"/cases/{known_as}",
        back=page_back(session, keys, principal),
        lease_seconds=policy.lease_seconds,
        progress=label_service.get_day_progress(session, principal, zone),
        microns_per_pixel=cases.microns_per_pixel_of(session, case.id),
        field=cases.has_field(session, case.id),
        resident=read is not None and policy.reveal != "after_commit",
    )


def case_to_correct(
    session: Session, keys: AnnotatorKeys, principal: Principal, read_id: uuid.UUID, zone: tzinfo
) -> BlindCase | None:
    """The blind view of a case whose answer the annotator may still correct; None where they may not."""
    answer = next(
        (row for row in label_service.list_correctable_answers(session, principal) if row.read_id == read_id), None
    )
    if answer is None:
        return None
    leased = [
        cases.case_handle(keys, principal, uuid.UUID(read.case_id))
        for read in label_service.list_leases(session, principal)
    ]
    known_as = cases.case_handle(keys, principal, answer.named)
    return BlindCase(
        case_id=known_as,
        number=case_number(known_as),
        classes=reading_classes(session),
        form_key=uuid.uuid4().hex,
        read=None,
        handle=None,
        answer=correction_handle(keys, principal.account_id, read_id, answer.position),
        given=answer.class_code or "",
        next_page=f"/cases/{leased[0]}" if leased else "/worklist",
        back=page_back(session, keys, principal, before=read_id),
        lease_seconds=current_policy(session).lease_seconds,
        progress=label_service.get_day_progress(session, principal, zone),
        microns_per_pixel=cases.microns_per_pixel_of(session, answer.case_id),
        field=cases.has_field(session, answer.case_id),
        resident=False,
    )


def page_back(
    session: Session, keys: AnnotatorKeys, principal: Principal, before: uuid.UUID | None = None
) -> str | None:
    """Page that corrects the newest answer, or the one before that of a read; None where there is none."""
    reads = [answer.read_id for answer in label_service.list_correctable_answers(session, principal)]
    if before is not None:
        reads = reads[reads.index(before) + 1 :] if before in reads else []
    return f"/reads/{read_handle(keys, principal.account_id, reads[0])}/correction" if reads else None


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_People = Annotated[Principal, Depends(RequireScope("cases:read", "reads:own"))]
_Annotator = Annotated[Principal, Depends(RequireScope("reads:own"))]
_Text = Annotated[PageText, Form(max_length=2000)]


class _CaseId(BaseModel):
    id: uuid.UUID


@router.get("/worklist")
def show_worklist(
    request: Request,
    context: AppContext,
    principal: _People,
    session: ReadSession,
    site: Annotated[PageText, Query(max_length=200)] = "",
    search: Annotated[PageText, Query(max_length=200)] = "",
    cursor: Annotated[PageText | None, Query(max_length=100)] = None,
) -> Response:
    """Cases by need; to annotators, in an order of their own that reveals nothing."""
    if principal.blind:
        back = page_back(session, context.keys.readers, principal)
        view = blind_worklist(session, context.keys.readers, principal, context.settings.zone)
        return render_page(request, "to_read.html", principal, view=view, back=back)
    steps = first_steps(session) if "manage" in principal.scopes else None
    if steps is not None:
        return render_page(request, "first_steps.html", principal, view=steps)
    chosen = cases.CaseFilter(site=site or None, search=search.strip() or None)
    worklist = load_leads_worklist(session, chosen, cursor)
    return render_page(request, "worklist.html", principal, view=worklist, site=site, search=search)


@router.get("/cases/{case_id}")
def show_case_page(
    asked: cases.CaseInPath,
    request: Request,
    context: AppContext,
    principal: _People,
    session: ReadSession,
    annotators: Annotated[Literal["named", "alike"], Query()] = "named",
) -> Response:
    """A case: to read, or in full once that is allowed."""
    case = asked.found(session)
    blind = case_to_read(session, context.keys.readers, principal, case, context.settings.zone)
    if blind is not None:
        if blind.read is not None:
            label_service.note_display(context.database, session, uuid.UUID(blind.read.id))
        return render_page(request, "read.html", principal, view=blind)
    hidden = cases.hidden_because(session, principal, case)
    if hidden is not None:
        handle = cases.case_handle(context.keys.readers, principal, case.named)
        return render_page(
            request,
            "committed.html",
            principal,
            number=case_number(handle),
            case_id=handle,
            field=cases.has_field(session, case.id),
            hidden=hidden,
            late=label_service.has_answered_late(session, principal, case),
            progress=label_service.get_day_progress(session, principal, context.settings.zone),
            back=page_back(session, context.keys.readers, principal),
        )
    by_name = annotators == "named"
    full_view = case_view(session, context.keys.readers, principal, case.id, context.settings.zone, by_name=by_name)
    cases.note_exposure(context.database, session, principal, case.id)
    return render_page(request, "case.html", principal, view=full_view)


@router.post("/reads/next")
def read_next(context: AppContext, principal: _Annotator, session: WriteSession) -> Response:
    """Continue with the open read, or lease the next one."""
    held = label_service.list_leases(session, principal)
    read = held[0] if held else label_service.lease_next_read(session, context, principal)
    if read is None:
        return redirect_to("/worklist")
    return redirect_to(f"/cases/{cases.case_handle(context.keys.readers, principal, uuid.UUID(read.case_id))}")


@router.get("/reads/upcoming")
def redirect_to_upcoming_image(context: AppContext, principal: _Annotator, session: ReadSession) -> Response:
    """The image that probably comes next, for the browser to fetch ahead: nothing but pixels."""
    handle = upcoming_case(session, context.keys.readers, principal)
    if handle is None:
        return Response(status_code=204)
    return redirect_to(f"/v1/cases/{handle}/image")


def _respond_to_form(request: Request, path: str) -> Response:
    """Redirect a browser after a form; scripts get 204, which proxies do not send by chance."""
    return redirect_to(path) if "text/html" in request.headers.get("accept", "") else Response(status_code=204)


@router.post("/reads/{handle}/label")
def submit_answer_form(
    handle: str,
    request: Request,
    context: AppContext,
    principal: _Annotator,
    session: WriteSession,
    label: Annotated[PageText, Form(max_length=200)] = "",
    note: _Text = "",
    confidence: Annotated[PageText, Form(max_length=8)] = "",
    second_choice: Annotated[PageText, Form(max_length=200)] = "",
    flag: Annotated[PageText, Form(max_length=8)] = "",
) -> Response:
    """Commit a label, or a correction of one, then continue; sending the form twice stores it once."""
    read_id, position = answer_of_handle(context.keys.readers, principal, handle)
    if not label:
        raise InvalidValue("choose a class")
    more = {"second_choice": second_choice or None, "flag": bool(flag)}
    body: label_service.OwnLabelIn = validate_form(
        label_service.OwnLabelIn, label=label, note=note or None, confidence=confidence or None, **more
    )
    if position is not None:
        label_service.correct_answer_once(session, context, principal, read_id, position, body)
        return _respond_to_form(request, "/worklist")
    case_id = label_service.answer_read(session, context, principal, read_id, body)
    return _respond_to_form(request, f"/cases/{cases.case_handle(context.keys.readers, principal, case_id)}")


@router.get("/reads/{handle}/correction")
def show_correction(
    handle: str, request: Request, context: AppContext, principal: _Annotator, session: ReadSession
) -> Response:
    """A case that this annotator has answered, once more and still blind, while the answer may be corrected."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    view = case_to_correct(session, context.keys.readers, principal, read_id, context.settings.zone)
    return redirect_to("/worklist") if view is None else render_page(request, "read.html", principal, view=view)


@router.post("/reads/{handle}/decline")
def decline_read(
    handle: str,
    request: Request,
    context: AppContext,
    principal: _Annotator,
    once: IdempotentForm,
    session: WriteSession,
    reason: Annotated[PageText, Form(max_length=40)] = "",
    note: _Text = "",
) -> Response:
    """Decline a read, with a reason, and continue."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    body: label_service.DeclineIn = validate_form(label_service.DeclineIn, reason=reason, note=note or None)
    once(session, body, lambda: label_service.record_decline(session, context, principal, read_id, body))
    return _respond_to_form(request, "/worklist")


@router.post("/reads/{handle}/release")
def release_read(handle: str, context: AppContext, principal: _Annotator, session: WriteSession) -> Response:
    """Give a read back: it may come again."""
    label_service.release_lease(session, principal, read_of_handle(context.keys.readers, principal, handle))
    return redirect_to("/worklist")


@router.post("/labels/{label_id}/revise")
def revise_label(
    label_id: uuid.UUID,
    context: AppContext,
    principal: _Annotator,
    once: IdempotentForm,
    session: WriteSession,
    label: Annotated[PageText, Form(max_length=200)] = "",
    reason: _Text = "",
    case_id: Annotated[PageText, Form(max_length=40)] = "",
) -> Response:
    """Correct one's own label: both stay."""
    body: label_service.RevisionIn = validate_form(label_service.RevisionIn, label=label, reason=reason)
    once(session, body, lambda: label_service.revise_case_label(session, context, principal, label_id, body))
    return redirect_to(f"/cases/{validate_form(_CaseId, id=case_id).id}")


@router.post("/labels/{label_id}/retract")
def retract_label(
    label_id: uuid.UUID,
    context: AppContext,
    principal: _Annotator,
    once: IdempotentForm,
    session: WriteSession,
    reason: _Text = "",
) -> Response:
    """Take one's own label back: both stay."""
    body: label_service.RetractionIn = validate_form(label_service.RetractionIn, reason=reason)
    once(session, body, lambda: label_service.retract_case_label(session, context, principal, label_id, body))
    return redirect_to("/worklist")
