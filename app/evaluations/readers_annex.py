"""Cases by annotators: who read how much, how far each agrees, and intervals for these annotators and for new ones.

The numbers are those of the report; nothing is computed here. The annex fills what checklists ask for of studies with
several readers and many cases (MRMC).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from app.evaluations.report import headline
from app.evaluations.schemas import AgreementOut, AnnotatorAgreementOut, MetricsBody
from app.platform.values import MetricOut
from ml.messages import Message
from ml.shown_numbers import count

#: As many annotators as it takes to say where others like them would be.
ENOUGH = 3


class ReaderDocument(TypedDict):
    """An annotator of the annex as JSON values."""

    annotator: str
    n_cases: int
    agreement: float | None
    low: float | None
    high: float | None


class AnnexMetricDocument(TypedDict):
    """A metric of the annex as JSON values: with the interval for these annotators, and for new ones."""

    metric: str
    value: float | None
    low: float | None
    high: float | None
    low_new: float | None
    high_new: float | None
    n: int


class ReadersAnnexDocument(TypedDict):
    """The annex as JSON values."""

    sentences: list[str]
    annotators: list[ReaderDocument]
    metrics: list[AnnexMetricDocument]


@dataclass(frozen=True)
class ReadersAnnex:
    """The annex.

    Attributes:
        n_cases: cases with a label.
        n_labels: blind planned labels of them, one for each annotator and case.
        readers: annotators with their labels, and how often another one of the same case says the same.
        metrics: name and estimate of each metric that has an interval.
    """

    n_cases: int
    n_labels: int
    readers: list[AnnotatorAgreementOut]
    metrics: list[tuple[str, MetricOut]]

    @property
    def for_new_ones(self) -> bool:
        """Whether any interval is for new annotators."""
        return any(found.low_new is not None for _, found in self.metrics)

    @property
    def sentences(self) -> list[str]:
        """What the annex says in words."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        n = len(self.readers)
        if not n:
            yield Message("There are no labels yet.")
            return
        each = (
            Message("{n_cases:.1f} labels a case", n_cases=self.n_labels / self.n_cases)
            if self.n_cases
            else Message("no case")
        )
        named = Message("{n} annotator", n=n) if n == 1 else Message("{n} annotators", n=count(n))
        yield Message(
            "{named} gave {n_labels} labels of {n_cases} cases, {each} on average.",
            named=named,
            n_labels=count(self.n_labels),
            n_cases=count(self.n_cases),
            each=each,
        )
        if self.n_labels < n * self.n_cases:
            yield Message("Not everybody read every case.")
        if self.for_new_ones:
            yield (
                Message(
                    "The first interval is for these annotators, the second for new ones like them: it takes the "
                    "annotators as a sample too, and contains the first."
                )
            )
        elif n < ENOUGH:
            only = Message("is one annotator") if n == 1 else Message("are two annotators")
            yield Message("There {only} only: intervals for new annotators need three, and are left out.", only=only)
        else:
            yield Message(
                "Fewer than three annotators read cases of two patients: intervals for new annotators are left out."
            )

    def to_dict(self) -> ReadersAnnexDocument:
        """Return it as JSON values."""
        return {
            "sentences": self.sentences,
            "annotators": [
                {
                    "annotator": row.annotator,
                    "n_cases": row.n_labels,
                    "agreement": row.agreement_with_others.value,
                    "low": row.agreement_with_others.low,
                    "high": row.agreement_with_others.high,
                }
                for row in self.readers
            ],
            "metrics": [
                {
                    "metric": name,
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                    "low_new": found.low_new,
                    "high_new": found.high_new,
                    "n": found.n,
                }
                for name, found in self.metrics
            ],
        }


def annex_of(document: MetricsBody, agreement: AgreementOut) -> ReadersAnnex:
    """The annex of a report.

    Args:
        document: its metrics.
        agreement: between its annotators.
    """
    metrics = [(name, found) for name, _, found in headline(document) if found.low is not None]
    return ReadersAnnex(agreement.n_cases, agreement.n_labels, agreement.annotators, metrics)
