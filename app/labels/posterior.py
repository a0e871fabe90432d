"""Posterior of a case from its stored prior and blind labels, and adjudication where these leave it undecided."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from app.annotators.models.service import get_model_switch, model_in_use, model_of
from app.audit.chain import events
from app.audit.chain.keys import DerivedKey
from app.cases import service as cases
from app.cases.service import NamedLabel, blind_opinions, label_history, provisional_annotator_ids
from app.context import ServiceContext
from app.database.tables import (
    Annotator,
    Case,
    CasePrediction,
    Read,
    ReaderDraw,
    ReaderModelInUse,
    ReadRequest,
    time_of,
)
from app.http.models import AnswerSetOut, ConsensusOut, PosteriorOut
from app.labels.leases import LockedCaseContext, lock_case_context
from app.labels.queries import own_mass
from app.predictions.service import AnswerSetQuery, build_answer_set, current_published_sets, stored_prediction
from app.releases.service import class_codes, existing_release
from app.triage import service as triage_service
from ml.annotations import Annotations
from ml.annotators.confusions import ReaderModel, describe_annotator_habit
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution, has_concentration
from ml.util.arrays import IntArray


@dataclass(frozen=True)
class WeightedPosterior:
    """Predictive distribution of the population's next answer, after labels by named annotators."""

    version: int
    # of the population's answers (N = 1)
    distribution: DirichletMixtureCpe


def weighted_posterior(
    in_use: tuple[int, ReaderModel], prior: PredictiveDistribution, classes: list[str], labels: Sequence[NamedLabel]
) -> WeightedPosterior | None:
    """Weight the labels of a case by their annotators; None where there is nothing to weight."""
    if not labels or len(in_use[1].population) != len(classes):
        return None
    version, model = in_use
    long, names = _annotations_of_case(labels, classes), [row.annotator for row in labels]
    return WeightedPosterior(version, model.answers(prior, long, names))


def _annotations_of_case(labels: Sequence[NamedLabel], classes: list[str]) -> Annotations:
    n = len(labels)
    given = np.array([classes.index(str(row.label.class_code)) for row in labels], dtype=np.int64)
    return Annotations(np.zeros(n, dtype=np.int64), np.arange(n), given, 1, n, len(classes))


def expected_gains_of_next(
    session: Session, prediction: CasePrediction, classes: list[str], labels: Sequence[NamedLabel], names: Sequence[str]
) -> list[float] | None:
    """Expected gain of one more label of a case by each of these annotators; None where no model is in use."""
    in_use, prior = model_in_use(session, prediction.release_id), stored_prediction(prediction)
    if in_use is None or not has_concentration(prior) or len(in_use[1].population) != len(classes):
        return None
    model = in_use[1]
    usable_labels = [row for row in labels if row.label.class_code in classes]
    given = [row.annotator for row in usable_labels]
    long = _annotations_of_case(usable_labels, classes)
    return [float(gain) for gain in model.expected_gains(prior, long, given, names)[:, 0]]


def remarks_on(model: ReaderModel, annotators: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a sentence for each annotator whose answers differ from those of the others."""
    return [sentence for name in annotators if (sentence := describe_annotator_habit(model, name, names)) is not None]


#: Labels of an image unlike those of the release, from which on its posterior is shown in full.
SHOWN_FROM = 2


@dataclass(frozen=True)
class CasePosterior:
    """Posterior of one case."""

    # whose prediction is the prior
    release_id: uuid.UUID
    classes: list[str]
    # (1, K) blind opinions
    label_counts: IntArray
    # after them; without a concentration it is unknown how much a label weighs, and it is the prior
    distribution: PredictiveDistribution
    # whether the image is unlike those that the release was made from, and fewer than two labels say more
    withheld: bool
    # version of the model by which labels are weighed by who gave them; None: annotators are alike
    reader_model: int | None
    # the distribution that takes annotators as alike; what is calibrated on that reads it
    alike: PredictiveDistribution

    @property
    def n_labels(self) -> int:
        """Number of labels that entered."""
        return int(self.label_counts.sum())


def posterior_of(
    session: Session,
    prediction: CasePrediction,
    classes: list[str],
    labels: Sequence[NamedLabel],
    exclude_annotator: str | None = None,
    *,
    in_use: ReaderModelInUse | None,
    by_name: bool = True,
) -> CasePosterior:
    """Posterior of a case."""
    counted = [row for row in labels if row.annotator != exclude_annotator and row.label.class_code in classes]
    counts = np.zeros((1, len(classes)), dtype=np.int64)
    for row in counted:
        counts[0, classes.index(str(row.label.class_code))] += 1
    prior = stored_prediction(prediction)
    learns = has_concentration(prior)
    alike = prior.posterior(counts) if learns else prior
    model = model_of(session, in_use, prediction.release_id) if by_name and learns else None
    named = None if model is None else weighted_posterior(model, prior, classes, counted)
    withheld = bool(prediction.out_of_distribution) and int(counts.sum()) < SHOWN_FROM
    after, version = (alike, None) if named is None else (named.distribution, named.version)
    return CasePosterior(prediction.release_id, classes, counts, after, withheld, version, alike)


def next_answer_set(session: Session, case: Case, posterior: CasePosterior) -> AnswerSetOut:
    """Classes among which the next annotator's answer lies, after no label or one, with annotators taken as alike."""
    published = current_published_sets(session, posterior.release_id)
    once = posterior.n_labels == 1 and published is not None and published.reason is None
    cell = AnswerSetQuery(
        posterior.alike.class_probs,
        posterior.classes,
        posterior.n_labels,
        case.site,
        posterior.withheld,
        own_mass(session, case) if once else 1.0,
    )
    return build_answer_set(published, cell)


def posterior_out(
    posterior: CasePosterior, target_error: float, answer_set: AnswerSetOut | None = None
) -> PosteriorOut:
    """A posterior as the API shows it."""
    summary = triage_service.summarise_posterior(posterior.distribution, target_error)
    withheld = posterior.withheld
    intervals = None if withheld else summary.class_intervals
    return PosteriorOut(
        release=str(posterior.release_id),
        class_probs=dict(zip(posterior.classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=None if withheld else summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        disagreement_constant=summary.disagreement_constant,
        class_intervals=None if intervals is None else dict(zip(posterior.classes, intervals, strict=True)),
        consensus=None if withheld else ConsensusOut.by_class(posterior.classes, summary.consensus),
        answer_set=answer_set,
        n_labels=posterior.n_labels,
        label_counts=dict(zip(posterior.classes, posterior.label_counts[0].tolist(), strict=True)),
        majority_prob=None if withheld else summary.majority_prob,
        further_labels_expected=None if withheld else summary.further_labels_expected,
        reader_model=posterior.reader_model,
    )


def show_case_posterior(
    session: Session, case_id: uuid.UUID, exclude_annotator: str | None = None, *, by_name: bool = True
) -> PosteriorOut:
    """Posterior of a case as the API shows it, after its final labels."""
    case = cases.case_by_id(session, case_id)
    prediction = cases.latest_prediction(session, case_id)
    classes = class_codes(existing_release(session, prediction.release_id))
    waiting = provisional_annotator_ids(session, case_id)
    history = [row for row in cases.label_history(session, case_id) if row.label.annotator_id not in waiting]
    opinions = blind_opinions(history)
    chosen = get_model_switch(session)
    after = posterior_of(session, prediction, classes, opinions, exclude_annotator, in_use=chosen, by_name=by_name)
    sets = next_answer_set(session, case, after) if exclude_annotator is None else None
    return posterior_out(after, triage_service.current_policy(session).target_error, sets)


_BATCH = 100


@dataclass(frozen=True)
class AdjudicationInput:
    """Opinions and requests of a case, as input to the decision on an adjudication."""

    # its blind opinions, one per annotator
    opinions: list[NamedLabel]
    requests: list[ReadRequest]


def adjudicate_if_undecided(
    session: Session,
    at_hand: LockedCaseContext,
    posterior: CasePosterior,
    labelled: AdjudicationInput,
    *,
    unsettled: bool,
) -> None:
    """Ask for another annotator where all reads are in, finally, and leave the leading class of an open case open."""
    case, policy, requests = at_hand.case, at_hand.policy, labelled.requests
    waiting = any(request.state in {"open", "leased"} for request in requests)
    closed = requests and not waiting and not unsettled
    undecided = closed and triage_service.needs_adjudication(posterior.distribution, posterior.n_labels, policy)
    if undecided and not cases.read_outcomes(session, [case.id]):
        ordinal = requests[-1].ordinal + 1
        adjudication = triage_service.new_request(
            case, policy, posterior.release_id, "adjudication", ordinal, time_of(session)
        )
        # chosen before it is stored: to write it twice would lock a request after the case
        chosen = choose_adjudicator(session, at_hand, adjudication, labelled.opinions)
        session.add(adjudication)
        session.flush()  # a draw refers to its request
        requests.append(adjudication)
        if chosen is not None:
            session.add(chosen)
        waiting = True
    case.waiting = waiting


def choose_adjudicator(
    session: Session, at_hand: LockedCaseContext, request: ReadRequest, labels: Sequence[NamedLabel]
) -> ReaderDraw | None:
    """Choose the adjudicator with the largest expected gain per waiting read, counting the new one."""
    # Not drawn, since nothing is evaluated by it. Anybody may take it where the policy draws nobody, where no model of
    # the annotators is in use, and where nobody is left.
    request.annotator_id = None
    if not at_hand.policy.draw_readers:
        return None
    left = triage_service.list_assignable_annotators(
        session, request, triage_service.twins_of_case(session, request.case_id)
    )
    named = session.execute(select(Annotator.id, Annotator.name).where(Annotator.id.in_(left)).order_by(Annotator.id))
    names = {row.id: row.name for row in named}
    gains = expected_gains_of_next(session, at_hand.prediction, at_hand.classes, labels, list(names.values()))
    if not gains:
        return None
    loads = _count_waiting_requests(session, list(names))
    gain_of = dict(zip(names, gains, strict=True))
    chosen = max(names, key=lambda one: gain_of[one] / (1 + loads.get(one, 0)))
    request.annotator_id = chosen
    return ReaderDraw(
        request_id=request.id,
        case_id=request.case_id,
        position=triage_service.next_position(session, request.id),
        annotator_id=chosen,
        probability=None,
        among=[str(one) for one in names],
        gain=gain_of[chosen],
        load=loads.get(chosen, 0),
    )


def _count_waiting_requests(session: Session, annotators: list[UUID]) -> dict[UUID | None, int]:
    waiting = (ReadRequest.annotator_id.in_(annotators), ReadRequest.state.in_(("open", "leased")))
    counted = select(ReadRequest.annotator_id, func.count()).where(*waiting).group_by(ReadRequest.annotator_id)
    return {row[0]: row[1] for row in session.execute(counted)}


def reassign_open_requests(context: ServiceContext) -> int:
    """Reassign open requests whose annotator has declined or may no longer read."""
    # The worker does this, not the request that declines, which does the same for every read and takes as long.
    done = 0
    while count := _reassign_batch(context):
        done += count
    return done


def _reassign_batch(context: ServiceContext) -> int:
    with context.database.read() as session:
        if session.execute(select(ReaderDraw.id).limit(1)).first() is None:
            return 0
    with context.database.write() as session:
        reading = [annotator.id for annotator in triage_service.list_eligible_annotators(session, guests=True)]
        conditions = (ReadRequest.state == "open", ReadRequest.annotator_id.is_not(None))
        same = (Read.case_id == ReadRequest.case_id, Read.annotator_id == ReadRequest.annotator_id)
        declined = exists().where(*same, Read.state == "declined")
        gone = select(ReadRequest).where(*conditions, or_(declined, ReadRequest.annotator_id.not_in(reading)))
        locked = gone.order_by(ReadRequest.id).limit(_BATCH).with_for_update(skip_locked=True)
        requests = session.execute(locked.execution_options(populate_existing=True)).scalars().all()
        if not requests:
            return 0
        for request in requests:
            _reassign_request(session, context.keys.draws, request)
        events.record_event(
            session,
            context.keys.audit,
            actor="worker",
            action="request.ask",
            object_id="requests",
            details={"requests": [str(request.id) for request in requests]},
            cases=sorted({request.case_id for request in requests}),
        )
        return len(requests)


def _reassign_request(session: Session, draws: DerivedKey, request: ReadRequest) -> None:
    if request.round == "planned":
        triage_service.redraw_annotator(session, draws, request)
    else:
        chosen = choose_adjudicator(
            session, lock_case_context(session, request.case_id), request, opinions_of(session, request.case_id)
        )
        if chosen is not None:
            session.add(chosen)
        session.flush()


def opinions_of(session: Session, case_id: UUID) -> list[NamedLabel]:
    """Blind opinions of a case, one per annotator."""
    return blind_opinions(label_history(session, case_id))
