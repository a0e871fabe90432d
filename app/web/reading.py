"""Pages for reading: first steps, queue, form and finished reads."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.accounts.annotators import annotator_of_account
from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.models.queries import model_in_use
from app.annotators.reference_cells.selection import stands_for
from app.audit.chain.keys import ReaderKeys
from app.cases import queries
from app.cases import service as cases
from app.cases.blindness import answered, exposures_of, hidden_because, note_exposure
from app.cases.ingest import microns_per_pixel_of
from app.cases.opaque_ids import CaseInPath, NamedCase, case_handle
from app.cases.presenters import show_case
from app.cases.queries import CaseFilter, has_field
from app.cases.schemas import CaseOut, RequestOut, WorklistOut
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.errors import Invalid
from app.http.languages import decimal, gettext, ngettext
from app.http.models import ClassOut, PageText, PosteriorOut
from app.http.principal import Principal
from app.labels.annotator_day import LISTED, Progress, count_labelled_cases, labelled_cases, progress
from app.labels.annotator_weights import remarks_on
from app.labels.answers import answer_read, retract, revise
from app.labels.corrections import correct_once, correctable
from app.labels.label_rows import label_out
from app.labels.leases import decline, lease_next, list_leases, note_display, release
from app.labels.posterior import posterior
from app.labels.queries import answered_late
from app.labels.queue import look_ahead
from app.labels.schemas import DeclineIn, LabelOut, OwnLabelIn, ReadOut, RetractionIn, RevisionIn
from app.releases.queries import reading_classes, release_by_id
from app.triage.eligibility import Standing, standing_of, standing_of_account
from app.triage.queries import current_policy
from app.web.charts import Bars, posterior_bars
from app.web.first_steps import first_steps
from app.web.forms import IdempotentForm, answer_of_handle, checked, correction_handle, read_handle, read_of_handle
from app.web.reference_cells import ShownClass, classes_at_stake
from app.web.render import go, page

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
    progress: Progress
    standing: Standing


def blind_worklist(session: Session, keys: ReaderKeys, principal: Principal, zone: tzinfo) -> BlindWorklist:
    """Cases that this annotator leases, then those they have read, newest first; of the others only how many wait."""
    leased = [uuid.UUID(read.case_id) for read in list_leases(session, principal)]
    read = labelled_cases(session, principal, LISTED)
    listed = [(case_id, False) for case_id in leased] + [(case_id, True) for case_id in read]
    handles = [(case_handle(keys, principal, case_id), done) for case_id, done in listed]
    items = [BlindItem(handle, case_number(handle), done) for handle, done in handles]
    standing, day = standing_of_account(session, principal.account_id), progress(session, principal, zone)
    if not standing.may_read:
        day = replace(day, n_waiting=0)
    return BlindWorklist(items, count_labelled_cases(session, principal), day, standing)


def upcoming_case(session: Session, keys: ReaderKeys, principal: Principal) -> uuid.UUID | None:
    """Handle of the case that this annotator would be given next, without giving it."""
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None or not standing_of(session, annotator).may_read:
        return None
    named = look_ahead(session, keys.order, annotator.id)
    return None if named is None else case_handle(keys, principal, named)


@dataclass(frozen=True)
class LeadsWorklist:
    """A page of the cases of which a read is wanted, how many there are in all, and what they can be narrowed by.

    ``same_image``: by case the others with the same pixels, id and external id.
    """

    page: WorklistOut
    n_waiting: int
    sites: list[str]
    same_image: dict[str, list[tuple[uuid.UUID, str]]]


def worklist(session: Session, chosen: queries.CaseFilter, cursor: str | None) -> LeadsWorklist:
    """Cases of which a read is wanted, those in most need first."""
    shown = cases.worklist(session, cursor, WORKLIST_LENGTH, chosen)
    alike = queries.same_images(session, [uuid.UUID(item.case.id) for item in shown.items])
    same_image = {str(case_id): others for case_id, others in alike.items()}
    return LeadsWorklist(shown, queries.count_waiting_cases(session, chosen), queries.sites(session), same_image)


@dataclass(frozen=True)
class CaseView:
    """A case in full."""

    case: CaseOut
    number: str
    names: dict[str, str]
    posterior: PosteriorOut | None
    bars: Bars | None
    labels: list[LabelOut]
    history: list[LabelOut]
    requests: list[RequestOut]
    exposures: list[tuple[str, datetime]]
    enough: str
    own: LabelOut | None
    classes: list[ClassOut]
    form_key: str
    progress: Progress
    remarks: list[str]
    by_name: bool
    at_stake: list[ShownClass]
    stands_for: str | None
    release_name: str = ""


def case_view(
    session: Session, keys: ReaderKeys, principal: Principal, case_id: uuid.UUID, zone: tzinfo, *, by_name: bool = True
) -> CaseView:
    """Everything about a case; only for those who may see it.

    Raises:
        NotFound: no such case.
    """
    shown, classes = show_case(session, case_id), reading_classes(session)
    handle = case_handle(keys, principal, case_id)
    known = {info.code: info.name for info in classes}
    after = bars = None
    if shown.prediction is not None:
        after = posterior(session, case_id, by_name=by_name)
        known = {code: known.get(code, code) for code in shown.prediction.classes}
        bars = posterior_bars(known, shown.prediction, after, after.label_counts)
    labels = [label_out(active) for active in queries.labels_of_case(session, case_id)]
    requests = queries.requests_of(session, [case_id]).get(case_id, [])
    mine = [label for label in labels if label.annotator == principal.name] if principal.blind else []
    return CaseView(
        case=shown.model_copy(update={"id": str(handle)}),
        number=case_number(handle),
        names=known,
        posterior=after,
        bars=bars,
        labels=labels,
        history=[label_out(active) for active in queries.label_history(session, case_id)],
        requests=[cases.request_out(*row) for row in requests],
        exposures=[] if principal.blind else exposures_of(session, case_id),
        enough=_enough(session, after),
        own=mine[-1] if mine else None,
        classes=classes,
        form_key=uuid.uuid4().hex,
        progress=progress(session, principal, zone) if principal.blind else Progress(0, 0),
        remarks=_remarks(session, after, labels, known) if "manage" in principal.scopes else [],
        by_name=by_name,
        at_stake=_at_stake(session, mine, labels, after),
        stands_for=None if principal.blind else stands_for(session, case_id),
        release_name="" if shown.prediction is None else _release_name(session, uuid.UUID(shown.prediction.release)),
    )


def _at_stake(
    session: Session, mine: list[LabelOut], labels: list[LabelOut], after: PosteriorOut | None
) -> list[ShownClass]:
    """The two classes between which a case is, with their reference cells."""
    own = mine[-1].label if mine else None
    others = [label.label for label in labels if label not in mine and label.label is not None]
    return classes_at_stake(session, own, others, {} if after is None else dict(after.class_probs))


def _release_name(session: Session, release_id: uuid.UUID) -> str:
    row = release_by_id(session, release_id)
    return "" if row is None else row.name


def _remarks(session: Session, after: PosteriorOut | None, labels: list[LabelOut], names: dict[str, str]) -> list[str]:
    """What the model in use holds of those who labelled a case, a sentence each; nobody is told of a colleague."""
    in_use = None if after is None or after.reader_model is None else model_in_use(session, uuid.UUID(after.release))
    return [] if in_use is None else remarks_on(in_use[1], [label.annotator for label in labels], list(names.values()))


def _enough(session: Session, after: PosteriorOut | None) -> str:
    """Whether a case has been read by enough annotators, in words."""
    if after is None or after.further_labels_expected is None or after.majority_prob is None:
        return ""
    policy = current_policy(session)
    error = decimal(f"{policy.target_error:g}")
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
    """A case to be read, or an answer to be corrected: its image and the classes, nothing else.

    Attributes:
        case_id: handle of the case.
        number: its short number.
        classes: to choose from.
        form_key: of the form that declines.
        read: the lease; None for a case that the annotator does not hold.
        handle: names the read in the forms of its account's pages; None without one.
        answer: names what the form answers: the read, or the answer that it replaces.
        given: class code of the answer that is replaced; empty for a first answer.
        next_page: where an answer leads.
        back: page that corrects the answer before; None where there is none.
        lease_seconds: of the policy.
        progress: of the annotator's day.
        microns_per_pixel: of the image; None where nobody said.
        field: whether the wider field around the cell is there.
        resident: whether the page goes on by itself: what is shown after each answer needs a page of its own.
    """

    case_id: uuid.UUID
    number: str
    classes: list[ClassOut]
    form_key: str
    read: ReadOut | None
    handle: str | None
    answer: str | None
    given: str
    next_page: str
    back: str | None
    lease_seconds: int
    progress: Progress
    microns_per_pixel: float | None
    field: bool
    resident: bool


def case_to_read(
    session: Session, keys: ReaderKeys, principal: Principal, case: NamedCase, zone: tzinfo
) -> BlindCase | None:
    """The blind view of a case, None once this annotator has committed a label."""
    queries.case_by_id(session, case.id)
    if not principal.blind or answered(session, principal, case):
        return None
    leased = [read for read in list_leases(session, principal) if read.case_id == str(case.named)]
    policy = current_policy(session)
    read, known_as = leased[0] if leased else None, case_handle(keys, principal, case.named)
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
        progress=progress(session, principal, zone),
        microns_per_pixel=microns_per_pixel_of(session, case.named),
        field=queries.has_field(session, case.named),
        resident=read is not None and policy.reveal != "after_commit",
    )


def case_to_correct(
    session: Session, keys: ReaderKeys, principal: Principal, read_id: uuid.UUID, zone: tzinfo
) -> BlindCase | None:
    """The blind view of a case whose answer the annotator may still correct; None where they may not."""
    answer = next((row for row in correctable(session, principal) if row.read_id == read_id), None)
    if answer is None:
        return None
    leased = [case_handle(keys, principal, uuid.UUID(read.case_id)) for read in list_leases(session, principal)]
    known_as = case_handle(keys, principal, answer.named)
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
        progress=progress(session, principal, zone),
        microns_per_pixel=microns_per_pixel_of(session, answer.named),
        field=queries.has_field(session, answer.named),
        resident=False,
    )


def page_back(session: Session, keys: ReaderKeys, principal: Principal, before: uuid.UUID | None = None) -> str | None:
    """Page that corrects the newest answer, or the one before that of a read; None where there is none."""
    reads = [answer.read_id for answer in correctable(session, principal)]
    if before is not None:
        reads = reads[reads.index(before) + 1 :] if before in reads else []
    return f"/reads/{read_handle(keys, principal.account_id, reads[0])}/correction" if reads else None


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_People = Annotated[Principal, Depends(Policy("cases:read", "reads:own"))]
_Annotator = Annotated[Principal, Depends(Policy("reads:own"))]
_Text = Annotated[PageText, Form(max_length=2000)]


class _CaseId(BaseModel):
    id: uuid.UUID


@router.get("/worklist")
def worklist(
    request: Request,
    context: Parts,
    principal: _People,
    session: Reader,
    site: Annotated[PageText, Query(max_length=200)] = "",
    search: Annotated[PageText, Query(max_length=200)] = "",
    cursor: Annotated[PageText | None, Query(max_length=100)] = None,
) -> Response:
    """Cases by need; to annotators, in an order of their own that reveals nothing."""
    if principal.blind:
        back = page_back(session, context.keys.readers, principal)
        view = blind_worklist(session, context.keys.readers, principal, context.settings.zone)
        return page(request, "to_read.html", principal, view=view, back=back)
    steps = first_steps(session) if "manage" in principal.scopes else None
    if steps is not None:
        return page(request, "first_steps.html", principal, view=steps)
    chosen = CaseFilter(site=site or None, search=search.strip() or None)
    cases = worklist(session, chosen, cursor)
    return page(request, "worklist.html", principal, view=cases, site=site, search=search)


@router.get("/cases/{case_id}")
def show_case_page(
    asked: CaseInPath,
    request: Request,
    context: Parts,
    principal: _People,
    session: Reader,
    annotators: Annotated[Literal["named", "alike"], Query()] = "named",
) -> Response:
    """A case: to read, or in full once that is allowed."""
    case = asked.found(session)
    blind = case_to_read(session, context.keys.readers, principal, case, context.settings.zone)
    if blind is not None:
        if blind.read is not None:
            note_display(context.database, session, uuid.UUID(blind.read.id))
        return page(request, "read.html", principal, view=blind)
    hidden = hidden_because(session, principal, case)
    if hidden is not None:
        handle = case_handle(context.keys.readers, principal, case.named)
        return page(
            request,
            "committed.html",
            principal,
            number=case_number(handle),
            case_id=handle,
            field=has_field(session, case.named),
            hidden=hidden,
            late=answered_late(session, principal, case.id) and case.repeat is None,
            progress=progress(session, principal, context.settings.zone),
            back=page_back(session, context.keys.readers, principal),
        )
    by_name = annotators == "named"
    shown = case_view(session, context.keys.readers, principal, case.id, context.settings.zone, by_name=by_name)
    note_exposure(context.database, session, principal, case.id)
    return page(request, "case.html", principal, view=shown)


@router.post("/reads/next")
def read_next(context: Parts, principal: _Annotator, session: Writer) -> Response:
    """Continue with the open read, or lease the next one."""
    held = list_leases(session, principal)
    read = held[0] if held else lease_next(session, context, principal)
    if read is None:
        return go("/worklist")
    return go(f"/cases/{case_handle(context.keys.readers, principal, uuid.UUID(read.case_id))}")


@router.get("/reads/upcoming")
def upcoming(context: Parts, principal: _Annotator, session: Reader) -> Response:
    """The image that probably comes next, for the browser to fetch ahead: nothing but pixels."""
    handle = upcoming_case(session, context.keys.readers, principal)
    if handle is None:
        return Response(status_code=204)
    return go(f"/v1/cases/{handle}/image")


def _done(request: Request, path: str) -> Response:
    """Send a browser on after a form; a script that sent it gets 204, which no proxy or portal answers by chance."""
    return go(path) if "text/html" in request.headers.get("accept", "") else Response(status_code=204)


@router.post("/reads/{handle}/label")
def answer(
    handle: str,
    request: Request,
    context: Parts,
    principal: _Annotator,
    session: Writer,
    label: Annotated[PageText, Form(max_length=200)] = "",
    note: _Text = "",
    confidence: Annotated[PageText, Form(max_length=8)] = "",
    second_choice: Annotated[PageText, Form(max_length=200)] = "",
    flag: Annotated[PageText, Form(max_length=8)] = "",
) -> Response:
    """Commit a label, or a correction of one, then continue; sending the form twice stores it once.

    Raises:
        Invalid: no class was chosen.
    """
    read_id, position = answer_of_handle(context.keys.readers, principal, handle)
    if not label:
        raise Invalid("choose a class")
    more = {"second_choice": second_choice or None, "flag": bool(flag)}
    body: OwnLabelIn = checked(OwnLabelIn, label=label, note=note or None, confidence=confidence or None, **more)
    if position is not None:
        correct_once(session, context, principal, read_id, position, body)
        return _done(request, "/worklist")
    case_id = answer_read(session, context, principal, read_id, body)
    return _done(request, f"/cases/{case_handle(context.keys.readers, principal, case_id)}")


@router.get("/reads/{handle}/correction")
def correction(handle: str, request: Request, context: Parts, principal: _Annotator, session: Reader) -> Response:
    """A case that this annotator has answered, once more and still blind, while the answer may be corrected."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    view = case_to_correct(session, context.keys.readers, principal, read_id, context.settings.zone)
    return go("/worklist") if view is None else page(request, "read.html", principal, view=view)


@router.post("/reads/{handle}/decline")
def decline_read(
    handle: str,
    request: Request,
    context: Parts,
    principal: _Annotator,
    once: IdempotentForm,
    session: Writer,
    reason: Annotated[PageText, Form(max_length=40)] = "",
    note: _Text = "",
) -> Response:
    """Decline a read, with a reason, and continue."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    body: DeclineIn = checked(DeclineIn, reason=reason, note=note or None)
    once(session, body, lambda: decline(session, context, principal, read_id, body))
    return _done(request, "/worklist")


@router.post("/reads/{handle}/release")
def release_read(handle: str, context: Parts, principal: _Annotator, session: Writer) -> Response:
    """Give a read back: it may come again."""
    release(session, principal, read_of_handle(context.keys.readers, principal, handle))
    return go("/worklist")


@router.post("/labels/{label_id}/revise")
def revise_label(
    label_id: uuid.UUID,
    context: Parts,
    principal: _Annotator,
    once: IdempotentForm,
    session: Writer,
    label: Annotated[PageText, Form(max_length=200)] = "",
    reason: _Text = "",
    case_id: Annotated[PageText, Form(max_length=40)] = "",
) -> Response:
    """Correct one's own label: both stay."""
    body: RevisionIn = checked(RevisionIn, label=label, reason=reason)
    once(session, body, lambda: revise(session, context, principal, label_id, body))
    return go(f"/cases/{checked(_CaseId, id=case_id).id}")


@router.post("/labels/{label_id}/retract")
def retract_label(
    label_id: uuid.UUID,
    context: Parts,
    principal: _Annotator,
    once: IdempotentForm,
    session: Writer,
    reason: _Text = "",
) -> Response:
    """Take one's own label back: both stay."""
    body: RetractionIn = checked(RetractionIn, reason=reason)
    once(session, body, lambda: retract(session, context, principal, label_id, body))
    return go("/worklist")
