"""What predictions are made by is held in memory, and never a moment longer than the database says that it is so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.context import ServiceContext, build_context
from app.database.tables import Account
from app.http.models import PredictionOut
from app.http.principal import Principal
from app.metrics.prediction_set_calibration import _store_thresholds
from app.predictions.stored import PublishedSets
from app.releases.queries import get_champion_alias
from app.releases.service import move_alias
from app.settings import Settings
from app.triage.schemas import PolicyIn
from app.triage.service import add_policy
from tests.app.test_snapshots import bring_back, keep_database
from tests.support.service import Service, cell_png, put_release
from tests.support.statements import counted
from tests.support.tiny_release import write_tiny_release

CELL = cell_png(3)


def predicted(service: Service) -> Any:
    answer = service.call("viewer", "POST", "/v1/predictions", content=CELL)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def elsewhere(service: Service, settings: Settings) -> Iterator[ServiceContext]:
    """Another process on the same database: nothing of it is shared with the service but what is stored."""
    context = build_context(settings)
    yield context
    context.inference.close()
    context.database.engine.dispose()


def test_a_key_and_what_is_in_force_take_one_statement(service: Service) -> None:
    predicted(service)
    with counted(service.context.database) as statements:
        predicted(service)
    assert len(statements) == 1, statements


@pytest.mark.both_databases
def test_a_promotion_in_another_process_is_seen_by_the_next_request(
    service: Service, elsewhere: ServiceContext, tmp_path: Path
) -> None:
    source = write_tiny_release(tmp_path / "other", name="other cells")
    with elsewhere.database.write() as session:
        before = get_champion_alias(session)
        assert before is not None
        other = put_release(session, elsewhere.keys.audit, source, elsewhere.settings.releases_folder)
    assert before.release_id != other.id
    for release_id in (other.id, before.release_id, other.id):
        assert predicted(service)["release"] != str(release_id)
        with elsewhere.database.write() as session:
            move_alias(session, elsewhere, "lead", "champion", release_id, "a test", None, despite_gate=True)
        assert predicted(service)["release"] == str(release_id)


@pytest.mark.both_databases
def test_a_policy_and_sets_of_another_process_are_seen_by_the_next_request(
    service: Service, elsewhere: ServiceContext
) -> None:
    before = predicted(service)["triage"]
    with elsewhere.database.write() as session:
        account = session.execute(select(Account).where(Account.name == "admin")).scalar_one()
        lead = Principal(account.id, account.name, account.role, frozenset())
        wanted = PolicyIn(rule="disagreement", threshold=0.0, audit_rate=0.25, reason="a test")
        add_policy(session, elsewhere.keys.audit, lead, wanted)
    assert predicted(service)["triage"] != before
    for reason in ("the first", "the second"):
        with elsewhere.database.write() as session:
            alias = get_champion_alias(session)
            assert alias is not None
            _store_thresholds(session, alias.release_id, PublishedSets(reason=reason), "a test")
        assert predicted(service)["answer_set"]["reason"] == reason


def wish(service: Service, rule: PolicyIn) -> None:
    with service.context.database.write() as session:
        account = session.execute(select(Account).where(Account.name == "admin")).scalar_one()
        lead = Principal(account.id, account.name, account.role, frozenset())
        add_policy(session, service.context.keys.audit, lead, rule)


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_another_policy_of_the_same_number_is_another_one(service: Service, tmp_path: Path) -> None:
    """An older database comes back under a server that goes on, and the lead decides once more, differently."""
    keep_database(service.context, tmp_path / "older.db")
    answers = []
    for threshold in (0.0, 0.999):
        wish(service, PolicyIn(rule="disagreement", threshold=threshold, audit_rate=0.25, reason="a test"))
        answers.append(predicted(service)["triage"])
        bring_back(service.context, tmp_path / "older.db")
    assert [answer["decision"] for answer in answers] == ["second_read", "single_read"]


def test_an_answer_is_written_as_every_other_answer_is(service: Service) -> None:
    answer = service.call("viewer", "POST", "/v1/predictions", content=CELL)
    assert answer.headers["content-type"] == "application/json"
    assert PredictionOut.model_validate_json(answer.content).model_dump_json() == answer.text
