"""Pages for reading: first steps, queue, form and finished reads."""

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, annotator_of_account, existing_account
from app.annotators.models.service import model_in_use
from app.annotators.reference_cells.service import stands_for
from app.cases import service as cases
from app.http.errors import InvalidValue
from app.http.languages import class_name, gettext
from app.http.middleware import EVEN_TIME
from app.http.models import ClassOut, PageText, PosteriorOut
from app.labels import service as label_service
from app.outcomes.service import (
    AssignmentIn,
    OutcomeIn,
    RuleDecision,
    assign_read,
    reopen_case,
    rule_decision,
    settle_case,
)
from app.releases.service import class_names, reading_classes, release_by_id
from app.triage.service import (
    ReadEligibility,
    current_policy,
    eligibility_of,
    eligibility_of_account,
    list_annotators_for_case,
)
from app.web import forms
from app.web.cells import AskedCells, CellQuery, load_leads_worklist
from app.web.charts import ClassRow, Mass, class_rows, describe_label_need, three_masses
from app.web.page import AnnotatorForm, AnnotatorPage, CommentForm, ManagerForm, Page, PeoplePage
from app.web.reference_cells import SameScale, ShownCell, classes_at_stake
from app.web.render import redirect_to
from app.web.today import first_steps
from ml.messages import Message


@dataclass(frozen=True)
class BlindItem:
    """A case as an annotator sees it in the list: nothing but its handle and its number."""

    case_id: uuid.UUID
    number: str


@dataclass(frozen=True)
class BlindWorklist:
    """Cases that an annotator leases, how many they have read, how many wait, and which reads go to them."""

    items: list[BlindItem]
    n_read: int
    progress: label_service.DayProgress
    standing: ReadEligibility
    # whether they are given the cells alone that they were invited for
    guest: bool


def blind_worklist(page: Page) -> BlindWorklist:
    """Cases that this annotator leases; of the others only how many wait."""
    leased = [uuid.UUID(read.case_id) for read in label_service.list_leases(page.session, page.principal)]
    handles = [cases.case_handle(page.keys, page.principal, case_id) for case_id in leased]
    items = [BlindItem(handle, forms.case_number(handle)) for handle in handles]
    standing, day = (
        eligibility_of_account(page.session, page.principal.account_id),
        label_service.get_day_progress(page.session, page.principal, page.zone),
    )
    if not standing.may_read:
        day = replace(day, n_waiting=0)
    n_read = label_service.count_labelled_cases(page.session, page.principal)
    guest = existing_account(page.session, page.principal.account_id).guest
    return BlindWorklist(items, n_read, day, standing, guest)


def upcoming_case(page: Page) -> uuid.UUID | None:
    """Handle of the case that this annotator would be given next, without giving it."""
    annotator = annotator_of_account(page.session, page.principal.account_id)
    if annotator is None or not eligibility_of(page.session, annotator).may_read:
        return None
    named = label_service.peek_next_case(page.session, page.keys.order, annotator.id)
    return None if named is None else cases.case_handle(page.keys, page.principal, named)


@dataclass(frozen=True)
class CaseView:
    """A case in full."""

    case: cases.CaseOut
    number: str
    names: dict[str, str]
    posterior: PosteriorOut | None
    # the most probable class first; empty without a prediction
    rows: list[ClassRow]
    # what five further annotators would agree on, or two where cells have no five labels
    masses: list[Mass]
    n_further: Literal[2, 5]
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
    at_stake: SameScale | None
    stands_for: str | None
    microns_per_pixel: float | None
    # of who manages reads: what the rule concludes now, and who may still read the cell
    by_rule: RuleDecision | None
    annotators: list[tuple[str, str]]
    release_name: str = ""

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Choices of the form that settles it."""
        classes = [(one.code, class_name(one.name)) for one in self.classes]
        return [("", gettext("choose")), *classes, (cases.SPLIT, gettext("split"))]


def case_view(page: Page, case_id: uuid.UUID, *, by_name: bool = True) -> CaseView:
    """Everything about a case; only for those who may see it."""
    handle = cases.case_handle(page.keys, page.principal, case_id)
    case_out = cases.show_case(page.session, case_id).model_copy(update={"id": str(handle)})
    names = class_names(page.session)
    after, rows, masses = None, [], []
    n_further: Literal[2, 5] = 5 if cases.has_five_labels(page.session) else 2
    if case_out.prediction is not None:
        after = label_service.show_case_posterior(page.session, case_id, by_name=by_name)
        names_by_code = {code: class_name(code, names) for code in case_out.prediction.classes}
        rows = class_rows(names_by_code, case_out.prediction, after, after.label_counts)
        masses = [] if after.consensus is None else three_masses(names_by_code, after.consensus, n_further)
    labels = [label_service.label_out(active) for active in cases.labels_of_case(page.session, case_id)]
    requests = cases.requests_of(page.session, [case_id]).get(case_id, [])
    mine = [label for label in labels if label.annotator == page.principal.name] if page.principal.blind else []
    manages = "manage" in page.principal.scopes
    settles = manages and case_out.outcome is None
    prediction = case_out.prediction
    release = None if prediction is None else release_by_id(page.session, uuid.UUID(prediction.release))
    return CaseView(
        case=case_out,
        number=forms.case_number(handle),
        names=names,
        posterior=after,
        rows=rows,
        masses=masses,
        n_further=n_further,
        labels=labels,
        history=[label_service.label_out(active) for active in cases.label_history(page.session, case_id)],
        requests=[cases.request_out(*row) for row in requests],
        exposures=[] if page.principal.blind else cases.exposures_of(page.session, case_id),
        enough=describe_label_need(current_policy(page.session), after),
        own=mine[-1] if mine else None,
        classes=reading_classes(page.session),
        form_key=uuid.uuid4().hex,
        progress=label_service.get_day_progress(page.session, page.principal, page.zone)
        if page.principal.blind
        else label_service.DayProgress(0, 0),
        remarks=_list_annotator_remarks(page.session, after, labels) if manages else [],
        by_name=by_name,
        at_stake=_load_classes_at_stake(page.session, case_out, mine, labels, after),
        stands_for=None if page.principal.blind else stands_for(page.session, case_id),
        microns_per_pixel=cases.microns_per_pixel(case_out.metadata),
        by_rule=rule_decision(page.session, case_id) if settles else None,
        annotators=_list_assignable(page.session, case_id) if settles else [],
        release_name=getattr(release, "name", ""),
    )


def _list_assignable(session: Session, case_id: uuid.UUID) -> list[tuple[str, str]]:
    """Choices of the form that assigns a cell; empty if no annotator is left."""
    names = [one.name for one in list_annotators_for_case(session, case_id)]
    return [("", gettext("choose")), *zip(names, names, strict=True)] if names else []


def _load_classes_at_stake(
    session: Session,
    case: cases.CaseOut,
    mine: list[label_service.LabelOut],
    labels: list[label_service.LabelOut],
    after: PosteriorOut | None,
) -> SameScale | None:
    own = mine[-1].label if mine else None
    others = [label.label for label in labels if label not in mine and label.label is not None]
    classes = classes_at_stake(session, own, others, {} if after is None else dict(after.class_probs))
    cell = ShownCell(f"/v1/cases/{case.id}/image", case.width, case.height, cases.microns_per_pixel(case.metadata))
    return SameScale(cell, classes) if classes else None


def _list_annotator_remarks(
    session: Session, after: PosteriorOut | None, labels: list[label_service.LabelOut]
) -> list[str]:
    release_id = None if after is None or after.reader_model is None else uuid.UUID(after.release)
    in_use = None if release_id is None else model_in_use(session, release_id)
    names = list(class_names(session, release_id).values())
    return [] if in_use is None else label_service.remarks_on(in_use[1], [one.annotator for one in labels], names)


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


def case_to_read(page: Page, case: cases.ResolvedCase) -> BlindCase | None:
    """The blind view of a case, None once this annotator has committed a label."""
    cases.case_by_id(page.session, case.id)
    if not page.principal.blind or cases.has_committed(page.session, page.principal, case):
        return None
    leased = [
        read for read in label_service.list_leases(page.session, page.principal) if read.case_id == str(case.named)
    ]
    policy = current_policy(page.session)
    read, known_as = leased[0] if leased else None, cases.case_handle(page.keys, page.principal, case.named)
    handle = None if read is None else forms.read_handle(page.keys, page.principal.account_id, uuid.UUID(read.id))
    return BlindCase(
        case_id=known_as,
        number=forms.case_number(known_as),
        classes=reading_classes(page.session),
        form_key=uuid.uuid4().hex,
        read=read,
        handle=handle,
        answer=handle,
        given="",
        next_page=f"/cases/{known_as}",
        back=page_back(page),
        lease_seconds=policy.lease_seconds,
        progress=label_service.get_day_progress(page.session, page.principal, page.zone),
        microns_per_pixel=cases.microns_per_pixel_of(page.session, case.id),
        field=cases.has_field(page.session, case.id),
        resident=read is not None and policy.reveal != "after_commit",
    )


def case_to_correct(page: Page, read_id: uuid.UUID) -> BlindCase | None:
    """The blind view of a case whose answer the annotator may still correct; None where they may not."""
    answer = next(
        (row for row in label_service.list_correctable_answers(page.session, page.principal) if row.read_id == read_id),
        None,
    )
    if answer is None:
        return None
    leased = [
        cases.case_handle(page.keys, page.principal, uuid.UUID(read.case_id))
        for read in label_service.list_leases(page.session, page.principal)
    ]
    known_as = cases.case_handle(page.keys, page.principal, answer.named)
    return BlindCase(
        case_id=known_as,
        number=forms.case_number(known_as),
        classes=reading_classes(page.session),
        form_key=uuid.uuid4().hex,
        read=None,
        handle=None,
        answer=forms.correction_handle(page.keys, page.principal.account_id, read_id, answer.position),
        given=answer.class_code or "",
        next_page=f"/cases/{leased[0]}" if leased else "/worklist",
        back=page_back(page, before=read_id),
        lease_seconds=current_policy(page.session).lease_seconds,
        progress=label_service.get_day_progress(page.session, page.principal, page.zone),
        microns_per_pixel=cases.microns_per_pixel_of(page.session, answer.case_id),
        field=cases.has_field(page.session, answer.case_id),
        resident=False,
    )


def page_back(page: Page, before: uuid.UUID | None = None) -> str | None:
    """Page that corrects the newest answer, or the one before that of a read; None where there is none."""
    reads = [answer.read_id for answer in label_service.list_correctable_answers(page.session, page.principal)]
    if before is not None:
        reads = reads[reads.index(before) + 1 :] if before in reads else []
    return f"/reads/{forms.read_handle(page.keys, page.principal.account_id, reads[0])}/correction" if reads else None


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Text = Annotated[PageText, Form(max_length=2000)]


class _CaseId(BaseModel):
    id: uuid.UUID


@router.get("/worklist")
def show_worklist(
    page: PeoplePage,
    site: Annotated[PageText, Query(max_length=200)] = "",
    search: Annotated[PageText, Query(max_length=200)] = "",
    cursor: Annotated[PageText | None, Query(max_length=100)] = None,
) -> Response:
    """Cases by need; to annotators, in an order of their own that reveals nothing."""
    if page.principal.blind:
        back = page_back(page)
        view = blind_worklist(page)
        return page.render("to_read.html", view=view, back=back)
    steps = first_steps(page.session) if "manage" in page.principal.scopes else None
    if steps is not None:
        return page.render("first_steps.html", view=steps)
    asked = CellQuery(search, site=site, sort="need")
    worklist = load_leads_worklist(page.session, asked.filter(page.session), cursor)
    return page.render("worklist.html", view=worklist, site=site, search=search, query=asked.query)


@router.get("/cases/{case_id}")
def show_case_page(
    asked: cases.CaseInPath,
    page: PeoplePage,
    listed: AskedCells,
    annotators: Annotated[Literal["named", "alike"], Query()] = "named",
) -> Response:
    """A case: to read, or in full once that is allowed."""
    case = asked.found(page.session)
    blind = case_to_read(page, case)
    if blind is not None:
        if blind.read is not None:
            label_service.note_display(page.context.database, page.session, uuid.UUID(blind.read.id))
        return page.render("read.html", view=blind)
    hidden = cases.hidden_because(page.session, page.principal, case)
    if hidden is not None:
        handle = cases.case_handle(page.keys, page.principal, case.named)
        return page.render(
            "committed.html",
            number=forms.case_number(handle),
            case_id=handle,
            field=cases.has_field(page.session, case.id),
            hidden=hidden,
            late=label_service.has_answered_late(page.session, page.principal, case),
            progress=label_service.get_day_progress(page.session, page.principal, page.zone),
            back=page_back(page),
        )
    by_name = annotators == "named"
    full_view = case_view(page, case.id, by_name=by_name)
    comments = None
    with suppress(cases.BlindReadPending):  # of an annotator who still reads a near-duplicate
        comments = cases.list_comments(page, case)
    cases.note_exposure(page.context.database, page.session, page.principal, case.id)
    way = _way_through(page, case.id, listed)
    return page.render("case.html", view=full_view, listed=listed, way=way, comments=comments)


def _way_through(page: Page, case_id: uuid.UUID, listed: CellQuery) -> tuple[uuid.UUID | None, uuid.UUID | None]:
    """Cells before and after one in the list that a lead came from; annotators go from read to read."""
    if page.principal.blind:
        return None, None
    case, chosen = cases.case_by_id(page.session, case_id), listed.filter(page.session)
    return cases.neighbours_of(page.session, case, chosen, listed.sort, down=listed.down)


@router.post("/reads/next", dependencies=[EVEN_TIME])
def read_next(page: AnnotatorForm) -> Response:
    """Continue with the open read, or lease the next one."""
    held = label_service.list_leases(page.session, page.principal)
    read = held[0] if held else label_service.lease_next_read(page.session, page.context, page.principal)
    if read is None:
        return redirect_to("/worklist")
    return redirect_to(f"/cases/{cases.case_handle(page.keys, page.principal, uuid.UUID(read.case_id))}")


@router.get("/reads/upcoming")
def redirect_to_upcoming_image(page: AnnotatorPage) -> Response:
    """The image that probably comes next, for the browser to fetch ahead: nothing but pixels."""
    handle = upcoming_case(page)
    if handle is None:
        return Response(status_code=204)
    return redirect_to(f"/v1/cases/{handle}/image")


def _respond_to_form(request: Request, path: str) -> Response:
    return redirect_to(path) if "text/html" in request.headers.get("accept", "") else Response(status_code=204)


@router.post("/reads/{handle}/label", dependencies=[EVEN_TIME])
def submit_answer_form(
    handle: str,
    page: AnnotatorForm,
    label: Annotated[PageText, Form(max_length=200)] = "",
    note: _Text = "",
    confidence: Annotated[PageText, Form(max_length=8)] = "",
    second_choice: Annotated[PageText, Form(max_length=200)] = "",
    flag: Annotated[PageText, Form(max_length=8)] = "",
) -> Response:
    """Commit a label, or a correction of one, then continue; sending the form twice stores it once."""
    read_id, position = forms.answer_of_handle(page.keys, page.principal, handle)
    if not label:
        raise InvalidValue("choose a class")
    more = {"second_choice": second_choice or None, "flag": bool(flag)}
    body: label_service.OwnLabelIn = forms.validate_form(
        label_service.OwnLabelIn, label=label, note=note or None, confidence=confidence or None, **more
    )
    if position is not None:
        label_service.correct_answer_once(page.session, page.context, page.principal, read_id, position, body)
        return _respond_to_form(page.request, "/worklist")
    case_id = label_service.answer_read(page.session, page.context, page.principal, read_id, body)
    return _respond_to_form(page.request, f"/cases/{cases.case_handle(page.keys, page.principal, case_id)}")


@router.get("/reads/{handle}/correction")
def show_correction(handle: str, page: AnnotatorPage) -> Response:
    """A case that this annotator has answered, once more and still blind, while the answer may be corrected."""
    read_id = forms.read_of_handle(page.keys, page.principal, handle)
    view = case_to_correct(page, read_id)
    return redirect_to("/worklist") if view is None else page.render("read.html", view=view)


@router.post("/reads/{handle}/decline")
def decline_read(
    handle: str,
    once: forms.IdempotentForm,
    page: AnnotatorForm,
    reason: Annotated[PageText, Form(max_length=40)] = "",
    note: _Text = "",
) -> Response:
    """Decline a read, with a reason, and continue."""
    read_id = forms.read_of_handle(page.keys, page.principal, handle)
    body: label_service.DeclineIn = forms.validate_form(label_service.DeclineIn, reason=reason, note=note or None)
    once(
        page.session,
        body,
        lambda: label_service.record_decline(page.session, page.context, page.principal, read_id, body),
    )
    return _respond_to_form(page.request, "/worklist")


@router.post("/reads/{handle}/release")
def release_read(handle: str, page: AnnotatorForm) -> Response:
    """Give a read back: it may come again."""
    label_service.release_lease(page.session, page.principal, forms.read_of_handle(page.keys, page.principal, handle))
    return redirect_to("/worklist")


def _show_case_of_form(page: Page, label_id: uuid.UUID) -> Response:  # in the path of the form
    return _show_case_again(forms.validate_form(_CaseId, id=page.refused.value("case_id")).id, page)


def _show_case_again(case_id: uuid.UUID, page: Page) -> Response:
    return show_case_page(cases.PathCase(case_id, page.request, page.keys), page, CellQuery())


_Query = Annotated[PageText, Form(max_length=1000)]
_Account = Annotated[PageText, Form(max_length=64)]


def _redirect_to_case(case_id: uuid.UUID, listed: str, part: str = "") -> Response:
    """Back to a cell, in the list that its lead came from."""
    return redirect_to(f"/cases/{case_id}?{urlencode(parse_qsl(listed))}".removesuffix("?") + part)


@router.post("/cases/{case_id}/comments")
@forms.back_to(_show_case_again)
def add_case_comment(
    asked: cases.CaseInPath,
    once: forms.IdempotentForm,
    page: CommentForm,
    text: _Text = "",
    x: Annotated[PageText, Form(max_length=20)] = "",
    y: Annotated[PageText, Form(max_length=20)] = "",
    listed: _Query = "",
    account: _Account = "",
) -> Response:
    """Comment on a case, with a place on its image in per cent or without."""
    forms.require_account(page.keys, page.principal, account)
    case = asked.found(page.session)
    place = {"x": forms.share_of("x", x), "y": forms.share_of("y", y)}
    body: cases.CommentIn = forms.validate_form(cases.CommentIn, text=text, **place)
    once(page.session, body, lambda: cases.add_comment(page, case, body), case_id_of=lambda _: case.id)
    return _redirect_to_case(asked.handle, listed, "#comments")


@router.post("/labels/{label_id}/revise")
@forms.back_to(_show_case_of_form)
def revise_label(
    label_id: uuid.UUID,
    once: forms.IdempotentForm,
    page: AnnotatorForm,
    label: Annotated[PageText, Form(max_length=200)] = "",
    reason: _Text = "",
    case_id: Annotated[PageText, Form(max_length=40)] = "",
) -> Response:
    """Correct one's own label: both stay."""
    body: label_service.RevisionIn = forms.validate_form(label_service.RevisionIn, label=label, reason=reason)
    once(
        page.session,
        body,
        lambda: label_service.revise_case_label(page.session, page.context, page.principal, label_id, body),
    )
    return redirect_to(f"/cases/{forms.validate_form(_CaseId, id=case_id).id}")


@router.post("/labels/{label_id}/retract")
@forms.back_to(_show_case_of_form)
def retract_label(label_id: uuid.UUID, once: forms.IdempotentForm, page: AnnotatorForm, reason: _Text = "") -> Response:
    """Take one's own label back: both stay."""
    body: label_service.RetractionIn = forms.validate_form(label_service.RetractionIn, reason=reason)
    once(
        page.session,
        body,
        lambda: label_service.retract_case_label(page.session, page.context, page.principal, label_id, body),
    )
    return redirect_to("/worklist")


@router.post("/cases/{case_id}/outcome")
@forms.back_to(_show_case_again, {"class": "outcome"})
def settle_cell(
    case_id: uuid.UUID,
    once: forms.IdempotentForm,
    page: ManagerForm,
    outcome: Annotated[PageText, Form(max_length=200)] = "",
    reason: _Text = "",
    by_rule: Annotated[PageText, Form(max_length=8)] = "",
    listed: _Query = "",
    account: _Account = "",
) -> Response:
    """Settle a cell as a class or as split, or by rule."""
    forms.require_account(page.keys, page.principal, account)
    if not outcome and not by_rule:
        raise forms.WrongFields({"outcome": Message("choose a class, or split")})
    chosen = {"by_rule": True} if by_rule else {"split": True} if outcome == cases.SPLIT else {"class": outcome}
    body: OutcomeIn = forms.validate_form(OutcomeIn, **chosen | ({} if by_rule else {"reason": reason}))
    keys = page.context.keys.audit
    once(page.session, body, lambda: settle_case(page.session, keys, page.principal, case_id, body))
    return _redirect_to_case(case_id, listed)


@router.post("/cases/{case_id}/reopening")
@forms.back_to(_show_case_again)
def reopen_cell(
    case_id: uuid.UUID, page: ManagerForm, reason: _Text = "", listed: _Query = "", account: _Account = ""
) -> Response:
    """Take the outcome of a cell back."""
    forms.require_account(page.keys, page.principal, account)
    reopen_case(page.session, page.context.keys.audit, page.principal, case_id, forms.require_reason(reason))
    return _redirect_to_case(case_id, listed)


@router.post("/cases/{case_id}/assignments")
@forms.back_to(_show_case_again)
def assign_cell(
    case_id: uuid.UUID,
    once: forms.IdempotentForm,
    page: ManagerForm,
    annotator: Annotated[PageText, Form(max_length=200)] = "",
    listed: _Query = "",
    account: _Account = "",
) -> Response:
    """Assign a read of a cell to an annotator."""
    forms.require_account(page.keys, page.principal, account)
    body: AssignmentIn = forms.validate_form(AssignmentIn, annotator=annotator)
    keys = page.context.keys.audit
    once(page.session, body, lambda: assign_read(page.session, keys, page.principal, case_id, body))
    return _redirect_to_case(case_id, listed)
