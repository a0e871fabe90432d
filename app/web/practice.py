"""HTML routes of practice: sets and decisions for admins, runs for annotators."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.history import class_names
from app.annotators.practice import answers, sets
from app.annotators.practice.schemas import DecisionIn, PracticeAnswerIn, PracticeItemOut, PracticeSetIn, RunIn
from app.cases.blindness import note_exposure
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.errors import Invalid
from app.http.models import PageText
from app.http.principal import Principal
from app.web.forms import IdempotentForm, as_number, checked
from app.web.render import go, page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Annotator = Annotated[Principal, Depends(Policy("reads:own"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_People = Annotated[Principal, Depends(Policy("reads:own", "manage"))]
_Short = Annotated[PageText, Form(max_length=100)]


@router.get("/practice")
def practice(request: Request, principal: _People, session: Reader) -> Response:
    """To annotators their sets and runs; to admins every set, and who may read alone."""
    if "manage" not in principal.scopes:
        return page(request, "practice.html", principal, view=answers.own_practice(session, principal))
    shown, people = sets.list_sets(session), sets.list_qualified(session)
    names, form_key = class_names(session), uuid.uuid4().hex
    return page(request, "practice_sets.html", principal, sets=shown, people=people, names=names, form_key=form_key)


@router.post("/practice/runs")
def begin(
    context: Parts, principal: _Annotator, session: Writer, set_id: Annotated[PageText, Form(alias="set")] = ""
) -> Response:
    """Begin a run of a set, or go on with it."""
    _, run = answers.begin(session, context, principal, checked(RunIn, set=set_id))
    return go(f"/practice/runs/{run.id}")


@router.get("/practice/runs/{run_id}")
def show_run(run_id: uuid.UUID, request: Request, principal: _Annotator, session: Reader) -> Response:
    """The next cell of a run, or its end."""
    run = answers.show_run(session, principal, run_id)
    if run.item is None:
        return page(request, "practice_end.html", principal, run=run)
    shown = PracticeItemOut(item=run.item, label=None, feedback=None, run=run.id)
    return page(request, "practice_cell.html", principal, run=run, shown=shown)


@router.get("/practice/items/{item_id}")
def show_item(item_id: uuid.UUID, request: Request, context: Parts, principal: _Annotator, session: Reader) -> Response:
    """A cell of a run: to be answered, or in training how others answered."""
    shown = answers.show_item(session, principal, item_id)
    run = answers.show_run(session, principal, uuid.UUID(shown.run))
    if shown.feedback is not None and shown.feedback.label_counts is not None:
        case_id = answers.case_of_item(session, principal, item_id)
        note_exposure(context.database, session, principal, case_id)
    return page(request, "practice_cell.html", principal, run=run, shown=shown)


@router.post("/practice/items/{item_id}/answer")
def answer(
    item_id: uuid.UUID,
    context: Parts,
    principal: _Annotator,
    session: Writer,
    label: Annotated[PageText, Form(max_length=200)] = "",
) -> Response:
    """Answer a cell, then see how others answered, or go on; sending the form twice stores it once.

    Raises:
        Invalid: no class was chosen.
    """
    if not label:
        raise Invalid("choose a class")
    _, answered = answers.answer(session, context, principal, item_id, checked(PracticeAnswerIn, label=label))
    return go(f"/practice/runs/{answered.run.id}" if answered.feedback is None else f"/practice/items/{item_id}")


@router.post("/practice/sets")
def add_set(
    context: Parts,
    principal: _Manager,
    session: Writer,
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
    body: PracticeSetIn = checked(PracticeSetIn, name=name.strip(), purpose=purpose, **given)
    sets.add_set(session, context, principal, body)
    return go("/practice")


@router.post("/practice/sets/{set_id}/retirement")
def retire(set_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Let nobody begin a run of a set any more."""
    sets.retire(session, context, principal, set_id)
    return go("/practice")


@router.post("/practice/decisions")
def decide(
    context: Parts,
    principal: _Manager,
    once: IdempotentForm,
    session: Writer,
    name: Annotated[PageText, Form(max_length=200)] = "",
    kind: _Short = "",
    reason: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Qualify an annotator by hand, withdraw it, or allow further attempts; sending the form twice decides once."""
    body: DecisionIn = checked(DecisionIn, kind=kind, reason=reason)
    once(session, (name, body), lambda: sets.decide(session, context, principal, name, body))
    return go("/practice")
