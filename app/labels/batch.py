"""Labels of an outside system, many at once: each is its own decision, and a hundred are one transaction and event."""

import uuid
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts.service import find_outside_annotator, name_key
from app.audit.chain import events
from app.context import Call, ServiceContext
from app.database.idempotency import SEVERAL_CASES, Once
from app.database.tables import Case, CountedLabel, Label
from app.http.errors import Conflict, Forbidden, InvalidValue, NotFound
from app.http.principal import Principal
from app.labels.leases import AlreadyLabelled, LockedCases
from app.labels.schemas import LabelBatchIn, LabelBatchOut, LabelResultOut, OutsideLabelIn
from app.labels.submission import (
    add_first_label,
    adjudicate_after,
    head_of_chain,
    outside_author,
    refuse_future,
    refuse_second_label,
    require_classes,
)
from ml.messages import Message

# labels of a transaction, for which others wait
_AT_ONCE = 100


def submit_batch(call: Call, once: Once, body: LabelBatchIn) -> Response:
    """Store labels, each for an annotator and a cell that it names, and answer a result for each."""
    with call.context.database.read() as reading:
        answered = once.answered(reading)
    if answered:
        return once.replay(call.session, body)
    results: list[LabelResultOut] = []
    for start in range(0, len(body.labels), _AT_ONCE):  # before the call's own transaction begins
        with call.context.database.write() as session:
            results += store_labels(session, call.context, call.principal, body.labels[start : start + _AT_ONCE])
    n = Counter(result.status for result in results)
    answer = LabelBatchOut(results=results, n_stored=n["stored"], n_known=n["known"], n_refused=n["refused"])
    return once(call.session, body, lambda: (207, answer), case_id_of=lambda _: SEVERAL_CASES)


def store_labels(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    labels: Sequence[OutsideLabelIn],
    *,
    by_class: bool = False,
) -> list[LabelResultOut]:
    """Store labels in one transaction, described by one event; ``by_class``: known by annotator, cell and class."""
    # all cells before anything of one is written; requests are passed over while others have them, as for one label
    cases = LockedCases(session, {label.external_id for label in labels})
    results, stored = [], []
    for body in labels:
        result, label = _store_label(session, principal, cases, body, by_class=by_class)
        results.append(result)
        stored += [] if label is None else [label]
    if stored:
        events.record_event(
            session,
            context.keys.audit,
            actor=principal.name,
            action="label.batch",
            object_id="labels",
            details={"labels": [str(label.id) for label in stored]},
            cases=sorted({label.case_id for label in stored}),
        )
    return results


def _store_label(
    session: Session, principal: Principal, cases: LockedCases, body: OutsideLabelIn, *, by_class: bool
) -> tuple[LabelResultOut, Label | None]:
    """Store a label, unless the annotator has given it before; what is wrong with it is its result."""
    result = LabelResultOut(external_id=body.external_id, annotator=body.annotator, status="stored")
    try:  # all that may refuse it, before anything is written: without savepoints, which the audit chain has not
        case = _require_cell(cases.case(body.external_id))
        at_hand, facts = cases.context(session, case), cases.history[case.id]
        require_classes(at_hand.classes, body)
        author = outside_author(session, case, body, cases)
        head = head_of_chain(facts.history, author.annotator)
        same = head is not None and (
            _is_same_class(head.class_code, body, Message("label {label}", label=head.id))
            if by_class
            else _is_same(head, body)
        )
        if head is not None and same:
            return result.model_copy(update={"status": "known", "label_id": str(head.id)}), None
        refuse_second_label(facts.history, author.annotator)
    except (Conflict, Forbidden, InvalidValue, NotFound) as problem:
        return result.model_copy(update={"status": "refused", "detail": problem.detail}), None
    given = add_first_label(session, principal, at_hand, author, body, facts)
    adjudicate_after(session, at_hand, given)
    facts.history.append(given.history[-1])
    return result.model_copy(update={"label_id": str(given.label.id)}), given.label


def _require_cell(case: Case | None) -> Case:
    """Refuse a cell that is not stored, or was erased."""
    if case is None:
        raise NotFound("there is no such cell")
    if case.erased_at is not None:
        raise Conflict("the patient of this cell was erased")
    return case


def _is_same_class(class_code: str | None, body: OutsideLabelIn, stored: str) -> bool:
    """Whether an annotator has given a cell this class already; another one would be a change, and is refused."""
    if class_code not in (None, body.label):
        raise AlreadyLabelled(
            "{annotator} labelled this cell {class_code} ({stored}); send a revision of that label, or remove this row",
            annotator=body.annotator,
            class_code=class_code,
            stored=stored,
        )
    return class_code is not None


def _is_same(head: Label, body: OutsideLabelIn) -> bool:
    """Whether a label is the one that is sent; what its annotator had seen may have unblinded it when it came."""
    note = None if head.remark is None else head.remark.note
    stored = (head.class_code, head.confidence, head.second_choice, head.flagged, note, head.round, head.given_at)
    sent = (body.label, body.confidence, body.second_choice, body.flag, body.note, body.round or "planned", body.at)
    return stored == sent and (head.blind == body.blind or head.post_reveal)


class LabelReview:
    """Decides what would become of labels one after the other, and stores nothing."""

    def __init__(self) -> None:
        # classes by cell and annotator of the labels so far
        self._given: dict[tuple[str, str], str] = {}
        # annotators by the names of the labels so far; None of those who have given none
        self._annotators: dict[str, uuid.UUID | None] = {}

    def review(
        self, session: Session, labels: Sequence[OutsideLabelIn], new_cells: Container[str]
    ) -> list[LabelResultOut]:
        """Decide on labels of stored cells, and of cells that the same import would store."""
        external_ids = {label.external_id for label in labels}
        named = select(Case).where(Case.external_id.in_(external_ids))
        cases = {case.external_id: case for case in session.execute(named).scalars()}
        given = (
            select(CountedLabel)
            .where(CountedLabel.case_id.in_([case.id for case in cases.values()]))
            .order_by(CountedLabel.position)
        )
        heads = {(label.case_id, label.annotator_id): label for label in session.execute(given).scalars()}
        return [self._review_label(session, cases, heads, new_cells, body) for body in labels]

    def _review_label(
        self,
        session: Session,
        cases: Mapping[str, Case],
        heads: Mapping[tuple[uuid.UUID, uuid.UUID], CountedLabel],
        new_cells: Container[str],
        body: OutsideLabelIn,
    ) -> LabelResultOut:
        result = LabelResultOut(external_id=body.external_id, annotator=body.annotator, status="known")
        try:
            case = None if body.external_id in new_cells else _require_cell(cases.get(body.external_id))
            refuse_future(session, body)
            annotator_id = self._find_annotator(session, body.annotator or "")
            key = body.external_id, str(annotator_id or name_key(body.annotator or ""))
            head = heads.get((case.id, annotator_id)) if case and annotator_id else None
            if head is not None and _is_same_class(head.class_code, body, Message("label {label}", label=head.id)):
                return result
            if _is_same_class(self._given.get(key), body, Message("earlier in this import")):
                return result
        except (Conflict, Forbidden, InvalidValue, NotFound) as problem:
            return result.model_copy(update={"status": "refused", "detail": problem.detail})
        self._given[key] = body.label
        return result.model_copy(update={"status": "stored"})

    def _find_annotator(self, session: Session, name: str) -> uuid.UUID | None:
        if name not in self._annotators:
            annotator = find_outside_annotator(session, name)
            self._annotators[name] = None if annotator is None else annotator.id
        return self._annotators[name]
