"""Closed cases that an annotator has not reviewed yet, with the other annotators' labels."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account
from app.audit.chain.keys import AnnotatorKeys
from app.cases.service import ResolvedCase, blind_opinions, case_handle, exposed_case_ids, hidden_because, label_history
from app.database.tables import Case
from app.http.languages import gettext, ngettext
from app.http.principal import Principal
from app.labels.service import LISTED, labelled_cases
from app.releases.service import reading_classes
from app.web.reading import case_number

#: Shown at once.
MOST = 20


@dataclass(frozen=True)
class SettledCase:
    """A closed case that its annotator may review, and has not reviewed yet."""

    id: uuid.UUID
    # what the annotator knows it by
    handle: uuid.UUID
    number: str
    # name of the class that they gave
    own: str
    # names of the classes that others gave, blind, with how many did, the most first
    others: Sequence[tuple[str, int]]
    # how many of the others said the same
    agrees: int
    # the own class and what most of those said who differ, for the address of their reference cells; empty where nobody
    # differs
    pair: Sequence[tuple[str, str]]

    @property
    def n_others(self) -> int:
        """Number of other annotators."""
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
        """Sentence on the annotator's label among the others'."""
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


def settled_since(session: Session, keys: AnnotatorKeys, principal: Principal) -> list[SettledCase]:
    """Newest closed cases of an annotator that others have read too and that were not reviewed."""
    # A case that nobody else has read teaches nothing about others; one that is kept closed for a second visit is not
    # listed, as on every page.
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None:
        return []
    seen = exposed_case_ids(session, annotator.id)
    names, cases = {info.code: info.name for info in reading_classes(session)}, []
    for case_id in labelled_cases(session, principal, LISTED):
        case = session.get(Case, case_id)  # None: a second visit, which stays closed
        if case is None or case.erased_at is not None or case_id in seen:
            continue
        if hidden_because(session, principal, ResolvedCase(case_id)) is not None:
            continue
        settled = _build_settled_case(session, keys, principal, case_id, names)
        cases += [] if settled is None else [settled]
        if len(cases) == MOST:
            break
    return cases


def _build_settled_case(
    session: Session, keys: AnnotatorKeys, principal: Principal, case_id: uuid.UUID, names: dict[str, str]
) -> SettledCase | None:
    opinions = blind_opinions(label_history(session, case_id))
    own = [opinion.label.class_code for opinion in opinions if opinion.annotator == principal.name]
    label_counts = Counter(opinion.label.class_code for opinion in opinions if opinion.annotator != principal.name)
    if not own or not label_counts:
        return None
    handle = case_handle(keys, principal, case_id)
    others = [(names.get(str(code), str(code)), n) for code, n in label_counts.most_common()]
    mine = str(own[0])
    pair = next(
        ([("class", mine), ("class", str(code))] for code, _ in label_counts.most_common() if code != own[0]), []
    )
    known_pair = pair if all(code in names for _, code in pair) else []
    return SettledCase(
        case_id, handle, case_number(handle), names.get(mine, mine), others, label_counts[own[0]], known_pair
    )
