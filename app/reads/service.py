"""Submitting a label, and the posterior that follows from all of them."""

import uuid

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import audit
from app.auth.principal import Principal
from app.cases import queries
from app.cases.queries import ActiveLabel
from app.cases.stored import stored_prediction
from app.context import Context
from app.database import insert_if_absent
from app.errors import AlreadyLabelled, Forbidden, Invalid
from app.reads.schemas import LabelIn, LabelOut, SubmittedOut
from app.releases.queries import class_codes, existing_release
from app.schemas import PosteriorOut
from app.tables import Annotator, Label, new_id, now
from app.triage import summarise
from ml.distributions import has_concentration


def _annotator_of(session: Session, principal: Principal, body: LabelIn) -> tuple[Annotator, bool]:
    """Who gave the label, and whether blind: oneself, or a named person of an outside system.

    Raises:
        Forbidden: somebody names another annotator without the scope for it.
        Invalid: an outside system names nobody.
    """
    if "labels:write" in principal.scopes:
        if body.annotator is None or body.blind is None:
            raise Invalid("name the annotator, and say whether the read was blind")
        found = session.execute(select(Annotator).where(Annotator.name == body.annotator)).scalar_one_or_none()
        if found is not None and found.account_id is not None:
            raise Forbidden("this annotator reads here; its labels come from its own account only")
        return found or _new_annotator(session, body.annotator, None), body.blind
    if body.annotator not in {None, principal.name} or body.blind is False:
        raise Forbidden("you can only give your own labels, which are blind")
    own = session.execute(select(Annotator).where(Annotator.account_id == principal.account_id)).scalar_one_or_none()
    return own or _new_annotator(session, principal.name, principal.account_id), True


def _new_annotator(session: Session, name: str, account_id: uuid.UUID | None) -> Annotator:
    values = {"id": new_id(), "created_at": now(), "name": name, "account_id": account_id}
    insert_if_absent(session, Annotator, values)  # another request may be making the same one
    annotator = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one()
    if annotator.account_id != account_id:
        raise Forbidden("this name belongs to another annotator; ask for another one")
    return annotator


def submit_label(
    session: Session, context: Context, principal: Principal, case_id: uuid.UUID, body: LabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label and compute the posterior from the stored prior and all counts.

    Returns:
        201, the label and the posterior.

    Raises:
        NotFound: no such case.
        Invalid: an unknown class.
        AlreadyLabelled: this annotator labelled the case before.
    """
    case = queries.case_by_id(session, case_id, lock=True)
    classes = class_codes(existing_release(session, queries.latest_prediction(session, case_id).release_id))
    if body.label not in classes:
        raise Invalid(f"unknown class; the classes are {', '.join(classes)}")
    annotator, blind = _annotator_of(session, principal, body)
    given = select(Label.id).where(Label.case_id == case.id, Label.annotator_id == annotator.id).limit(1)
    if session.execute(given).first() is not None:
        raise AlreadyLabelled("this annotator has labelled the case; a label is given once")
    label = Label(
        case_id=case.id,
        annotator_id=annotator.id,
        kind="label",
        class_code=body.label,
        confidence=body.confidence,
        note=body.note,
        blind=blind,
        round="planned",
        created_by=principal.account_id,
    )
    session.add(label)
    session.flush()
    result = SubmittedOut(
        label=label_out(ActiveLabel(label, annotator.name)), posterior=posterior(session, context, case_id)
    )
    details = {"case": str(case.id), "annotator": str(annotator.id), "label": body.label, "blind": blind}
    audit.record(session, context.secret, actor=principal.name, action="label.add", object_id=label.id, details=details)
    return 201, result


def label_out(active: ActiveLabel) -> LabelOut:
    """A label as the API shows it."""
    label = active.label
    return LabelOut(
        id=str(label.id),
        case_id=str(label.case_id),
        annotator=active.annotator,
        label=label.class_code or "",
        confidence=label.confidence,
        note=label.note,
        blind=label.blind,
        round=label.round,
        kind=label.kind,
        created_at=label.created_at,
    )


def posterior(
    session: Session, context: Context, case_id: uuid.UUID, exclude_annotator: str | None = None
) -> PosteriorOut:
    """Posterior from the stored prior and all active blind labels, never from an earlier posterior.

    Args:
        session: of the request.
        context: parts of the service.
        case_id: case.
        exclude_annotator: name of an annotator whose label is left out.

    Raises:
        NotFound: no such case.
    """
    queries.case_by_id(session, case_id)
    prediction = queries.latest_prediction(session, case_id)
    classes = class_codes(existing_release(session, prediction.release_id))
    counts = np.zeros((1, len(classes)), dtype=np.int64)
    for active in queries.labels_of_case(session, case_id):
        if active.label.blind and active.annotator != exclude_annotator and active.label.class_code in classes:
            counts[0, classes.index(active.label.class_code)] += 1
    prior = stored_prediction(prediction)
    # without a concentration it is unknown how much a label weighs, and the posterior stays the prior
    posterior = prior.posterior(counts) if has_concentration(prior) else prior
    summary = summarise(posterior, context.policy.target_error)
    intervals = summary.class_intervals
    return PosteriorOut(
        release=str(prediction.release_id),
        class_probs=dict(zip(classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        class_intervals=None if intervals is None else dict(zip(classes, intervals, strict=True)),
        n_labels=int(counts.sum()),
        label_counts=dict(zip(classes, counts[0].tolist(), strict=True)),
        majority_prob=summary.majority_prob,
        further_labels_expected=summary.further_labels_expected,
    )
