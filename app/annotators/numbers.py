"""An annotator's numbers from what was known last Monday: pure arithmetic on rows, no clock and no session."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from app.annotators.history import ClosedCase, Ended
from app.annotators.schemas import ConfidenceOut, ConfusionOut, PulledOut, StepOut
from ml.agreement.one_annotator import (
    Pulled,
    agreement_with_others,
    log_score_surplus,
    pulled_confusions,
    pulled_mean,
    pulled_share,
    rate_of_all,
    soft_confusions,
)
from ml.arrays import FloatArray, IntArray

#: Cases, reads and repeats are counted in such steps, so that no single one can be told from two looks.
STEP = 10
# spread of log seconds and of mean log scores between annotators
_PACE_SPREAD, _SCORE_SPREAD = 0.5, 0.1
_STEPS = 8


def in_steps(n: int) -> int:
    """The number rounded down to a multiple of ten."""
    return n - n % STEP


@dataclass(frozen=True)
class Compared:
    """Answers next to what the others' posterior said of them, in the order in which the cases were settled.

    Attributes:
        keys: (N) case and annotator of each.
        others: (N, K) probabilities by the others' posterior.
        answers: (N,) classes that were said.
        confidence: (N,) as given; NaN where it was not.
    """

    keys: list[tuple[uuid.UUID, uuid.UUID]]
    others: FloatArray
    answers: IntArray
    confidence: FloatArray

    def take(self, rows: Sequence[int]) -> "Compared":
        """Some of them."""
        chosen = np.asarray(rows, dtype=np.int64)
        return Compared(
            [self.keys[row] for row in rows], self.others[chosen], self.answers[chosen], self.confidence[chosen]
        )


def out(pulled: Pulled) -> PulledOut:
    """As the API shows it."""
    return PulledOut(**asdict(pulled))


def pace(visits: Sequence[Ended], annotator_id: uuid.UUID) -> PulledOut | None:
    """Typical seconds of a read: the geometric mean."""
    timed = [
        (visit.annotator_id, float(np.log(max(visit.seconds, 0.1)))) for visit in visits if visit.seconds is not None
    ]
    own = [value for who, value in timed if who == annotator_id]
    own = own[: in_steps(len(own))]
    if not own:
        return None
    everything = np.array([value for _, value in timed[: in_steps(len(timed))]])
    mean = pulled_mean(np.array(own), max(float(everything.std()), 0.1), float(everything.mean()), _PACE_SPREAD)
    value, low, high, everybody = np.exp([mean.value, mean.low, mean.high, mean.everybody])
    return PulledOut(value=value, low=low, high=high, n=mean.n, everybody=everybody)


def cannot_tell(visits: Sequence[Ended], annotator_id: uuid.UUID) -> PulledOut | None:
    """Share of reads that ended in "cannot tell"."""
    own = [visit.cannot_tell for visit in visits if visit.annotator_id == annotator_id]
    own = own[: in_steps(len(own))]
    of_all = visits[: in_steps(len(visits))]
    everybody = rate_of_all(sum(visit.cannot_tell for visit in of_all), len(of_all))
    return out(pulled_share(sum(own), len(own), everybody)) if own else None


def self_agreement(repeats: Sequence[tuple[uuid.UUID, bool]], annotator_id: uuid.UUID) -> PulledOut | None:
    """Share of repeats that got the same answer."""
    own = [same for who, same in repeats if who == annotator_id]
    own, all_of_them = own[: in_steps(len(own))], repeats[: in_steps(len(repeats))]
    everybody = rate_of_all(sum(same for _, same in all_of_them), len(all_of_them))
    return out(pulled_share(sum(own), len(own), everybody)) if own else None


def agreement(own: Compared, everybody: Compared) -> tuple[PulledOut, PulledOut]:
    """Agreement with the others, and what it is more than for somebody like them on the same cases."""
    said, expected = agreement_with_others(own.others, own.answers)
    of_all, expected_of_all = agreement_with_others(everybody.others, everybody.answers)
    mean = pulled_mean(said, max(float(of_all.std()), 0.05), float(of_all.mean()))
    deviation = max(float((of_all - expected_of_all).std()), 0.05)
    surplus = pulled_mean(said - expected, deviation, float((of_all - expected_of_all).mean()))
    return out(mean), out(surplus)


def confusions(own: Compared, everybody: Compared, codes: Sequence[str]) -> list[ConfusionOut]:
    """Every cell of the table of confusions, in rows by what the others say."""
    found = pulled_confusions(
        soft_confusions(own.others, own.answers), soft_confusions(everybody.others, everybody.answers)
    )
    return [
        ConfusionOut(
            others_say=others_say,
            says=says,
            share=float(found.value[row, column]),
            low=float(found.low[row, column]),
            high=float(found.high[row, column]),
            everybody=float(found.everybody[row, column]),
            notable=bool(found.notable[row, column]),
        )
        for row, others_say in enumerate(codes)
        for column, says in enumerate(codes)
    ]


def confidence(own: Compared, everybody: Compared) -> list[ConfidenceOut]:
    """Agreement of the others by how sure the annotator said they were; steps of less than ten cases are left out."""
    said, _ = agreement_with_others(own.others, own.answers)
    of_all, _ = agreement_with_others(everybody.others, everybody.answers)
    steps = []
    for value in sorted({float(value) for value in own.confidence if not np.isnan(value)}):
        rows = np.flatnonzero(own.confidence == value)
        rows = rows[: in_steps(len(rows))]
        if len(rows):
            rest = of_all[everybody.confidence == value]
            rate = rate_of_all(float(rest.sum()), len(rest))
            steps.append(
                ConfidenceOut(confidence=value, agreement=out(pulled_share(float(said[rows].sum()), len(rows), rate)))
            )
    return steps


def steps(own: Compared, everybody: Compared, cases: Mapping[uuid.UUID, ClosedCase]) -> list[StepOut]:
    """At most eight steps of cases in the order in which they were settled, each of ten cases or a multiple."""
    surplus = log_score_surplus(own.others, own.answers)
    deviation, mean = _of_all(everybody)
    size = STEP * max(1, -(-len(surplus) // (STEP * _STEPS)))
    found = []
    for start in range(0, len(surplus) - size + 1, size):
        times = sorted(cases[case_id].opinions[who].at for case_id, who in own.keys[start : start + size])
        value = pulled_mean(surplus[start : start + size], deviation, mean, _SCORE_SPREAD)
        found.append(StepOut(first=times[0], last=times[-1], surplus=out(value)))
    return found


def drift(own: Compared, everybody: Compared) -> PulledOut | None:
    """Mean surplus of the last third of the cases less that of those before; None with less than thirty cases."""
    surplus = log_score_surplus(own.others, own.answers)
    if len(surplus) < 3 * STEP:
        return None
    deviation, _ = _of_all(everybody)
    last = in_steps(len(surplus) // 3)
    before = float(surplus[:-last].mean())
    wider = deviation * float(np.sqrt(1 + last / (len(surplus) - last)))
    return out(pulled_mean(surplus[-last:] - before, wider, 0.0, _SCORE_SPREAD))


def _of_all(everybody: Compared) -> tuple[float, float]:
    """Standard deviation and mean of the surplus of all annotators."""
    surplus = log_score_surplus(everybody.others, everybody.answers)
    return max(float(surplus.std()), 0.05), float(surplus.mean())
