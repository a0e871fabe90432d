"""Cases by annotators: who read how much, how far each agrees, and intervals for these annotators and for new ones.

The numbers are those of the report; nothing is computed here. The annex is for studies with several readers and many
cases (MRMC).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from app.evaluations.report import headline
from app.evaluations.schemas import AgreementOut, AnnotatorAgreementOut, MetricsBody
from app.http.models import MetricOut
from ml.messages import Message
from ml.shown_numbers import count

#: As many annotators as it takes to say where others like them would be.
ENOUGH = 3


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


def annex_of(document: MetricsBody, agreement: AgreementOut) -> ReadersAnnex:
    """The annex of a report.

    Args:
        document: its metrics.
        agreement: between its annotators.
    """
    metrics = [(name, found) for name, _, found in headline(document) if found.low is not None]
    return ReadersAnnex(agreement.n_cases, agreement.n_labels, agreement.annotators, metrics)
