"""Models of a published report: the metrics document and its headline statistics."""

from datetime import date, datetime
from typing import Literal

from pydantic import Field

from app.http.models import MetricOut, ResponseModel, Sentence
from app.metrics.service import AgreementOut, ComparisonOut, DesignOut, GroupOut, LeftOutOut, MetricsOut


class SaidOut(ResponseModel):
    """What predictions said of some cases, on average, and what annotators did."""

    said: float
    seen: MetricOut


class ConsensusRowOut(SaidOut):
    """How often annotators of a cell name the leading class, or another, or none by consensus; predicted and seen.

    ``of``: five annotators, of whom four agree, where a cell has five labels; else two, who both do.
    """

    of: Literal[2, 5]
    event: Literal["leading", "other", "split"]


class SecondReadsOut(ResponseModel):
    """Second reads that the policy in force requests among the cases, and the disagreements that they catch."""

    policy_version: int
    by: Literal["disagreement", "expected_gain", "specimen_value"]
    share: float | None
    caught: MetricOut | None


class SensitivityOut(ResponseModel):
    """How often the leading class is the one that an annotator names."""

    class_code: str
    sensitivity: MetricOut


class DurationOut(ResponseModel):
    """Hours by which half and nine tenths of what was begun had ended, null where fewer have.

    ``low`` and ``high``: 95% interval of the hours by which nine tenths had; null where it has no end.
    """

    n: int
    n_open: int
    median: float | None
    nine_tenths: float | None
    low: float | None
    high: float | None


class WeekOut(ResponseModel):
    """What arrived and what was done in one week, which begins on a Monday."""

    week: date
    received: int
    asked: int
    answered: int
    closed: int
    hours: float


class WorkloadOut(ResponseModel):
    """Reads of the last weeks, the oldest first; ``seconds`` per read; null without timed reads, or without cells."""

    weeks: list[WeekOut]
    n_waiting: int
    n_overdue: int
    seconds: float | None
    received_per_week: float | None
    closing: DurationOut


class PairOut(ResponseModel):
    """Two classes that annotators of the same case confuse, and their share of all disagreements."""

    first: str
    second: str
    share: MetricOut
    n_cases: int


class TrendOut(ResponseModel):
    """A site or a month: how often annotators differed and predictions said so, and agreement with the prediction."""

    group: str
    n_cases: int
    said: float | None
    differed: MetricOut | None
    agreement: MetricOut | None


class WhatIfOut(ResponseModel):
    """A share of the cases read twice: what it catches, threshold, reads and hours per week; null if unknown."""

    share: float
    caught: MetricOut
    threshold: float
    reads_per_week: float | None
    hours_per_week: float | None


class FindingsOut(ResponseModel):
    """Numbers of the sentences; null if there are too few labels.

    ``disagreement``: of the fifth of the cases with the highest disagreement probability. ``leading``: of the cases
    whose leading class has a probability of .8 or more, or of the fifth where that is highest.
    """

    n_cases: int
    n_labels: int
    left_out: list[LeftOutOut]
    disagreement: SaidOut | None
    leading: SaidOut | None
    second_reads: SecondReadsOut
    agreement: MetricOut | None
    answering: DurationOut
    sensitivity: list[SensitivityOut]


class ReportParts(ResponseModel):
    """What people ask first, months, and what another share of second reads would catch."""

    months: list[GroupOut]
    findings: FindingsOut
    workload: WorkloadOut
    pairs: list[PairOut]
    by_site: list[TrendOut]
    by_month: list[TrendOut]
    what_if: list[WhatIfOut]
    designs: list[DesignOut]
    consensus: list[ConsensusRowOut] = Field(default_factory=list)


class ReportBody(ReportParts):
    """A report: the document of ``GET /v1/metrics`` by site, and everything around it."""

    document: MetricsOut
    agreement: AgreementOut
    # with the release before, on the cases that both predicted
    change: ComparisonOut | None = None


class PublishedReport(ResponseModel):
    """A report as a page shows it.

    ``state``: ``ready``; ``making`` while there is none on the champion yet; ``failed``, with what was said;
    ``without-release`` before there is a champion. ``as_of``: when it was
    made. ``newer``: something has changed since; ``next_at``: when it is made again at the earliest.
    """

    state: Literal["ready", "making", "failed", "without-release"]
    body: ReportBody | None = None
    as_of: datetime | None = None
    newer: bool = False
    next_at: datetime | None = None
    error: Sentence | None = None
