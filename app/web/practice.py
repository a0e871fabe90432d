"""HTML routes of practice: sets and decisions for admins, runs for annotators."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Form, Response

from app.accounts.service import GuardedRoute
from app.annotators.practice import service as practice_service
from app.cases.service import note_exposure
from app.http.errors import InvalidValue
from app.http.models import PageText
from app.releases.service import class_names
from app.web.forms import IdempotentForm, as_number, back_to, validate_form
from app.web.page import AnnotatorForm, AnnotatorPage, ManagerForm, PracticePage
from app.web.render import redirect_to

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Short = Annotated[PageText, Form(max_length=100)]


@router.get("/practice")
def show_practice(page: PracticePage) -> Response:
    """To annotators their sets and runs; to admins every set, and who may read alone."""
    if "manage" not in page.principal.scopes:
        return page.render("practice.html", view=practice_service.own_practice(page.session, page.principal))
    practice_sets, people = practice_service.list_sets(page.session), practice_service.list_qualified(page.session)
    names, form_key = class_names(page.session), uuid.uuid4().hex
    return page.render("practice_sets.html", sets=practice_sets, people=people, names=names, form_key=form_key)


@router.post("/practice/runs")
def begin_practice_run(page: AnnotatorForm, set_id: Annotated[PageText, Form(alias="set")] = "") -> Response:
    """Begin a run of a set, or go on with it."""
    _, run = practice_service.begin_run(
        page.session, page.context, page.principal, validate_form(practice_service.RunIn, set=set_id)
    )
    return redirect_to(f"/practice/runs/{run.id}")


@router.get("/practice/runs/{run_id}")
def show_run(run_id: uuid.UUID, page: AnnotatorPage) -> Response:
    """The next cell of a run, or its end."""
    run = practice_service.show_run(page.session, page.principal, run_id)
    if run.item is None:
        return page.render("practice_end.html", run=run)
    item = practice_service.PracticeItemOut(item=run.item, label=None, feedback=None, run=run.id)
    return page.render("practice_cell.html", run=run, shown=item)


@router.get("/practice/items/{item_id}")
def show_item(item_id: uuid.UUID, page: AnnotatorPage) -> Response:
    """A cell of a run: to be answered, or in training how others answered."""
    item = practice_service.show_item(page.session, page.principal, item_id)
    run = practice_service.show_run(page.session, page.principal, uuid.UUID(item.run))
    if item.feedback is not None and item.feedback.label_counts is not None:
        case_id = practice_service.case_of_item(page.session, page.principal, item_id)
        note_exposure(page.context.database, page.session, page.principal, case_id)
    return page.render("practice_cell.html", run=run, shown=item)


@router.post("/practice/items/{item_id}/answer")
def answer_practice_cell(
    item_id: uuid.UUID, page: AnnotatorForm, label: Annotated[PageText, Form(max_length=200)] = ""
) -> Response:
    """Answer a cell, then see how others answered, or go on; sending the form twice stores it once."""
    if not label:
        raise InvalidValue("choose a class")
    _, answered = practice_service.answer_item(
        page.session,
        page.context,
        page.principal,
        item_id,
        validate_form(practice_service.PracticeAnswerIn, label=label),
    )
    return redirect_to(
        f"/practice/runs/{answered.run.id}" if answered.feedback is None else f"/practice/items/{item_id}"
    )


@router.post("/practice/sets")
@back_to(show_practice)
def add_set(
    page: ManagerForm,
    name: _Short = "",
    purpose: _Short = "",
    n_cells: _Short = "",
    n_per_run: _Short = "",
    min_labels: _Short = "",
    borderline_share: _Short = "",
) -> Response:
    """Choose settled cells for a set."""
    numbers = {"n_cells": n_cells, "n_per_run": n_per_run, "min_labels": min_labels}
    given = {
        field: as_number(text) for field, text in (numbers | {"borderline_share": borderline_share}).items() if text
    }
    body: practice_service.PracticeSetIn = validate_form(
        practice_service.PracticeSetIn, name=name.strip(), purpose=purpose, **given
    )
    practice_service.add_set(page.session, page.context, page.principal, body)
    return redirect_to("/practice")


@router.post("/practice/sets/{set_id}/retirement")
def retire_practice_set(set_id: uuid.UUID, page: ManagerForm) -> Response:
    """Let nobody begin a run of a set any more."""
    practice_service.retire_set(page.session, page.context, page.principal, set_id)
    return redirect_to("/practice")


@router.post("/practice/decisions")
@back_to(show_practice)
def decide_qualification(
    once: IdempotentForm,
    page: ManagerForm,
    name: Annotated[PageText, Form(max_length=200)] = "",
    kind: _Short = "",
    reason: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Qualify an annotator by hand, withdraw it, or allow further attempts; sending the form twice decides once."""
    body: practice_service.DecisionIn = validate_form(practice_service.DecisionIn, kind=kind, reason=reason)
    once(
        page.session,
        (name, body),
        lambda: practice_service.add_qualification_decision(page.session, page.context, page.principal, name, body),
    )
    return redirect_to("/practice")
