"""From the labels of a service to a release and back: what it was trained on never judges it, whatever it is called."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sqlalchemy import select

from app.cases.ingest import partition_of
from app.database.tables import Case, CasePrediction
from app.metrics.cohort import CohortQuery, is_kept_for_sets
from app.metrics.service import load_judged_cohort
from app.recalibration.service import read_recalibration_inputs
from app.releases.registration import add_release
from app.releases.training import measure_training_overlap, patient_hmac
from ml.datasets.folder import load_folder
from ml.release.artifact import read_release
from ml.release.training_index import TrainingIndex
from ml.training.train import index_of
from tests.app.test_comparison import added, comparison, make
from tests.support.images import encode
from tests.support.service import Service, cell_png, store
from tests.support.tiny_release import with_training

EVERYTHING = {"partition": "all", "weighting": "none"}


def patients_of(service: Service, partition: str, n: int) -> list[str]:
    """Patients that fall into a partition."""
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
    for table in (
        everything,
        rows,
    ):  # no patient is on both sides, and nobody is named by a digest that can be tried out
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
    with service.context.database.read() as session:
        wanted = select(Case.external_id, CasePrediction.trained_on).join(CasePrediction)
        rows = session.execute(wanted.where(CasePrediction.release_id == _uuid(release)))
        return {row[0]: row[1] for row in rows}


def _uuid(text: str) -> Any:
    from uuid import UUID

    return UUID(text)


@pytest.mark.slow
def test_what_a_release_was_trained_on_is_found_under_any_name_and_judges_nothing(
    service: Service, tiny_release: Path, tmp_path: Path
) -> None:
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
    expected = dict.fromkeys(network | {"same patient", "renamed"}, "network") | dict.fromkeys(
        calibration, "calibration"
    )
    assert {name: use for name, use in uses.items() if use} == expected
    compared = comparison(service, str(release.id))
    assert compared["trained_on"] == {"n_left_out": len(expected), "images": "unknown", "patients": "unknown"}
    assert compared["n_cases"] == len(uses) - len(expected)
    metrics = service.get("viewer", "/v1/metrics", params=EVERYTHING | {"release": str(release.id)}).json()
    assert metrics["trained_on"] == {"n_left_out": len(expected), "images": "known", "patients": "known"}
    assert metrics["n_cases"] == compared["n_cases"]
    assert any("left out because the release was trained on them" in text for text in metrics["warnings"])
    champion = service.get("viewer", "/v1/metrics", params=EVERYTHING).json()
    assert champion["trained_on"] == {"n_left_out": 0, "images": "unknown", "patients": "unknown"}
    assert champion["n_cases"] == len(uses)
    evaluation = service.get("viewer", "/v1/metrics", params={"weighting": "none", "release": str(release.id)}).json()
    assert evaluation["trained_on"]["n_left_out"] == 1  # the renamed one


@pytest.mark.slow
def test_new_cases_are_compared_as_they_come_and_recalibration_leaves_them_out(
    service: Service, tiny_release: Path, tmp_path: Path
) -> None:
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


def test_digests_of_another_installation_say_nothing_about_patients(
    service: Service, tmp_path: Path, tiny_release: Path
) -> None:
    fill(service, 3, 1, size=16)
    foreign = TrainingIndex.of([bytes([1]) * 32], ["network"], [f"another:{'0' * 64}"])
    source = read_release(with_training(tiny_release, tmp_path / "foreign", foreign))
    with service.context.database.read() as session:
        overlap = measure_training_overlap(session, service.context.keys.training, source.card, source.training)
    assert (overlap.n_trained_on, overlap.images, overlap.patients) == (0, "known", "unknown")
    assert "same patients is unknown" in overlap.sentence()
