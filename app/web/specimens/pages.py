"""Pages of specimens: the list, and the differential that a lead reads, prints and signs."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Response

from app.accounts.service import GuardedRoute, is_sign_in_fresh
from app.cases import service as cases
from app.database.tables.values import SpecimenState
from app.http.errors import InvalidValue, NotFound
from app.http.models import PageText
from app.outcomes.service import assign_reads
from app.releases.service import class_names
from app.specimens import service
from app.specimens.service import MeasuredShares, SignatureIn, SignedVersionOut, SpecimenOut
from app.triage.service import list_eligible_annotators
from app.web.forms import IdempotentForm, back_to, require_account, validate_form
from app.web.page import Day, LeadPage, ManagerForm, Page
from app.web.render import redirect_to

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
#: Specimens on one page of the list, and earlier ones of a patient that are compared.
PAGE_LENGTH, EARLIER = 50, 4
_Text = Annotated[PageText, Query(max_length=200)]
_Day = Annotated[Day | Literal[""], Query()]


@dataclass(frozen=True)
class SpecimenQuery:
    """Which specimens the list shows."""

    search: str = ""
    state: SpecimenState | Literal[""] = ""
    site: str = ""
    on: date | Literal[""] = ""
    since: date | Literal[""] = ""

    def address(self, **more: object) -> str:
        """Address of the list."""
        query = {name: value for name, value in (vars(self) | more).items() if value}
        return f"/specimens?{urlencode(query)}" if query else "/specimens"


def _query_of(
    search: _Text = "",
    state: Annotated[SpecimenState | Literal[""], Query()] = "",
    site: _Text = "",
    on: _Day = "",
    since: _Day = "",
) -> SpecimenQuery:
    return SpecimenQuery(search.strip(), state, site, on, since)


@router.get("/specimens")
def show_specimens(
    page: LeadPage,
    asked: Annotated[SpecimenQuery, Depends(_query_of)],
    cursor: Annotated[PageText | None, Query(max_length=100)] = None,
) -> Response:
    """Specimens, the newest first."""

    def midnight(day: date) -> datetime:
        return datetime.combine(day, time(), page.zone)

    listed = service.list_specimens(
        page.session,
        cursor,
        PAGE_LENGTH,
        state=asked.state or None,
        search=asked.search or None,
        site=asked.site or None,
        taken=(midnight(asked.on), midnight(asked.on + timedelta(days=1))) if asked.on else None,
        after=midnight(asked.since) if asked.since else None,
    )
    sites = service.list_specimen_sites(page.session)
    return page.render("specimens.html", view=listed, asked=asked, sites=sites, names=class_names(page.session))


@dataclass(frozen=True)
class SpecimenView:
    """A specimen with the cells that decide it, earlier ones of its patient and its neighbours in the list."""

    shown: SpecimenOut
    names: dict[str, str]
    deciding: Sequence[cases.CaseOut]
    annotators: list[tuple[str, str]]
    earlier: Sequence[SpecimenOut]
    # the next newer and the next older specimen
    way: tuple[uuid.UUID | None, uuid.UUID | None]
    # newest first; the one whose signed shares are shown instead of those of now, if any
    signatures: Sequence[SignedVersionOut]
    signed: SignedVersionOut | None
    # whether the person's sign-in at their provider is recent enough to sign; None for people who sign by password
    fresh: bool | None
    form_key: str

    @property
    def scale(self) -> float:
        """End of the axis of shares: the largest limit, rounded up to a tenth."""
        limits = [share.interval[1] for group in self.shown.groups for share in (group.slide, group.patient)]
        return min(1.0, (int(10 * max(limits, default=0.0)) + 1) / 10)


def _view(page: Page, specimen_id: uuid.UUID, number: int | None = None) -> SpecimenView:
    session = page.session
    specimen, signatures = service.show_specimen(session, specimen_id), service.list_signatures(session, specimen_id)
    signed = next((one for one in signatures if one.number == number), None)
    if number is not None:
        if signed is None:
            raise NotFound("there is no such signature")
        then = {name: value for name, value in signed.document.items() if name in MeasuredShares.model_fields}
        specimen = specimen.model_copy(update=vars(MeasuredShares(**then)) | {"deciding_cells": [], "stale": False})
    deciding = [uuid.UUID(one.case) for one in specimen.deciding_cells]
    return SpecimenView(
        specimen,
        class_names(session, uuid.UUID(specimen.release) if specimen.release else None),
        cases.list_cases_in_order(session, deciding),
        [(one.name, one.name) for one in list_eligible_annotators(session)],
        service.earlier_specimens(session, specimen_id, EARLIER),
        service.neighbouring_specimens(session, specimen_id),
        signatures,
        signed,
        is_sign_in_fresh(session, page.principal) if page.principal.session_id else None,
        uuid.uuid4().hex,
    )


@router.get("/specimens/{specimen_id}")
def show_specimen_page(
    specimen_id: uuid.UUID,
    page: LeadPage,
    signed: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    assigned: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    chosen: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """The differential of a specimen as it is now, or as somebody signed it."""
    page.session.rollback()  # what is read from here on includes what is measured now
    service.measure_if_stale(specimen_id, page.context)
    return page.render("specimen.html", view=_view(page, specimen_id, signed), assigned=assigned, chosen=chosen)


@router.post("/specimens/{specimen_id}/assignments")
@back_to(show_specimen_page)
def assign_deciding_cells(
    specimen_id: uuid.UUID,
    once: IdempotentForm,
    page: ManagerForm,
    cell: Annotated[list[uuid.UUID] | None, Form(max_length=service.MOST_DECIDING)] = None,
    annotator: Annotated[PageText, Form(max_length=200)] = "",
    account: Annotated[PageText, Form(max_length=64)] = "",
) -> Response:
    """Assign a read of each chosen cell to an annotator."""
    require_account(page.keys, page.principal, account)
    if not cell or not annotator:
        raise InvalidValue("choose cells and an annotator")
    chosen, keys = sorted(set(cell)), page.context.keys.audit
    answer = once(
        page.session,
        [*map(str, chosen), annotator],
        lambda: (201, assign_reads(page.session, keys, page.principal, chosen, annotator)),
    )
    n_assigned = json.loads(bytes(answer.body))["n_assigned"]
    return redirect_to(f"/specimens/{specimen_id}?assigned={n_assigned}&chosen={len(chosen)}")


_Typed = Annotated[PageText, Form(max_length=2000)]
_Number = Annotated[int | Literal[""], Form(ge=1, le=2**31 - 1)]


@router.post("/specimens/{specimen_id}/signatures")
@back_to(show_specimen_page)
def sign_specimen_page(
    specimen_id: uuid.UUID,
    once: IdempotentForm,
    page: ManagerForm,
    meaning: Annotated[PageText, Form(max_length=20)] = "",
    password: Annotated[PageText, Form(max_length=1000)] = "",
    comment: _Typed = "",
    reason: _Typed = "",
    version: _Number = "",
    amends: _Number = "",
    account: Annotated[PageText, Form(max_length=64)] = "",
) -> Response:
    """Sign the shares that the page showed."""
    require_account(page.keys, page.principal, account)
    body: SignatureIn = validate_form(
        SignatureIn,
        meaning=meaning,
        version=version or None,
        amends=amends or None,
        comment=comment or None,
        reason=reason or None,
        password=password or None,
    )
    service.prepare_signature(page, specimen_id, body.password)
    without = body.model_dump(exclude={"password"})
    once(
        page.session, without, lambda: service.sign_specimen(page, specimen_id, body), case_id_of=lambda _: specimen_id
    )
    return redirect_to(f"/specimens/{specimen_id}#signature")
