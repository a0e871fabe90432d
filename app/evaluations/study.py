"""The report of a study in the order of a checklist: filled from what is stored, open where a person has to write."""

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TypedDict

from app.evaluations.readers_annex import ReadersAnnex, ReadersAnnexDocument, annex_of
from app.evaluations.report import environment
from app.evaluations.report_schemas import ReportBody
from app.evaluations.study_facts import StudyFacts
from app.evaluations.study_items import STANDARDS, Item, Standard
from app.evaluations.study_text import texts_of


class ItemDocument(TypedDict):
    """An item as JSON values: what is filled in, and what is open, empty where nothing is."""

    number: str
    section: str
    asks: str
    filled: list[str]
    open: str
    annex: bool


class StudyDocument(TypedDict):
    """The report of a study as JSON values."""

    standard: str
    as_of: str
    n_open: int
    items: list[ItemDocument]
    readers: ReadersAnnexDocument


@dataclass(frozen=True)
class FilledItem:
    """An item with the sentences that fill it."""

    item: Item
    filled: list[str]

    @property
    def open(self) -> str:
        """What a person has to write; everything where nothing is stored. Empty where nothing is left."""
        return self.item.open or ("" if self.filled else "nothing is stored about this")

    @property
    def annexed(self) -> bool:
        """Whether the annex about several annotators fills it too."""
        return "several-readers" in self.item.topics


@dataclass(frozen=True)
class Study:
    """The report of a study.

    Attributes:
        standard: what the checklist is called.
        as_of: when its numbers were made.
        items: in the order of the checklist.
        readers: the annex about several annotators.
    """

    standard: str
    as_of: datetime
    items: list[FilledItem]
    readers: ReadersAnnex

    @property
    def annexed(self) -> list[str]:
        """Items that the annex fills, by number and what they ask for."""
        return [f"{one.item.number} ({one.item.asks.lower()})" for one in self.items if one.annexed]

    @property
    def sections(self) -> list[tuple[str, list[FilledItem]]]:
        """Items under their headings."""
        return [(name, list(items)) for name, items in groupby(self.items, key=lambda one: one.item.section)]

    @property
    def n_open(self) -> int:
        """Items in which a person has to write."""
        return sum(bool(one.open) for one in self.items)

    def to_dict(self) -> StudyDocument:
        """Return it as JSON values."""
        return {
            "standard": self.standard,
            "as_of": self.as_of.isoformat(),
            "n_open": self.n_open,
            "items": [
                {
                    "number": one.item.number,
                    "section": one.item.section,
                    "asks": one.item.asks,
                    "filled": one.filled,
                    "open": one.open,
                    "annex": one.annexed,
                }
                for one in self.items
            ],
            "readers": self.readers.to_dict(),
        }


def study_of(facts: StudyFacts, body: ReportBody, as_of: datetime, standard: Standard) -> Study:
    """The report of a study.

    Args:
        facts: what is stored.
        body: the evaluation.
        as_of: when that was made.
        standard: stard-ai or claim.
    """
    name, items = STANDARDS[standard]
    texts = texts_of(facts, body)
    filled = [FilledItem(item, [text for topic in item.topics for text in texts[topic]]) for item in items]
    return Study(name, as_of, filled, annex_of(body.document, body.agreement))


def html_study(study: Study) -> str:
    """The report of a study as one page that opens offline."""
    return environment().get_template("study_file.html").render(study=study)
