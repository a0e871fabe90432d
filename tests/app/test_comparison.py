"""A challenger beside the champion, what is in force for the next request, and the choice of reference cells."""

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from app.annotators.reference_cells.selection import N_CELLS, CellCandidate, candidate_of, pair_at_stake, select_cells
from app.context import ServiceContext, build_context
from app.database.tables import Account, Case, Exposure, utc_now
from app.http.models import PredictionOut
from app.http.principal import Principal
from app.metrics.prediction_set_calibration import _store_thresholds
from app.predictions.stored import PublishedSets
from app.releases.queries import get_champion_alias
from app.releases.service import move_alias
from app.settings import Settings
from app.triage.queries import _threshold_before, current_policy
from app.triage.schemas import PolicyIn
from app.triage.service import add_policy
from tests.app.test_snapshots import bring_back, keep_database
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect, put_release, stored_image
from tests.support.tiny_release import write_tiny_release

N_CASES = 24
EVERYTHING = {"partition": "all", "weighting": "none"}


def added(service: Service, path: Path) -> str:
    context = service.context
    with context.database.write() as session:
        return str(put_release(session, context.keys.audit, path, context.settings.releases_folder).id)


def make(service: Service, alias: str, release: str, revision: int) -> None:
    body = {"release": release, "reason": "to be looked at", "despite_gate": alias == "champion"}
    answer = service.call("admin", "PUT", f"/v1/aliases/{alias}", json=body, headers={"If-Match": f'"{revision}"'})
    assert answer.status_code == 200, answer.text
    assert work_off(service.context) == 1
    assert service.get("admin", "/v1/jobs").json()["items"][0]["state"] == "succeeded"


def comparison(service: Service, release: str) -> dict[str, Any]:
    answer = service.get("viewer", f"/v1/releases/{release}/comparison", params=EVERYTHING)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.slow
def test_a_challenger_is_compared_and_shown_to_nobody(service: Service, dropout_release: Path) -> None:
    collect(service, [cell_png(i) for i in range(N_CASES)], patients=True)
    before = service.get("admin", "/v1/cases", params={"limit": 50}).json()["items"]
    worklist = service.get("admin", "/v1/worklist").json()
    release = added(service, dropout_release)
    nothing = comparison(service, release)
    assert (nothing["n_labelled"], nothing["n_labelled_not_predicted"]) == (0, 18)
    assert nothing["metrics"]["L"]["change"]["value"] is None
    make(service, "challenger", release, 0)
    assert service.get("admin", "/v1/cases", params={"limit": 50}).json()["items"] == before
    assert service.get("admin", "/v1/worklist").json() == worklist
    found = comparison(service, release)
    assert (found["n_cases"], found["n_labelled"], found["n_labelled_not_predicted"]) == (N_CASES, 18, 0)
    for who, query in (("champion", EVERYTHING), ("release", EVERYTHING | {"release": release})):
        alone = service.get("viewer", "/v1/metrics", params=query).json()["metrics"]
        for name, row in found["metrics"].items():
            assert row[who]["value"] == pytest.approx(alone[name]["value"], abs=1e-12), (who, name)
    for name, row in found["metrics"].items():
        difference = row["release"]["value"] - row["champion"]["value"]
        assert row["change"]["value"] == pytest.approx(difference, abs=1e-12), name
    assert found["metrics"]["L"]["change"]["value"] != 0
    # the champion beside itself
    champion = found["champion"]
    assert all(row["change"]["value"] == 0 for row in comparison(service, champion)["metrics"].values())


def test_triage_by_capacity_and_the_record_of_what_was_shown_go_by_the_champion(
    service: Service, dropout_release: Path
) -> None:
    cases = [service.add_case(f"case-{number}", cell_png(number)) for number in range(6)]
    tomorrow = utc_now() + timedelta(days=1)

    def threshold() -> tuple[float | None, int]:
        with service.context.database.read() as session:
            policy = current_policy(session)
            policy.capacity_per_day = 2  # in memory only
            return _threshold_before(session, policy, tomorrow)

    before = threshold()
    assert before[0] is not None
    make(service, "challenger", added(service, dropout_release), 0)
    assert threshold() == before
    read = service.post("anna", "/v1/reads").json()
    case = next(case for case in cases if case["id"] == service.case_of("anna", read["case_id"]))
    assert service.answer("anna", case["id"], case["prediction"]["classes"][0]).status_code == 201
    assert service.get("anna", f"/v1/cases/{case['id']}").status_code == 200
    shown = service.scalars(select(Exposure.release_id))
    assert [str(release_id) for release_id in shown] == [case["prediction"]["release"]]


def test_a_promoted_network_predicts_the_old_cases_that_it_can_see(service: Service, dropout_release: Path) -> None:
    cases = [service.add_case(f"case-{number}", cell_png(number)) for number in range(3)]
    damaged = service.one(select(Case.stored_sha256).where(Case.external_id == "case-1"))
    stored_image(service.context, damaged).write_bytes(b"not what was stored")
    release = added(service, dropout_release)
    make(service, "champion", release, 1)
    result = service.get("admin", "/v1/jobs").json()["items"][0]["result"]
    assert (result["n_predicted"], result["n_unreadable"]) == (2, 1)
    shown = [service.get("admin", f"/v1/cases/{case['id']}").json()["prediction"] for case in cases]
    assert [row["release"] == release for row in shown] == [True, False, True]
    assert shown[0]["log_concentration"] is None  # a mixture


def test_a_release_that_is_not_there_has_no_comparison(service: Service) -> None:
    assert service.get("viewer", f"/v1/releases/{'0' * 32}/comparison").status_code == 404


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


@pytest.mark.slow
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


_patients = st.one_of(st.none(), st.sampled_from(["p", "q", "r", "s"]))


@st.composite
def candidates(draw: st.DrawFn) -> list[CellCandidate]:
    """Cells of one class, each with a lot of its own."""
    made = []
    for number in range(draw(st.integers(0, 14))):
        n_readers = draw(st.integers(2, 6))
        n_same = draw(st.integers(2, n_readers))
        made.append(
            CellCandidate(uuid.UUID(int=number), "blast", n_readers, n_same, draw(_patients), number.to_bytes(2, "big"))
        )
    return made


def cell(number: int, n_readers: int = 2, n_same: int = 2, patient: str | None = None) -> CellCandidate:
    return CellCandidate(uuid.UUID(int=number), "blast", n_readers, n_same, patient, bytes([number]))


@given(candidates(), st.integers(0, 3), st.randoms())
def test_the_choice_is_full_keeps_what_is_kept_and_knows_no_order(
    found: list[CellCandidate], n_kept: int, rng: random.Random
) -> None:
    kept = found[:n_kept]
    chosen = select_cells(found, kept)
    assert len(chosen) == min(N_CELLS, len(found))
    assert len({one.case_id for one in chosen}) == len(chosen)
    assert chosen[: len(kept)] == kept
    assert select_cells(rng.sample(found, len(found)), kept) == chosen
    rest = chosen[len(kept) :]
    assert [one.worth for one in rest] == sorted((one.worth for one in rest), reverse=True)


@given(candidates())
def test_no_patient_has_a_second_cell_while_another_patient_has_none(found: list[CellCandidate]) -> None:
    chosen = select_cells(found)
    counts = Counter(one.patient for one in chosen if one.patient is not None)
    left_out = {one.patient for one in found} - {one.patient for one in chosen}
    free_left = [one for one in found if one not in chosen and one.patient is None]
    assert max(counts.values(), default=0) <= 1 or not (left_out - {None} or free_left)


@given(candidates())
def test_of_each_patient_the_worthiest_cell_comes_first(found: list[CellCandidate]) -> None:
    for one in select_cells(found):
        better = [other for other in found if other.patient == one.patient and other.worth > one.worth]
        assert all(other in select_cells(found) for other in better)


def test_readers_and_agreement_count_together() -> None:
    two, four, most, nearly = cell(1), cell(2, 4, 4), cell(3, 12, 10), cell(4, 10, 9)
    assert select_cells([two, most, nearly, four]) == [four, nearly, most, two]
    assert select_cells([two, four], [two], 1) == [two]
    assert select_cells([], []) == []


def test_too_few_readers_or_too_little_agreement_make_no_candidate() -> None:
    case_id = uuid.UUID(int=1)
    assert candidate_of(case_id, [], None, b"") is None
    assert candidate_of(case_id, ["blast"], None, b"") is None
    assert candidate_of(case_id, ["blast"] * 3 + ["monocyte"], None, b"") is None
    found = candidate_of(case_id, ["blast"] * 4 + ["monocyte"], "p", b"x")
    assert found == CellCandidate(case_id, "blast", 5, 4, "p", b"x")


def test_a_case_is_between_what_was_said_else_between_what_is_likely() -> None:
    probs = {"blast": 0.5, "monocyte": 0.3, "lymphocyte": 0.2}
    assert pair_at_stake("monocyte", Counter(blast=2, lymphocyte=1), probs) == ("monocyte", "blast")
    assert pair_at_stake("monocyte", Counter(monocyte=2), probs) == ("monocyte", "blast")
    assert pair_at_stake("blast", Counter(blast=2, lymphocyte=1), probs) == ("blast", "lymphocyte")
    assert pair_at_stake(None, Counter(lymphocyte=2, monocyte=1), probs) == ("lymphocyte", "monocyte")
    assert pair_at_stake(None, Counter(lymphocyte=2), probs) == ("lymphocyte", "blast")
    assert pair_at_stake(None, Counter(), probs) == ("blast", "monocyte")
    assert pair_at_stake("blast", Counter(), {}) is None
    assert pair_at_stake(None, Counter(), {}) is None
