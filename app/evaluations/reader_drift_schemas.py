"""What is answered about annotators who change."""

from datetime import date

from app.http.models import Out, Sentence


class ReaderWeekOut(Out):
    """Mean excess loss of an annotator's answers in a week, from a Monday on; the bands of all weeks hold together."""

    week: date
    n_patients: int
    excess_loss: float
    low: float
    high: float


class ReaderDriftOut(Out):
    """An annotator's first reads since the champion was promoted, until last Monday, in nats per label.

    The excess is the log loss of an answer less what it would be on average for somebody who answers as predicted. The
    alarm is on from the day on which bets that it has risen by more than the tolerance reached their threshold; all
    annotators share its level.
    """

    annotator: str
    n_patients: int
    tolerance: float
    level: float
    alarm_on: date | None
    weeks: list[ReaderWeekOut]
    sentence: Sentence


class ReadersDriftOut(Out):
    """Every annotator who answered a first read since the champion was promoted."""

    items: list[ReaderDriftOut]
