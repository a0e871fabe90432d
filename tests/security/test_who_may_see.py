"""Who may see a case in full, row by row: the law of commit and reveal without HTTP."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases.blindness import (
    BlindReadPending,
    ResolvedCase,
    ensure_revealed,
    exposures_of,
    has_committed,
    hidden_after_commit,
    hidden_because,
    note_exposure,
    record_exposure,
    was_exposed,
)
from app.database.engine import Database
from app.database.tables import (
    Account,
    Alias,
    Annotator,
    Case,
    CasePrediction,
    Exposure,
    Label,
    PolicyRow,
    ReadRequest,
    ReleaseRow,
    new_id,
    utc_now,
)
from app.http.principal import ROLE_SCOPES, Principal
from app.triage.queries import current_policy

ANNA, BEN, LEAD = "anna", "ben", "lead"


@dataclass
class Laboratory:
    """Two annotators, a lead, a case predicted by two releases, of which the older is the champion, and one by one."""

    database: Database
    people: dict[str, Principal]
    annotators: dict[str, uuid.UUID]
    cases: list[uuid.UUID]
    releases: list[uuid.UUID]

    def add(self, *rows: Any) -> None:
        with self.database.write() as session:
            for row in rows:
                session.add(row)
                session.flush()

    def commit_label(self, who: str, case: int = 0) -> uuid.UUID:
        label = Label(
            id=new_id(), created_at=utc_now(), case_id=self.cases[case], annotator_id=self.annotators[who],
            kind="label", class_code="a", blind=True, round="planned", created_by=self.people[who].account_id,
        )  # fmt: skip
        identifier = label.id
        self.add(label)
        return identifier

    def policy(self, reveal: str) -> int:
        """A newer version that reveals otherwise."""
        with self.database.read() as session:
            newest = current_policy(session)
            values = {column.name: getattr(newest, column.name) for column in PolicyRow.__table__.columns}
        version = int(values["version"]) + 1
        self.add(PolicyRow(**values | {"id": new_id(), "version": version, "reveal": reveal}))
        return version

    def request(self, version: int, *, case: int = 0, ordinal: int = 1, **changes: Any) -> None:
        values: dict[str, Any] = {
            "id": new_id(), "created_at": utc_now(), "case_id": self.cases[case], "ordinal": ordinal,
            "round": "planned", "arm": "first", "u": 0.5, "pi": 1.0, "policy_version": version,
            "due_at": utc_now() + timedelta(days=1),
            "due_on": "2026-01-01", "shuffle": 0, "state": "open",
        }  # fmt: skip
        self.add(ReadRequest(**values | changes))

    def hidden(self, who: str = ANNA, case: int = 0) -> str | None:
        with self.database.read() as session:
            return hidden_because(session, self.people[who], ResolvedCase(self.cases[case]))


@pytest.fixture
def laboratory(database_url: str) -> Iterator[Laboratory]:
    database = Database(database_url)
    roles = {ANNA: "annotator", BEN: "annotator", LEAD: "admin"}
    accounts = {name: Account(id=new_id(), created_at=utc_now(), name=name, role=role) for name, role in roles.items()}
    annotators = {
        name: Annotator(id=new_id(), created_at=utc_now(), name=name, account_id=accounts[name].id)
        for name in (ANNA, BEN)
    }
    releases = [
        ReleaseRow(id=new_id(), created_at=utc_now(), name=f"r{i}", card_sha256=f"{i:064x}", card={}) for i in range(2)
    ]
    shared: dict[str, Any] = {
        "case_metadata": {}, "image_sha256": "0" * 64, "width": 8, "height": 8, "u": 0.5,
        "partition": "evaluation", "pi": 0.1, "created_by": accounts[LEAD].id,
    }  # fmt: skip
    cases = [
        Case(
            id=new_id(),
            created_at=utc_now(),
            external_id=f"c{i}",
            stored_sha256=f"{i:064x}",
            pixels_sha256=f"{i:064x}",
            **shared,
        )
        for i in range(2)
    ]
    predictions = [
        CasePrediction(
            id=new_id(), created_at=utc_now(), case_id=case.id, release_id=release.id, class_probs=[1.0, 0.0],
            disagreement_prob=0.0,
        )
        for case, release in ((cases[0], releases[0]), (cases[0], releases[1]), (cases[1], releases[1]))
    ]  # fmt: skip
    people = {
        name: Principal(account.id, name, account.role, ROLE_SCOPES[account.role]) for name, account in accounts.items()
    }
    made = Laboratory(
        database, people, {name: row.id for name, row in annotators.items()}, [case.id for case in cases],
        [release.id for release in releases],
    )  # fmt: skip
    alias = Alias(name="champion", release_id=releases[0].id, revision=1)
    made.add(*accounts.values(), *annotators.values(), *releases, alias, *cases, *predictions)
    yield made
    database.engine.dispose()


def test_only_an_annotator_is_blind_and_only_until_their_own_label_of_this_case(laboratory: Laboratory) -> None:
    assert laboratory.hidden(LEAD) is None
    assert laboratory.hidden(ANNA) == laboratory.hidden(BEN) == "before-commit"
    laboratory.commit_label(ANNA)
    assert laboratory.hidden(ANNA) is None
    assert laboratory.hidden(BEN) == "before-commit"
    assert laboratory.hidden(ANNA, case=1) == "before-commit"
    with laboratory.database.read() as session:
        committed = [
            has_committed(session, laboratory.people[who], ResolvedCase(case))
            for who in (ANNA, BEN)
            for case in laboratory.cases
        ]
    assert committed == [True, False, False, False]


@pytest.mark.parametrize(
    ("reveal", "request_", "expected"),
    [
        ("after_commit", {}, None),
        ("after_case_closed", {}, "until-case-closed"),
        ("after_case_closed", {"state": "leased"}, "until-case-closed"),
        ("after_case_closed", {"state": "answered"}, None),
        ("after_case_closed", {"state": "closed"}, None),
        ("after_case_closed", {"round": "adjudication", "arm": "adjudication"}, None),
        ("after_case_closed", {"due_at": "past"}, None),
        ("after_commit", {"arm": "audit"}, None),
        ("after_commit", {"arm": "triage"}, None),
        ("after_commit", {"arm": "audit", "state": "answered"}, None),
        ("never", {"state": "answered"}, "never"),
    ],
)
def test_what_is_shown_after_the_commit(
    laboratory: Laboratory, reveal: str, request_: dict[str, Any], expected: str | None
) -> None:
    if request_.get("due_at") == "past":
        request_ = request_ | {"due_at": utc_now() - timedelta(seconds=1)}
    laboratory.commit_label(ANNA)
    version = laboratory.policy(reveal)
    laboratory.request(version, ordinal=2, **request_)
    laboratory.request(version, case=1, arm="audit")  # of another case
    laboratory.policy("after_commit" if reveal == "never" else "never")  # later than every request of the case
    assert laboratory.hidden() == expected


def test_the_newest_policy_of_the_requests_decides_and_without_requests_the_one_in_force(
    laboratory: Laboratory,
) -> None:
    laboratory.commit_label(ANNA)
    first = laboratory.policy("never")
    assert laboratory.hidden() == "never"
    second = laboratory.policy("after_commit")
    assert laboratory.hidden() is None
    laboratory.request(first)
    assert laboratory.hidden() == "never"
    laboratory.request(second, ordinal=2)
    assert laboratory.hidden() is None
    with laboratory.database.read() as session:
        requests = session.execute(select(ReadRequest)).scalars().all()
        for in_force in (None, current_policy(session)):
            assert hidden_after_commit(session, requests, in_force, unsettled=False) is None
            assert hidden_after_commit(session, requests[:1], in_force, unsettled=False) == "never"
            assert hidden_after_commit(session, [], in_force, unsettled=False) is None
            assert hidden_after_commit(session, [], in_force, unsettled=True) == "until-case-closed"


def test_a_refusal_says_what_to_wait_for(laboratory: Laboratory) -> None:
    def refusal(session: Session) -> str:
        with pytest.raises(BlindReadPending) as refused:
            ensure_revealed(session, laboratory.people[ANNA], ResolvedCase(laboratory.cases[0]))
        return str(refused.value)

    with laboratory.database.read() as session:
        ensure_revealed(session, laboratory.people[LEAD], ResolvedCase(laboratory.cases[0]))
        assert refusal(session) == "commit your own label first; then this is shown"
    laboratory.commit_label(ANNA)
    laboratory.request(laboratory.policy("after_case_closed"))
    with laboratory.database.read() as session:
        assert (
            refusal(session)
            == "this is shown once all planned reads of the case are in, unless the policy keeps it closed"
        )
    laboratory.request(laboratory.policy("never"), ordinal=2)
    with laboratory.database.read() as session:
        assert refusal(session) == "the reading policy shows this to no annotator"


def test_the_first_look_is_recorded_once_with_what_was_shown(laboratory: Laboratory) -> None:
    database, case = laboratory.database, laboratory.cases[0]
    laboratory.commit_label(BEN)
    newest = laboratory.commit_label(ANNA)
    laboratory.commit_label(ANNA, case=1)
    with database.read() as session:
        note_exposure(database, session, laboratory.people[LEAD], case)
        assert session.execute(select(Exposure)).first() is None
    before = utc_now()
    for _ in range(2):
        with database.read() as session:
            note_exposure(database, session, laboratory.people[ANNA], case)
    nowhere: Any = None  # whoever has seen it already costs no writing transaction
    with database.read() as session:
        note_exposure(nowhere, session, laboratory.people[ANNA], case)
        row = session.execute(select(Exposure)).scalar_one()
        assert (row.annotator_id, row.case_id) == (laboratory.annotators[ANNA], case)
        assert (row.release_id, row.label_id) == (laboratory.releases[0], newest)  # the champion's, though older
        assert before <= row.created_at <= utc_now()
        assert was_exposed(session, laboratory.annotators[ANNA], case)
        assert not was_exposed(session, laboratory.annotators[BEN], case)
        assert not was_exposed(session, laboratory.annotators[ANNA], laboratory.cases[1])
        assert exposures_of(session, case) == [(ANNA, row.created_at)]
        assert exposures_of(session, laboratory.cases[1]) == []


def test_exposures_are_listed_in_their_order(laboratory: Laboratory) -> None:
    case, release = laboratory.cases[0], laboratory.releases[1]
    with laboratory.database.write() as session:
        for who in (BEN, ANNA, BEN):
            record_exposure(session, laboratory.annotators[who], case, release, None)
    with laboratory.database.read() as session:
        assert [name for name, _ in exposures_of(session, case)] == [BEN, ANNA]
        assert set(session.execute(select(Exposure.release_id)).scalars()) == {release}


def test_somebody_who_is_no_annotator_yet_leaves_no_exposure(laboratory: Laboratory) -> None:
    stranger = Principal(laboratory.people[LEAD].account_id, "x", "annotator", ROLE_SCOPES["annotator"])
    with laboratory.database.read() as session:
        note_exposure(laboratory.database, session, stranger, laboratory.cases[0])
        assert session.execute(select(Exposure)).first() is None
