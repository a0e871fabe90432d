"""Statistics of one annotator's reading, and their messages."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from app.annotators.history import ClosedCase, EndedVisit
from app.annotators.schemas import ConfidenceOut, ConfusionOut, OwnReadingOut, PulledOut, StepOut
from ml.agreement.one_annotator import (
    ShrunkEstimate,
    agreement_with_others,
    log_score_surplus,
    rate_of_all,
    shrunk_confusions,
    shrunk_mean,
    shrunk_share,
    soft_confusions,
)
from ml.messages import Message, Number
from ml.util.arrays import FloatArray, IntArray

#: Cases, reads and repeats are counted in such steps, so that no single one can be told from two looks.
STEP = 10
# spread of log seconds and of mean log scores between annotators
_PACE_SPREAD, _SCORE_SPREAD = 0.5, 0.1
_STEPS = 8


def round_to_step(n: int) -> int:
    """The number rounded down to a multiple of ten."""
    return n - n % STEP


@dataclass(frozen=True)
class ComparedAnswers:
    """Answers next to what the others' posterior said of them, in the order in which the cases were settled."""

    # (N) case and annotator of each
    keys: list[tuple[uuid.UUID, uuid.UUID]]
    # (N, K) probabilities by the others' posterior
    others: FloatArray
    # (N,) classes that were said
    answers: IntArray
    # (N,) as given; NaN where it was not
    confidence: FloatArray

    def take(self, rows: Sequence[int]) -> "ComparedAnswers":
        """Some of them."""
        chosen = np.asarray(rows, dtype=np.int64)
        return ComparedAnswers(
            [self.keys[row] for row in rows], self.others[chosen], self.answers[chosen], self.confidence[chosen]
        )


def estimate_out(pulled: ShrunkEstimate) -> PulledOut:
    """Convert an estimate to its response model."""
    return PulledOut(**asdict(pulled))


def estimate_pace(visits: Sequence[EndedVisit], annotator_id: uuid.UUID) -> PulledOut | None:
    """Estimate the typical seconds of a read, a geometric mean."""
    timed = [
        (visit.annotator_id, float(np.log(max(visit.seconds, 0.1)))) for visit in visits if visit.seconds is not None
    ]
    own = [value for who, value in timed if who == annotator_id]
    own = own[: round_to_step(len(own))]
    if not own:
        return None
    everything = np.array([value for _, value in timed[: round_to_step(len(timed))]])
    mean = shrunk_mean(np.array(own), max(float(everything.std()), 0.1), float(everything.mean()), _PACE_SPREAD)
    value, low, high, everybody = np.exp([mean.value, mean.low, mean.high, mean.everybody])
    return PulledOut(value=value, low=low, high=high, n=mean.n, everybody=everybody)


def estimate_cannot_tell(visits: Sequence[EndedVisit], annotator_id: uuid.UUID) -> PulledOut | None:
    """Share of reads that ended in "cannot tell"."""
    own = [visit.cannot_tell for visit in visits if visit.annotator_id == annotator_id]
    own = own[: round_to_step(len(own))]
    of_all = visits[: round_to_step(len(visits))]
    everybody = rate_of_all(sum(visit.cannot_tell for visit in of_all), len(of_all))
    return estimate_out(shrunk_share(sum(own), len(own), everybody)) if own else None


def estimate_self_agreement(repeats: Sequence[tuple[uuid.UUID, bool]], annotator_id: uuid.UUID) -> PulledOut | None:
    """Share of repeats that got the same answer."""
    own = [same for who, same in repeats if who == annotator_id]
    own, all_of_them = own[: round_to_step(len(own))], repeats[: round_to_step(len(repeats))]
    everybody = rate_of_all(sum(same for _, same in all_of_them), len(all_of_them))
    return estimate_out(shrunk_share(sum(own), len(own), everybody)) if own else None


def estimate_agreement(own: ComparedAnswers, everybody: ComparedAnswers) -> tuple[PulledOut, PulledOut]:
    """Estimate agreement with the others, and its surplus over a typical annotator on the same cases."""
    observed, expected = agreement_with_others(own.others, own.answers)
    of_all, expected_of_all = agreement_with_others(everybody.others, everybody.answers)
    mean = shrunk_mean(observed, max(float(of_all.std()), 0.05), float(of_all.mean()))
    deviation = max(float((of_all - expected_of_all).std()), 0.05)
    surplus = shrunk_mean(observed - expected, deviation, float((of_all - expected_of_all).mean()))
    return estimate_out(mean), estimate_out(surplus)


def estimate_confusions(own: ComparedAnswers, everybody: ComparedAnswers, codes: Sequence[str]) -> list[ConfusionOut]:
    """Every cell of the table of confusions, in rows by what the others say."""
    estimates = shrunk_confusions(
        soft_confusions(own.others, own.answers), soft_confusions(everybody.others, everybody.answers)
    )
    return [
        ConfusionOut(
            others_say=others_say,
            says=says,
            share=float(estimates.value[row, column]),
            low=float(estimates.low[row, column]),
            high=float(estimates.high[row, column]),
            everybody=float(estimates.everybody[row, column]),
            notable=bool(estimates.notable[row, column]),
        )
        for row, others_say in enumerate(codes)
        for column, says in enumerate(codes)
    ]


def estimate_by_confidence(own: ComparedAnswers, everybody: ComparedAnswers) -> list[ConfidenceOut]:
    """Agreement of the others by how sure the annotator said they were; steps of less than ten cases are left out."""
    observed, _ = agreement_with_others(own.others, own.answers)
    of_all, _ = agreement_with_others(everybody.others, everybody.answers)
    steps = []
    for value in sorted({float(value) for value in own.confidence if not np.isnan(value)}):
        rows = np.flatnonzero(own.confidence == value)
        rows = rows[: round_to_step(len(rows))]
        if len(rows):
            rest = of_all[everybody.confidence == value]
            rate = rate_of_all(float(rest.sum()), len(rest))
            steps.append(
                ConfidenceOut(
                    confidence=value, agreement=estimate_out(shrunk_share(float(observed[rows].sum()), len(rows), rate))
                )
            )
    return steps


def estimate_by_step(
    own: ComparedAnswers, everybody: ComparedAnswers, cases: Mapping[uuid.UUID, ClosedCase]
) -> list[StepOut]:
    """At most eight steps of cases in the order in which they were settled, each of ten cases or a multiple."""
    surplus = log_score_surplus(own.others, own.answers)
    deviation, mean = _surplus_moments(everybody)
    size = STEP * max(1, -(-len(surplus) // (STEP * _STEPS)))
    items = []
    for start in range(0, len(surplus) - size + 1, size):
        times = sorted(cases[case_id].opinions[who].at for case_id, who in own.keys[start : start + size])
        value = shrunk_mean(surplus[start : start + size], deviation, mean, _SCORE_SPREAD)
        items.append(StepOut(first=times[0], last=times[-1], surplus=estimate_out(value)))
    return items


def estimate_drift(own: ComparedAnswers, everybody: ComparedAnswers) -> PulledOut | None:
    """Mean surplus of the last third of the cases less that of those before; None with less than thirty cases."""
    surplus = log_score_surplus(own.others, own.answers)
    if len(surplus) < 3 * STEP:
        return None
    deviation, _ = _surplus_moments(everybody)
    last = round_to_step(len(surplus) // 3)
    before = float(surplus[:-last].mean())
    wider = deviation * float(np.sqrt(1 + last / (len(surplus) - last)))
    return estimate_out(shrunk_mean(surplus[-last:] - before, wider, 0.0, _SCORE_SPREAD))


def _surplus_moments(everybody: ComparedAnswers) -> tuple[float, float]:
    """Standard deviation and mean of the surplus of all annotators."""
    surplus = log_score_surplus(everybody.others, everybody.answers)
    return max(float(surplus.std()), 0.05), float(surplus.mean())


_MOST = 3


def format_share(value: float) -> str:
    """Format a share in whole per cent, the precision that chance leaves."""
    return Number(f"{value:.0%}")


def reading_sentences(reading: OwnReadingOut, names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each statistic."""
    lines = [
        _pace_sentence(reading.seconds),
        _self_agreement_sentence(reading.self_agreement),
        _agreement_sentence(reading),
    ]
    lines += _confusion_sentences(reading.confusions, names) if reading.n_compared else []
    lines += [_confidence_sentence(row) for row in reading.confidence]
    lines += [_cannot_tell_sentence(reading.cannot_tell), _drift_sentence(reading.drift)]
    return [sentence for sentence in lines if sentence]


def _format_range(pulled: PulledOut) -> str:
    return Message("{low} to {high}", low=format_share(pulled.low), high=format_share(pulled.high))


def _compare_to_all(pulled: PulledOut) -> str:
    if pulled.low > pulled.everybody:
        return Message("significantly higher")
    return Message("significantly lower") if pulled.high < pulled.everybody else Message("no significant difference")


def _pace_sentence(seconds: PulledOut | None) -> str:
    if seconds is None:
        return ""
    return Message(
        "Typical time per cell: {value:.0f} s ({low:.0f} to {high:.0f}; {n} reads). All annotators: {everybody:.0f} s.",
        value=seconds.value,
        low=seconds.low,
        high=seconds.high,
        n=seconds.n,
        everybody=seconds.everybody,
    )


def _self_agreement_sentence(pulled: PulledOut | None) -> str:
    if pulled is None:
        return Message("Intra-rater agreement appears after ten repeated cells.")
    return Message(
        "Intra-rater agreement: {value} ({pulled}; {n} repeated cells). All annotators: {everybody}.",
        value=format_share(pulled.value),
        pulled=_format_range(pulled),
        n=pulled.n,
        everybody=format_share(pulled.everybody),
    )


def _agreement_sentence(reading: OwnReadingOut) -> str:
    mean, surplus = reading.agreement, reading.agreement_surplus
    if mean is None or surplus is None:
        return Message("Inter-rater agreement appears after ten closed cells with labels from others.")
    return Message(
        "Inter-rater agreement: {value} ({mean}; {n} closed cells). Compared with a typical "
        "annotator on the same cells: {value2} ({low} to {high}). All annotators: "
        "{everybody} ({surplus}).",
        value=format_share(mean.value),
        mean=_format_range(mean),
        n=mean.n,
        value2=_format_points(surplus.value),
        low=_format_points(surplus.low),
        high=_format_points(surplus.high),
        everybody=_format_points(surplus.everybody),
        surplus=_compare_to_all(surplus),
    )


def _format_points(difference: float) -> str:
    """Format a difference of shares in words, without a sign.

    >>> _format_points(-0.094), _format_points(0.012), _format_points(-0.004)
    ('9 points lower', '1 point higher', '0 points higher')
    """
    points = round(100 * difference)
    if points in {-1, 1}:
        return Message("1 point lower") if points < 0 else Message("1 point higher")
    return (
        Message("{points} points lower", points=-points)
        if points < 0
        else Message("{points} points higher", points=points)
    )


def _confusion_sentences(cells: Sequence[ConfusionOut], names: Mapping[str, str]) -> list[str]:
    notable = sorted((cell for cell in cells if cell.notable), key=lambda cell: cell.everybody - cell.share)
    if not notable:
        return [Message("No significant confusion compared with all annotators.")]
    return [
        Message(
            "If others choose {others_say}, the answer is {says} in {share} of cells ({low} to "
            "{high}); all annotators: {everybody}.",
            others_say=names.get(cell.others_say, cell.others_say),
            says=names.get(cell.says, cell.says),
            share=format_share(cell.share),
            low=format_share(cell.low),
            high=format_share(cell.high),
            everybody=format_share(cell.everybody),
        )
        for cell in notable[:_MOST]
    ]


def _confidence_sentence(row: ConfidenceOut) -> str:
    pulled = row.agreement
    verdict = Message("confidence matches the other labels")
    if row.confidence > pulled.high:
        verdict = Message("overconfident compared with the other labels")
    elif row.confidence < pulled.low:
        verdict = Message("underconfident compared with the other labels")
    return Message(
        "At confidence {confidence}, other annotators agree in {value} ({pulled}) of {n} cells: {verdict}.",
        confidence=format_share(row.confidence),
        value=format_share(pulled.value),
        pulled=_format_range(pulled),
        n=pulled.n,
        verdict=verdict,
    )


def _cannot_tell_sentence(pulled: PulledOut | None) -> str:
    if pulled is None:
        return ""
    return Message(
        "“Cannot tell”: {value} ({pulled}) of {n} reads. All annotators: {everybody}.",
        value=format_share(pulled.value),
        pulled=_format_range(pulled),
        n=pulled.n,
        everybody=format_share(pulled.everybody),
    )


def _drift_sentence(pulled: PulledOut | None) -> str:
    if pulled is None:
        return ""
    if pulled.high < 0:
        return Message("Other annotators disagree more often in the last third of the cells than before.")
    if pulled.low > 0:
        return Message("Other annotators disagree less often in the last third of the cells than before.")
    return Message("No significant change in the last third of the cells.")
