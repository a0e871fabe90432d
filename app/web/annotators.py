"""Pages of annotator models, of an annotator's own reading, and of their closed cases."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Response

from app.accounts.service import GuardedRoute, annotator_of_account
from app.annotators.models import service
from app.annotators.models.service import ReaderFitIn, ReaderSwitchIn
from app.annotators.service import ME, annotator_named, own_reading
from app.cases import service as case_service
from app.database.tables import Case
from app.http.languages import class_name, gettext
from app.http.models import Line, PageText
from app.labels.service import LISTED, labelled_cases
from app.metrics.service import reader_drift
from app.releases.service import class_names, get_champion_alias
from app.web.charts import week_chart
from app.web.forms import back_to, case_number, require_reason, validate_form
from app.web.page import AnnotatorPage, ManagerForm, ManagerPage, Page
from app.web.render import redirect_to

#: Shown at once.
MOST = 20


@dataclass(frozen=True)
class SettledCase:
    """A closed case that its annotator may review."""

    id: uuid.UUID
    # what the annotator knows it by
    handle: uuid.UUID
    number: str
    # name of the class that they gave
    own: str
    # names of the classes that others gave, blind, with how many did, the most first
    others: Sequence[tuple[str, int]]
    # how many of the others said the same
    agrees: int
    # the own class and what most of those said who differ, for the address of their reference cells; empty where nobody
    # differs
    pair: Sequence[tuple[str, str]]

    @property
    def n_others(self) -> int:
        """Number of other annotators."""
        return sum(n for _, n in self.others)

    @property
    def with_most(self) -> bool:
        """Whether most of the others said the same; half of them are not most."""
        return 2 * self.agrees > self.n_others

    @property
    def against_most(self) -> bool:
        """Whether most of the others said something else."""
        return 2 * self.agrees < self.n_others


@dataclass(frozen=True)
class SettledPage:
    """Closed cases of an annotator, and the number of answers after which older ones follow; None if there are none."""

    cases: list[SettledCase]
    older: int | None


def settled_cases(page: Page, after: int) -> SettledPage:
    """Closed cases of an annotator that others have read too, newest first, after the newest answers."""
    # A case that nobody else has read teaches nothing about others; one that is kept closed for a second visit is not
    # listed, as on every page.
    names, settled_rows = class_names(page.session), []
    answered = labelled_cases(page.session, page.principal, after + LISTED)[after:]
    for place, case_id in enumerate(answered, after + 1):
        case = page.session.get(Case, case_id)  # None: a second visit, which stays closed
        if case is None or case.erased_at is not None:
            continue
        if case_service.hidden_because(page.session, page.principal, case_service.ResolvedCase(case_id)) is not None:
            continue
        settled = _build_settled_case(page, case_id, names)
        settled_rows += [] if settled is None else [settled]
        if len(settled_rows) == MOST:
            return SettledPage(settled_rows, place)
    return SettledPage(settled_rows, after + LISTED if len(answered) == LISTED else None)


def _build_settled_case(page: Page, case_id: uuid.UUID, names: dict[str, str]) -> SettledCase | None:
    opinions = case_service.blind_opinions(case_service.label_history(page.session, case_id))
    own = [opinion.label.class_code for opinion in opinions if opinion.annotator == page.principal.name]
    label_counts = Counter(opinion.label.class_code for opinion in opinions if opinion.annotator != page.principal.name)
    if not own or not label_counts:
        return None
    handle = case_service.case_handle(page.keys, page.principal, case_id)
    others = [(class_name(str(code), names), n) for code, n in label_counts.most_common()]
    mine = str(own[0])
    pair = next(
        ([("class", mine), ("class", str(code))] for code, _ in label_counts.most_common() if code != own[0]), []
    )
    known_pair = pair if all(code in names for _, code in pair) else []
    return SettledCase(
        case_id, handle, case_number(handle), class_name(mine, names), others, label_counts[own[0]], known_pair
    )


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.get("/readers")
def show_annotator_models(page: ManagerPage) -> Response:
    """Every version, what was found of it, and the switch; and how annotators went from week to week."""
    models, served = service.list_models(page.session), get_champion_alias(page.session)
    champion_id = None if served is None else str(served.release_id)
    serves = service.switch_position(page.session).serves
    drift = [] if served is None else reader_drift(page.session, page.context.settings.home)
    charts = {row.annotator: week_chart(row.weeks) for row in drift}
    return page.render(
        "readers.html",
        models=models,
        champion=champion_id,
        serves=serves,
        drift=drift,
        charts=charts,
    )


@router.get("/readers/{version}")
def show_annotator_model(version: Annotated[int, Path(ge=1, le=2**31 - 1)], page: ManagerPage) -> Response:
    """A version, annotator by annotator."""
    model = service.show_model_detail(page.session, version)
    return page.render("reader_model.html", model=model, names=model.class_names)


@router.post("/readers/fit")
@back_to(show_annotator_models, {"": "experts"})
def fit_annotator_model(page: ManagerForm, experts: Annotated[PageText, Form(max_length=2000)] = "") -> Response:
    """Fit a model on the labels collected so far, in a job."""
    named = [name.strip() for name in experts.split(",") if name.strip()]
    service.request_model_fit(page.session, page.context, page.principal, validate_form(ReaderFitIn, experts=named))
    return redirect_to("/jobs")


@router.post("/readers/switch")
@back_to(show_annotator_models)
def switch_annotator_model(
    page: ManagerForm,
    revision: Annotated[int, Form(ge=0, le=2**31 - 1)],
    version: Annotated[PageText, Form(max_length=10)] = "",
    reason: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Weigh labels by a version, or take annotators as alike again."""
    require_reason(reason)
    body = validate_form(ReaderSwitchIn, version=version or None, reason=reason)
    service.switch_model(page.session, page.context, page.principal.name, body, revision)
    return redirect_to("/readers")


#: Flags shown at once.
_FLAGGED = 200


@router.get("/me")
def show_own_reading(page: AnnotatorPage) -> Response:
    """How the caller reads."""
    is_annotator = annotator_of_account(page.session, page.principal.account_id) is not None
    view = own_reading(page.session, page.principal, ME) if is_annotator else None
    return page.render("reading.html", view=view, title=gettext("My statistics"), names=class_names(page.session))


@router.get("/settled")
def show_settled_cases(page: AnnotatorPage, after: Annotated[int, Query(ge=0, le=1_000_000)] = 0) -> Response:
    """What the caller and the others chose in closed cases; recorded as shown."""
    view = settled_cases(page, after)
    for case in view.cases:
        case_service.note_exposure(page.context.database, page.session, page.principal, case.id)
    return page.render("settled.html", view=view, after=after)


@router.get("/flagged")
def show_flagged_labels(page: ManagerPage) -> Response:
    """Cases that annotators want an admin to look at, newest first."""
    rows = [
        (page.session.get_one(Case, row.label.case_id), row)
        for row in case_service.flagged_labels(page.session, _FLAGGED)
    ]
    return page.render("flagged.html", rows=rows, most=_FLAGGED, names=class_names(page.session))


@router.get("/annotators/{name}")
def show_annotator_reading(name: Line, page: ManagerPage) -> Response:
    """How an annotator reads, for admins."""
    view = None if annotator_named(page.session, name) is None else own_reading(page.session, page.principal, name)
    title = gettext("Labels of %(name)s", name=name)
    return page.render("reading.html", view=view, title=title, names=class_names(page.session))
