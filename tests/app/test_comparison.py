"""A challenger for the champion, cells that trained it, what is in force, the choice of reference cells."""

import csv
import io
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sqlalchemy import select

from app.annotators.reference_cells.selection import N_CELLS, CellCandidate, candidate_of, pair_at_stake, select_cells
from app.cases.ingest import partition_of
from app.context import ServiceContext, build_context
from app.database.tables import Case, CasePrediction, Exposure, utc_now
from app.http.models import PredictionOut
from app.http.principal import Principal
from app.metrics.cohort import CohortQuery, is_kept_for_sets
from app.metrics.prediction_set_calibration import _store_thresholds
from app.metrics.service import load_judged_cohort
from app.predictions.stored import PublishedSets
from app.recalibration.service import read_recalibration_inputs
from app.releases.queries import get_champion_alias
from app.releases.registration import add_release
from app.releases.service import move_alias
from app.releases.training import measure_training_overlap, patient_hmac
from app.settings import Settings
from app.triage.queries import _threshold_before, current_policy
from app.triage.schemas import PolicyIn
from app.triage.service import add_policy
from ml.datasets.folder import load_folder
from ml.release.artifact import read_release
from ml.release.training_index import TrainingIndex
from ml.training.train import index_of
from tests.app.test_snapshots import bring_back, keep_database
from tests.support.images import encode
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect, put_release, store, stored_image
from tests.support.tiny_release import with_training, write_tiny_release

N_CASES = 24
EVERYTHING = {"partition": "all", "weighting": "none"}


def added(service: Service, path: Path) -> str:
    return str(service.put_release(path).id)


def make(service: Service, alias: str, release: str, revision: int) -> None:
    body = {"release": release, "reason": "to be looked at", "despite_gate": alias == "champion"}
    answer = service.call("admin", "PUT", f"/v1/aliases/{alias}", json=body, headers={"If-Match": f'"{revision}"'})
    assert answer.status_code == 200, answer.text
    assert work_off(service.context) == 1
    assert service.get("admin", "/v1/jobs").json()["items"][0]["state"] == "succeeded"


def comparison(service: Service, release: str) -> Any:
    return service.document(f"/v1/releases/{release}/comparison", **EVERYTHING)


@pytest.mark.slow
def test_a_challenger_is_compared_and_shown_to_nobody(service: Service, dropout_release: Path) -> None:
    collect(service, [cell_png(i) for i in range(N_CASES)], patients=True)
    before, worklist = list(service.items("/v1/cases", "admin")), service.document("/v1/worklist", "admin")
    release = added(service, dropout_release)
    nothing = comparison(service, release)
    assert (nothing["n_labelled"], nothing["n_labelled_not_predicted"]) == (0, 18)
    assert nothing["metrics"]["L"]["change"]["value"] is None
    make(service, "challenger", release, 0)
    assert list(service.items("/v1/cases", "admin")) == before
    assert service.document("/v1/worklist", "admin") == worklist
    found = comparison(service, release)
    assert (found["n_cases"], found["n_labelled"], found["n_labelled_not_predicted"]) == (N_CASES, 18, 0)
    for who, query in (("champion", EVERYTHING), ("release", EVERYTHING | {"release": release})):
        alone = service.document("/v1/metrics", **query)["metrics"]
        for name, row in found["metrics"].items():
            assert row[who]["value"] == pytest.approx(alone[name]["value"], abs=1e-12), (who, name)
    for name, row in found["metrics"].items():
        difference = row["release"]["value"] - row["champion"]["value"]
        assert row["change"]["value"] == pytest.approx(difference, abs=1e-12), name
    assert found["metrics"]["L"]["change"]["value"] != 0
    # the champion beside itself
    champion = found["champion"]
    assert all(row["change"]["value"] == 0 for row in comparison(service, champion)["metrics"].values())


@pytest.mark.slow
def test_capacity_and_the_record_of_what_was_shown_go_by_the_champion(service: Service, dropout_release: Path) -> None:
    cases = service.add_cases(6)
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
    cases = service.add_cases(3)
    damaged = service.one(select(Case.stored_sha256).where(Case.external_id == "case 1"))
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


def decide(context: ServiceContext, lead: Principal, threshold: float) -> None:
    wanted = PolicyIn(rule="disagreement", threshold=threshold, audit_rate=0.25, reason="a test")
    with context.database.write() as session:
        add_policy(session, context.keys.audit, lead, wanted)


@pytest.fixture
def elsewhere(service: Service, settings: Settings) -> Iterator[ServiceContext]:
    """Another process on the same database: nothing of it is shared with the service but what is stored."""
    context = build_context(settings)
    yield context
    context.inference.close()
    context.database.engine.dispose()


@pytest.mark.slow
@pytest.mark.both_databases
def test_a_promotion_elsewhere_is_seen_at_once(service: Service, elsewhere: ServiceContext, tmp_path: Path) -> None:
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
def test_a_policy_and_sets_from_elsewhere_are_seen_at_once(service: Service, elsewhere: ServiceContext) -> None:
    before = predicted(service)["triage"]
    decide(elsewhere, service.principal("admin"), 0.0)
    assert predicted(service)["triage"] != before
    for reason in ("the first", "the second"):
        with elsewhere.database.write() as session:
            alias = get_champion_alias(session)
            assert alias is not None
            _store_thresholds(session, alias.release_id, PublishedSets(reason=reason), "a test")
        assert predicted(service)["answer_set"]["reason"] == reason


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_another_policy_of_the_same_number_is_another_one(service: Service, tmp_path: Path) -> None:
    """An older database comes back under a server that goes on, and the lead decides once more, differently."""
    keep_database(service.context, tmp_path / "older.db")
    answers = []
    for threshold in (0.0, 0.999):
        decide(service.context, service.principal("admin"), threshold)
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
def test_the_choice_is_full_and_knows_no_order(found: list[CellCandidate], n_kept: int, rng: random.Random) -> None:
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


def patients_of(service: Service, partition: str, n: int) -> list[str]:
    key = service.context.keys.partition
    names = (f"patient {number}" for number in range(1000))
    return [name for name in names if partition_of(key, name, "") == partition][:n]


def fill(service: Service, n_calibration: int, n_evaluation: int, size: int = 32) -> None:
    """Two cells of each patient, each labelled twice."""
    number = 0
    for partition, n in (("calibration", n_calibration), ("evaluation", n_evaluation)):
        for patient in patients_of(service, partition, n):
            for _ in range(2):
                labels = {"r": number % 3, "s": (number + (number % 5 == 0)) % 3}
                store(service, f"case-{number}", cell_png(number, size), labels, patient=patient)
                number += 1


def exported(service: Service, out: Path, partition: Any = "calibration") -> list[dict[str, str]]:
    service.export(out, partition)
    return list(csv.DictReader(io.StringIO((out / "labels.csv").read_text())))


def external_ids(service: Service, *conditions: Any) -> set[str]:
    return set(service.scalars(select(Case.external_id).where(*conditions)))


def kept_for_sets_here(service: Service) -> set[str]:
    """Cases of the calibration partition that no fit sees; each patient is named."""
    rows = service.rows(select(Case.external_id, Case.patient).where(Case.partition == "calibration"))
    return {name for name, patient in rows if is_kept_for_sets(service.context.keys.sets, f"patient:{patient}")}


def test_an_export_says_what_may_be_trained_on(service: Service, tmp_path: Path) -> None:
    fill(service, 12, 6, size=16)
    evaluation = external_ids(service, Case.partition == "evaluation")
    everything = exported(service, tmp_path / "all", "all")
    kept = kept_for_sets_here(service)
    assert kept
    assert {row["case_id"] for row in everything if row["partition"] == "test"} == evaluation | kept
    assert {row["partition"] for row in everything} == {"train", "valid", "calibration", "test"}
    dataset = load_folder(tmp_path / "all", size=8)
    assert {dataset.case_ids[row] for row in dataset.rows("test")} == evaluation | kept
    assert dataset.annotators == ("r", "s")
    rows = exported(service, tmp_path / "default")
    assert {row["case_id"] for row in rows} == external_ids(service, Case.partition == "calibration") - kept
    assert {row["partition"] for row in rows} == {"train", "valid", "calibration", "test"}
    for table in (everything, rows):  # no patient is on both sides, and nobody is named by a digest to be tried out
        assert len({(row["patient"], row["partition"]) for row in table}) == len({row["patient"] for row in table})
        for row in table:
            assert row["patient_hmac"] == patient_hmac(service.context.keys.training, row["patient"])


def trained(service: Service, tiny_release: Path, tmp_path: Path) -> tuple[Path, set[str], set[str]]:
    """A release that was trained on the export of a service; cases that its network saw, and that calibrated it."""
    rows = exported(service, tmp_path / "out")
    index = index_of(load_folder(tmp_path / "out", size=8))
    network = {row["case_id"] for row in rows if row["partition"] in {"train", "valid"}}
    calibration = {row["case_id"] for row in rows if row["partition"] == "calibration"}
    return with_training(tiny_release, tmp_path / "trained", index), network, calibration


def marked(service: Service, release: str) -> dict[str, str | None]:
    wanted = select(Case.external_id, CasePrediction.trained_on).join(CasePrediction)
    return dict(service.rows(wanted.where(CasePrediction.release_id == UUID(release))))


@pytest.mark.slow
def test_what_a_release_was_trained_on_judges_nothing(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    fill(service, 8, 4, size=16)
    source, network, calibration = trained(service, tiny_release, tmp_path)
    first = min(network, key=lambda name: int(name.split("-")[1]))
    number = int(first.split("-")[1])
    again = encode(Image.open(io.BytesIO(cell_png(number, 16))), "TIFF", compression="tiff_lzw")
    (stranger,) = patients_of(service, "evaluation", 5)[4:]
    store(service, "renamed", again, {"r": 0, "s": 1}, patient=stranger)
    seen_patient = next(row["patient"] for row in exported(service, tmp_path / "who") if row["case_id"] == first)
    store(service, "same patient", cell_png(900, 16), {"r": 0}, patient=seen_patient.removeprefix("patient:"))
    store(service, "unknown", cell_png(901, 16), {"r": 0, "s": 0}, patient=patients_of(service, "evaluation", 6)[5])
    context = service.context
    release, _ = add_release(context.database, context.keys.audit, source, context.folders)
    with context.database.read() as session:
        overlap = measure_training_overlap(session, context.keys.training, release.card, read_release(source).training)
    found = network | calibration | {"same patient", "renamed"}
    assert (overlap.n_trained_on, overlap.patients) == (len(found), "known")
    make(service, "challenger", str(release.id), 0)
    uses = marked(service, str(release.id))
    expected = dict.fromkeys(network | {"same patient", "renamed"}, "network")
    expected |= dict.fromkeys(calibration, "calibration")
    assert {name: use for name, use in uses.items() if use} == expected
    compared = comparison(service, str(release.id))
    assert compared["trained_on"] == {"n_left_out": len(expected), "images": "unknown", "patients": "unknown"}
    assert compared["n_cases"] == len(uses) - len(expected)
    metrics = service.document("/v1/metrics", **EVERYTHING, release=str(release.id))
    assert metrics["trained_on"] == {"n_left_out": len(expected), "images": "known", "patients": "known"}
    assert metrics["n_cases"] == compared["n_cases"]
    assert any("because the model was trained on them" in text for text in metrics["warnings"])
    champion = service.document("/v1/metrics", **EVERYTHING)
    assert champion["trained_on"] == {"n_left_out": 0, "images": "unknown", "patients": "unknown"}
    assert champion["n_cases"] == len(uses)
    evaluation = service.document("/v1/metrics", weighting="none", release=str(release.id))
    assert evaluation["trained_on"]["n_left_out"] == 1  # the renamed one


@pytest.mark.slow
def test_new_cases_are_left_out_of_recalibration(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    fill(service, 8, 4, size=16)
    source, network, calibration = trained(service, tiny_release, tmp_path)
    make(service, "champion", added(service, source), 1)
    context = service.context
    (stranger,) = patients_of(service, "evaluation", 5)[4:]
    store(service, "again", cell_png(int(min(network).split("-")[1]), 16), {"r": 0, "s": 1}, patient=stranger)
    store(service, "new", cell_png(901, 16), {"r": 0, "s": 1}, patient=stranger)
    with context.database.read() as session:
        release_id, cohort, out, *_ = load_judged_cohort(session, context, None, CohortQuery(weighting="none"))
        material = read_recalibration_inputs(session, context)
        names = {row.id: row.external_id for row in session.execute(select(Case)).scalars()}
    assert marked(service, str(release_id))["again"] == "network"
    assert out.n_left_out == 1
    judged = {names[case_id] for case_id in cohort.columns.ids()}
    assert judged == external_ids(service, Case.partition == "evaluation") - {"again"}
    fitted = {names[case_id] for case_id in material.fitting.case_ids}
    # what only calibrated it, its network has never seen: a later calibration may be fitted to it again
    kept = kept_for_sets_here(service)
    assert fitted == external_ids(service, Case.partition == "calibration") - network - kept
    assert material.n_kept_for_sets == len(kept - network)
    assert calibration <= fitted
    assert "again" not in {names[case_id] for case_id in material.cohort.columns.ids()}
    assert (material.n_left_out_of_fit, material.n_left_out_of_judgement) == (len(network), 1)


def test_digests_of_others_say_nothing_about_patients(service: Service, tmp_path: Path, tiny_release: Path) -> None:
    fill(service, 3, 1, size=16)
    foreign = TrainingIndex.of([bytes([1]) * 32], ["network"], [f"another:{'0' * 64}"])
    source = read_release(with_training(tiny_release, tmp_path / "foreign", foreign))
    with service.context.database.read() as session:
        overlap = measure_training_overlap(session, service.context.keys.training, source.card, source.training)
    assert (overlap.n_trained_on, overlap.images, overlap.patients) == (0, "known", "unknown")
    assert "other cells of the same patients" in overlap.sentence()
