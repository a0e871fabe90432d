"""Cases of an annotator that have been settled since they last looked: where they stood with the others."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.accounts.annotators import annotator_of_account
from app.audit.chain.keys import ReaderKeys
from app.cases.blindness import hidden_because, shown_to
from app.cases.opaque_ids import NamedCase, case_handle
from app.cases.queries import blind_opinions, label_history
from app.database.tables import Case
from app.http.languages import gettext, ngettext
from app.http.principal import Principal
from app.labels.annotator_day import LISTED, labelled_cases
from app.releases.queries import reading_classes
from app.web.reading import case_number

#: Shown at once.
MOST = 20


@dataclass(frozen=True)
class SettledCase:
    """A case that its annotator may be shown, and has not been yet.

    Attributes:
        id: of the case.
        handle: what the annotator knows it by.
        number: its short number.
        own: name of the class that they gave.
        others: names of the classes that others gave, blind, with how many did, the most first.
        agrees: how many of the others said the same.
        pair: the own class and what most of those said who differ, for the address of their reference cells; empty
            where nobody differs.
    """

    id: uuid.UUID
    handle: uuid.UUID
    number: str
    own: str
    others: Sequence[tuple[str, int]]
    agrees: int
    pair: Sequence[tuple[str, str]]

    @property
    def n_others(self) -> int:
        """How many others have read it."""
        return sum(n for _, n in self.others)

    @property
    def with_most(self) -> bool:
        """Whether most of the others said the same; half of them are not most."""
        return 2 * self.agrees > self.n_others

    @property
    def against_most(self) -> bool:
        """Whether most of the others said something else."""
        return 2 * self.agrees < self.n_others

    @property
    def sentence(self) -> str:
        """Where the annotator stood, in words."""
        if self.agrees == self.n_others:
            return ngettext(
                "You said “%(own)s”, as did the one other annotator.",
                "You said “%(own)s”, as did all %(n)s others.",
                self.n_others,
                own=self.own,
            )
        rest = ", ".join(gettext("%(n)s “%(name)s”", n=n, name=name) for name, n in self.others if name != self.own)
        if not self.agrees:
            return gettext(
                "You said “%(own)s”; no other annotator did; others said: %(rest)s.", own=self.own, rest=rest
            )
        return gettext(
            "You said “%(own)s”; %(same)s of %(others)s others said so too; others said: %(rest)s.",
            own=self.own,
            same=self.agrees,
            others=self.n_others,
            rest=rest,
        )


def settled_since(session: Session, keys: ReaderKeys, principal: Principal) -> list[SettledCase]:
    """Newest cases of an annotator that are closed, that others have read too, and that they have not been shown.

    A case that nobody else has read teaches nothing about others; one that is kept closed for a second visit is not
    listed, as on every page.
    """
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None:
        return []
    seen = shown_to(session, annotator.id)
    names, found = {info.code: info.name for info in reading_classes(session)}, []
    for case_id in labelled_cases(session, principal, LISTED):
        case = session.get(Case, case_id)  # None: a second visit, which stays closed
        if case is None or case.erased_at is not None or case_id in seen:
            continue
        if hidden_because(session, principal, NamedCase(case_id)) is not None:
            continue
        settled = _of(session, keys, principal, case_id, names)
        found += [] if settled is None else [settled]
        if len(found) == MOST:
            break
    return found


def _of(
    session: Session, keys: ReaderKeys, principal: Principal, case_id: uuid.UUID, names: dict[str, str]
) -> SettledCase | None:
    opinions = blind_opinions(label_history(session, case_id))
    own = [opinion.label.class_code for opinion in opinions if opinion.annotator == principal.name]
    said = Counter(opinion.label.class_code for opinion in opinions if opinion.annotator != principal.name)
    if not own or not said:
        return None
    handle = case_handle(keys, principal, case_id)
    others = [(names.get(str(code), str(code)), n) for code, n in said.most_common()]
    mine = str(own[0])
    pair = next(([("class", mine), ("class", str(code))] for code, _ in said.most_common() if code != own[0]), [])
    shown = pair if all(code in names for _, code in pair) else []
    return SettledCase(case_id, handle, case_number(handle), names.get(mine, mine), others, said[own[0]], shown)
