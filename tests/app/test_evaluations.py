"""Metrics over collected labels: the library's on the exported tables, whatever the hour; and answer sets."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.cases.ingest import partition_of
from app.database.tables import AnswerSets, Case, CasePrediction, utc_now
from app.metrics import service as metric_service
from app.metrics.cohort import CohortQuery, is_kept_for_sets
from app.metrics.load import load_dataset
from app.metrics.prediction_set_calibration import calibrate_release_sets, publish_answer_sets
from app.metrics.published import publish_estimates
from app.metrics.service import CohortTables, cohort_tables, load_cohort, release_or_champion
from app.predictions.stored import AnswerSetQuery, PublishedSets, SiteThresholds, build_answer_set
from app.recalibration.service import read_recalibration_inputs
from app.releases.queries import existing_release, get_champion_alias
from ml.conformal import answer_scores, calibrate, patient_masses
from ml.datasets.folder import load_folder
from ml.metrics.definitions import with_long_names, without_long_names
from ml.tables import evaluate as evaluate_tables
from ml.tables.reading import write_table
from tests.app.test_leases import answer_all, classes_of, twice
from tests.support.jobs import finish_job
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, change_append_only, collect, store


def same(found: Any, expected: Any, where: str = "") -> None:
    """Equal to 1e-9 all the way down."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys(), where
        for name, value in expected.items():
            same(found[name], value, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (value, other) in enumerate(zip(found, expected, strict=True)):
            same(value, other, f"{where}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-9), where
    else:
        assert found == expected, where


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("patients", [False, True])
def test_metrics_equal_evaluate_on_the_exported_tables(service: Service, patients: bool, tmp_path: Path) -> None:
    collect(service, [cell_png(i) for i in range(24)], patients)
    document = service.document("/v1/metrics", partition="all", weighting="none")
    service.export(tmp_path / "out")
    tables = tmp_path / "out" / "labels.csv", tmp_path / "out" / "predictions.csv"
    expected = evaluate_tables(*tables, cluster="patient").to_dict()
    assert document["n_cases"] == expected["n_cases"] == 24
    same(document["metrics"], expected["metrics"])
    same(document["classes"], expected["classes"])
    if not patients:  # each case is its own patient
        for name, row in evaluate_tables(*tables).to_dict()["metrics"].items():
            assert document["metrics"][name]["value"] == pytest.approx(row["value"], abs=1e-9)


def test_the_export_can_be_trained_on(populated: Service, tmp_path: Path) -> None:
    populated.export(tmp_path / "out")
    dataset = load_folder(tmp_path / "out", size=32)
    assert dataset.pixels.shape == (18, 32, 32, 3)
    released = populated.document("/v1/releases")["items"][0]["classes"]
    assert [vars(info) for info in dataset.classes] == released  # with names, keys and groups
    assert dataset.label_counts.sum() == 36


def test_metrics_are_empty_but_whole_without_labels(service: Service) -> None:
    service.add_case()
    document = service.document("/v1/metrics")
    assert document["metrics"]["L"]["value"] is None
    assert document["warnings"]
    assert service.get("viewer", "/v1/metrics", params={"partition": "nonsense"}).status_code == 422
    publish_estimates(service.context)
    samples = [one for metric in text_string_to_metric_families(service.metrics()) for one in metric.samples]
    assert {"secondread_workers", "secondread_batch_size_sum"} <= {one.name for one in samples}
    assert [one for one in samples if not np.isfinite(one.value)] == []


def estimate_lines(service: Service) -> list[str]:
    return [line for line in service.metrics().splitlines() if line.startswith("secondread_estimate{")]


@pytest.mark.slow
@pytest.mark.ci
def test_gauges_are_published_by_the_worker_and_no_query(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.observability._COUNT_SECONDS", -1.0)  # count at every scrape
    collect(service, [cell_png(i) for i in range(16)], patients=True)
    assert service.document("/v1/metrics", partition="all")["metrics"]["L"]["value"] is not None
    assert estimate_lines(service) == []  # nothing was published yet
    publish_estimates(service.context)
    document = service.get("viewer", "/v1/metrics").json()
    metrics = without_long_names(document["metrics"])
    assert document["metrics"] == with_long_names(metrics) != metrics
    expected = {name: row["value"] for name, row in metrics.items() if row["value"] is not None}
    assert "L" in expected
    published = estimate_lines(service)
    wanted = {f'secondread_estimate{{metric="{name}",release="{document["release"]}"}}' for name in expected}
    assert {line.split(" ")[0] for line in published} == wanted
    shown = {line.split('"')[1]: float(line.split()[1]) for line in published}
    assert shown == pytest.approx(expected, rel=1e-12)
    for other in ({"partition": "all"}, {"weighting": "none"}, {"site": "north"}, {"group_by": "site"}):
        assert service.get("viewer", "/v1/metrics", params=other).status_code == 200
        assert estimate_lines(service) == published, other


@pytest.mark.slow
def test_a_service_whose_labels_are_all_of_one_class_shows_its_numbers_and_freezes_them(service: Service) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {"r": 0, "s": 0}, patient=f"p{number}")
    assert service.document("/v1/agreement", partition="all")["krippendorff_alpha"]["value"] is None
    assert "no two annotators have disagreed yet" in report_page(service, partition="all")
    assert finish_job(service, "/v1/evaluations", partition="all")["error"] is None


@pytest.mark.slow
@pytest.mark.ci
def test_a_frozen_evaluation_is_of_one_moment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {"r": 0, "s": 1}, patient=f"p{number}")
    case = service.document("/v1/cases")["items"][0]
    tables = cohort_tables

    def while_somebody_answers(*arguments: Any, **options: Any) -> CohortTables:
        service.outside_label(case["id"], "late reader", case["prediction"]["classes"][0])
        return tables(*arguments, **options)

    monkeypatch.setattr(metric_service, "cohort_tables", while_somebody_answers)
    assert finish_job(service, "/v1/evaluations", partition="all", weighting="none")["error"] is None
    frozen = next(service.context.settings.home.glob("evaluations/*/labels.parquet"))
    assert set(pyarrow.parquet.read_table(frozen)["annotator"].to_pylist()) == {"r", "s"}


@pytest.mark.slow
@pytest.mark.ci
def test_weighted_metrics_equal_evaluate_with_the_exported_weights(service: Service, tmp_path: Path) -> None:
    codes = twice(service, threshold=0.86, audit_rate=0.4)
    for number in range(24):
        service.add_case(f"case-{number}", cell_png(number), patient=f"p{number // 2}", site="ab"[number % 2])
    empty = service.document("/v1/metrics", partition="all")
    assert (empty["n_cases"], empty["selection"]["n_open"]) == (0, 24)
    assert answer_all(service, "anna", codes) == 24
    half = service.document("/v1/metrics", partition="all")
    planned_twice = half["selection"]["n_waiting"]
    assert 0 < planned_twice < 24
    assert (half["n_cases"], half["n_labels"], half["selection"]["n_open"]) == (24, 24, 0)
    answer_all(service, "ben", codes[1:])
    document = service.document("/v1/metrics", partition="all", group_by="site")
    assert (document["n_cases"], document["n_labels"]) == (24, 24 + planned_twice)
    with service.context.database.read() as session:
        tables = cohort_tables(session, load_cohort(session, CohortQuery(partition="all"))[1])
    paths = [tmp_path / f"{name}.parquet" for name in ("labels", "predictions")]
    for path, table in zip(paths, (tables.labels_table(), tables.predictions), strict=True):
        write_table(table, path)
    expected = evaluate_tables(*paths, sample_weight=("weight", "weight2"), cluster="patient")
    same(document["metrics"], expected.to_dict()["metrics"])
    for name in ("L", "CL", "CE"):  # the first reads were in, and second ones change nothing of order 1
        assert half["metrics"][name]["value"] == pytest.approx(document["metrics"][name]["value"], abs=1e-12)
    assert max(tables.weight2) == pytest.approx(1 / 0.4)
    assert [group["group"] for group in document["groups"]] == ["a", "b"]
    assert document["posterior_gain"]["n"] == planned_twice
    assert document["triage_curve"][-1]["value"] == pytest.approx(1.0)


def test_what_nobody_could_tell_is_told_as_a_rate_and_raises_the_other_weights(service: Service) -> None:
    codes = twice(service, audit_rate=0.5)
    service.add_cases(10)
    lease = service.post("anna", "/v1/reads").json()
    service.post("anna", f"/v1/reads/{lease['id']}/decline", json={"reason": "cannot_tell"})
    answer_all(service, "anna", codes)
    answer_all(service, "ben", codes[1:])
    document = service.document("/v1/metrics", partition="all")
    assert document["selection"]["orders"][1]["non_response"] == pytest.approx(0.1)
    assert sum(row["cannot_tell"] for row in document["selection"]["cannot_tell"]) == 1
    assert any("did not get them" in text for text in document["warnings"])
    assert document["metrics"]["EL"]["largest_weight"] > 1


def test_agreement_over_http(service: Service) -> None:
    assert service.document("/v1/agreement")["n_labels"] == 0
    collect(service, [cell_png(i) for i in range(16)], patients=True)
    document = service.document("/v1/agreement", partition="all")
    assert document["n_annotators"] == 3
    assert -1 <= document["krippendorff_alpha"]["value"] <= 1
    only = service.document("/v1/agreement", partition="all", group_by="class")
    assert "classes" in only
    assert "pairs" not in only
    assert service.get("anna", "/v1/agreement").status_code == 403


ALL = {"partition": "all"}


def metrics(service: Service, **question: str) -> Any:
    return service.document("/v1/metrics", **ALL | question)


def own_label(service: Service, who: str, case_id: str) -> str:
    """Identifier of an annotator's own label of a case."""
    labels = service.document(f"/v1/cases/{case_id}/labels")["items"]
    return next(str(label["id"]) for label in labels if label["annotator"] == who)


def two_opinions(service: Service, codes: list[str], n: int = 3) -> list[str]:
    """Cases that two annotators call differently; gives their identifiers."""
    cases = []
    for i in range(n):
        case_id = str(service.add_case(f"case {i}", cell_png(i), patient=f"p{i}")["id"])
        cases.append(case_id)
        assert service.answer("anna", case_id, codes[0]).status_code == 201
        assert service.answer("ben", case_id, codes[1]).status_code == 201
    service.make_labels_final()
    return cases


def test_taking_a_label_back_after_the_reveal_changes_no_estimate_and_is_reported(service: Service) -> None:
    codes = twice(service)
    cases = two_opinions(service, codes)
    before = metrics(service)
    for case_id in cases:
        assert service.get("ben", f"/v1/cases/{service.known_as('ben', case_id)}/posterior").status_code == 200
        path = f"/v1/labels/{own_label(service, 'ben', case_id)}/retraction"
        assert service.post("ben", path, json={"reason": "they were right"}).status_code == 201
    after = metrics(service)
    assert before["metrics"]["L_D"]["n"] == 3
    assert after["metrics"] == before["metrics"]
    probs = [service.document(f"/v1/cases/{case_id}")["prediction"]["class_probs"] for case_id in cases]
    away = sum(max(row, key=row.get) == codes[1] for row in probs)
    expected = {"n_labels": 6, "n_revised": 0, "n_retracted": 3}
    expected |= {"towards_prediction": 3 - away, "away_from_prediction": away}
    assert service.document("/v1/agreement", **ALL)["after_reveal"] == expected
    assert "withdrawn after unblinding" in report_page(service, path="/report/appendix", partition="all")


def test_taking_a_label_back_before_anything_was_shown_takes_it_out(service: Service) -> None:
    cases = two_opinions(service, twice(service, reveal="never"))
    path = f"/v1/labels/{own_label(service, 'ben', cases[0])}/retraction"
    assert service.post("ben", path, json={"reason": "another slide"}).status_code == 201
    assert metrics(service)["metrics"]["L_D"]["n"] == 2


def test_who_gives_in_after_the_reveal_keeps_their_blind_opinion_in_the_posterior(service: Service) -> None:
    codes = twice(service)
    (case_id,) = two_opinions(service, codes, 1)
    path = f"/v1/cases/{case_id}/posterior"
    before = service.document(path)
    assert service.get("ben", f"/v1/cases/{service.known_as('ben', case_id)}/posterior").status_code == 200
    changed = {"label": codes[0], "reason": "I see it now"}
    assert service.post("ben", f"/v1/labels/{own_label(service, 'ben', case_id)}/revisions", json=changed).is_success
    assert service.document(path) == before
    report = service.document("/v1/agreement", **ALL)["after_reveal"]
    assert (report["n_revised"], report["n_retracted"]) == (1, 0)


def test_a_label_of_an_outside_system_changes_no_weight_of_others(service: Service) -> None:
    codes = twice(service, threshold=0.99, audit_rate=0.999999)
    for i in range(4):
        case_id = str(service.add_case(f"case {i}", cell_png(i), patient=f"p{i}")["id"])
        if i == 0:
            service.outside_label(case_id, "elsewhere", codes[2])
        service.answer("anna", case_id, codes[i % 2])
        if i > 0:
            service.answer("ben", case_id, codes[1])
    service.make_labels_final()
    document = metrics(service)
    assert document["selection"]["outside_share"] == 0.25
    assert (document["metrics"]["L"]["n"], document["metrics"]["L_D"]["n"]) == (3, 3)
    assert document["selection"]["orders"][1]["non_response"] == 0.25
    assert any("exclude them" in text for text in document["warnings"])
    assert metrics(service, weighting="none")["metrics"]["L"]["n"] == 4


def test_a_twin_without_a_patient_has_the_partition_and_the_cluster_of_the_first(service: Service) -> None:
    twice(service)
    for i in range(6):  # whatever the names say about partitions
        service.add_case(f"first {i}", cell_png(i), patient=f"p{i}")
        service.add_case(f"again {i}", cell_png(i))
        service.add_case(f"other {i}", cell_png(i), patient=f"another {i}")
    with service.context.database.read() as session:
        columns = load_dataset(session, *release_or_champion(session, None))
        rows = {row.id: (row.external_id, row.partition) for row in session.execute(select(Case)).scalars()}
    partition = dict(rows.values())
    assert all(partition[f"again {i}"] == partition[f"first {i}"] for i in range(6))
    assert len({partition[f"other {i}"] == partition[f"first {i}"] for i in range(6)}) == 2
    cluster = dict(zip((rows[case_id][0] for case_id in columns.ids()), columns.cluster.tolist(), strict=True))
    assert all(cluster[f"again {i}"] == cluster[f"first {i}"] != cluster[f"other {i}"] for i in range(6))


def patients(service: Service, partition: str, n: int) -> list[str]:
    """Patients of a partition; of the calibration partition those who are kept for sets."""
    keys, names = service.context.keys, (f"patient {number}" for number in range(10_000))
    fall = (
        name
        for name in names
        if partition_of(keys.partition, name, "") == partition
        and (partition == "evaluation" or is_kept_for_sets(keys.sets, f"patient:{name}"))
    )
    return [name for name, _ in zip(fall, range(n), strict=False)]


def cells_of(service: Service, partition: str, n: int, each: int = 2, **labels: int) -> list[str]:
    """Cases of that many patients, labelled by outside annotators."""
    names = []
    for number, patient in enumerate(patients(service, partition, n)):
        for cell in range(each):
            names.append(f"{partition} {number}.{cell}")
            image = cell_png(50 * (partition == "evaluation") + 2 * number + cell, 16)
            store(service, names[-1], image, labels, patient=patient, site="north")
    return names


def shown(service: Service) -> list[dict[str, Any]]:
    return list(service.items("/v1/cases", limit=100))


@pytest.mark.slow
def test_sets_are_calibrated_by_patients_whom_no_fit_sees_published_and_shown(service: Service) -> None:
    twice(service)
    kept = cells_of(service, "calibration", 11)
    cells_of(service, "evaluation", 5)
    before = shown(service)[0]["prediction"]["answer_set"]
    assert (before["classes"], before["reason"]) == (None, "this model release has no calibrated prediction sets yet")
    answer_all(service, "anna", classes_of(service)[:3])
    publish_answer_sets(service.context)
    cases = shown(service)
    sets = cases[0]["prediction"]["answer_set"]
    assert (sets["level"], sets["n_patients"], sets["n_cells"], sets["site"]) == (0.9, 11, 22, None)
    # the same by the library, from what the API shows
    told = [case for case in cases if case["external_id"] in kept]
    codes = told[0]["prediction"]["classes"]
    probs = np.array([[case["prediction"]["class_probs"][code] for code in codes] for case in told])
    said = [service.document(f"/v1/cases/{case['id']}/labels")["items"][0]["label"] for case in told]
    scores = answer_scores(probs, np.array([codes.index(code) for code in said]))
    who = [case["patient"] for case in told]
    limit = calibrate(scores, patient_masses(who), np.array(who)).at()
    with service.context.database.read() as session:
        document = PublishedSets.model_validate(session.execute(select(AnswerSets.document)).scalar_one())
        fitted = read_recalibration_inputs(session, service.context).fitting.case_ids
        partitions = {row.id: row for row in session.execute(select(Case)).scalars()}
    assert document.prior[0].steps[0][1] == limit
    assert not [case_id for case_id in fitted if partitions[case_id].external_id in kept]
    for case in cases:
        classes, probs_of = case["prediction"]["answer_set"]["classes"], case["prediction"]["class_probs"]
        assert classes == sorted(classes, key=lambda code: -probs_of[code])
        assert max(probs_of, key=lambda code: probs_of[code]) in classes
    _after_one_label(service, cases[0]["id"])


def _after_one_label(service: Service, case_id: str) -> None:
    """Nobody has read twice: no set after a label, then one, and then none after two."""
    path = f"/v1/cases/{case_id}/posterior"
    posterior = service.document(path)
    assert posterior["n_labels"] == 1
    assert "cells of 0 patients have two labels" in posterior["answer_set"]["reason"]
    assert service.document(path, exclude_annotator="ben")["answer_set"] is None
    answer_all(service, "ben", classes_of(service)[:3])
    service.change(update(AnswerSets).values(computed_at=utc_now() - timedelta(days=1)))
    publish_answer_sets(service.context)
    store(service, "one more", cell_png(99, 16), {"r": 0}, patient="somebody new")
    newest = shown(service)[0]["id"]
    after = service.document(f"/v1/cases/{newest}/posterior")["answer_set"]
    assert after["classes"], after
    assert (after["n_patients"], after["n_cells"]) == (11, 22)
    again = service.document(path)["answer_set"]
    assert (again["classes"], again["reason"]) == (None, "prediction sets need a cell with at most one label")
    document = service.document("/v1/metrics")["answer_sets"]
    rows = {(row["labels"], row["by"]): row for row in document["quality"]}
    assert set(rows) == {(0, "all"), (1, "all")}
    assert rows[0, "all"]["n_cells"] == rows[1, "all"]["n_cells"] == 10
    assert 0 <= rows[0, "all"]["coverage"]["value"] <= 1 <= rows[0, "all"]["mean_size"]["value"] <= 8
    for who in ("viewer", "admin"):  # whose page has forms too
        page = service.get(who, f"/cases/{newest}", headers={"Accept": "text/html"})
        assert (page.status_code, "Prediction set" in page.text) == (200, True), who
    assert "Prediction sets" in report_page(service, path="/report/appendix")


def test_where_only_outside_systems_answer_their_labels_count_and_it_is_said(service: Service) -> None:
    cells_of(service, "calibration", 8, r=0, s=1, t=1)
    publish_answer_sets(service.context)
    before = shown(service)[0]["prediction"]["answer_set"]
    assert before["classes"] is None
    assert before["reason"] == "cells of 8 patients have answers; at least 9 are needed"
    ninth = patients(service, "calibration", 9)[8]
    store(service, "ninth", cell_png(90, 16), {"r": 0, "s": 1, "t": 1}, patient=ninth, site="north")
    publish_answer_sets(service.context)
    case = shown(service)[0]
    assert case["prediction"]["answer_set"]["answers_of"] == "outside"
    assert len(case["prediction"]["answer_set"]["classes"]) >= 1
    notes = service.document("/v1/metrics")["answer_sets"]["notes"]
    assert any("nobody but outside systems" in note for note in notes)


def test_sets_are_computed_at_once_and_then_once_a_day_and_reading_them_computes_nothing(service: Service) -> None:
    def computed() -> list[Any]:
        return [(row.release_id, row.computed_at) for row in service.scalars(select(AnswerSets))]

    publish_answer_sets(service.context)
    first = computed()
    cells_of(service, "calibration", 9, each=1, r=0)
    shown(service)
    assert computed() == first
    publish_answer_sets(service.context)  # there was no threshold
    second = computed()
    assert second != first
    store(service, "another", cell_png(5, 16), {"r": 1}, patient=patients(service, "calibration", 10)[9])
    publish_answer_sets(service.context)
    assert computed() == second
    service.change(update(AnswerSets).values(computed_at=utc_now() - timedelta(days=1)))
    publish_answer_sets(service.context)
    assert computed()[0][1] >= second[0][1]
    assert shown(service)[0]["prediction"]["answer_set"]["n_patients"] == 10


def test_cells_that_trained_a_release_are_in_none_of_its_sets(service: Service) -> None:
    names = cells_of(service, "calibration", 9, each=1, r=0)
    with service.context.database.read() as session:
        release = existing_release(session, get_champion_alias(session).release_id)  # type: ignore[union-attr]
        session.expunge(release)
        assert calibrate_release_sets(session, service.context, release).prior[0].n_patients == 9
    service.written_past = True
    with service.context.database.write() as session:
        first = session.execute(select(Case.id).where(Case.external_id == names[0])).scalar_one()
        _mark(session, first, trained_on="calibration")
        assert calibrate_release_sets(session, service.context, release).prior[0].n_patients == 8


def _mark(session: Session, case_id: UUID, **values: Any) -> None:
    """Another prediction in the place of one: rows of predictions are never changed."""
    changed = update(CasePrediction).where(CasePrediction.case_id == case_id).values(**values)
    change_append_only(session, "predictions", changed)


def _published(**fields: Any) -> PublishedSets:
    sites = [
        SiteThresholds(site="north", n_patients=100, n_cells=100, steps=[(1.0, 0.8)]),
        SiteThresholds(site=None, n_patients=40, n_cells=50, steps=[(1.0, 0.0)]),
    ]
    after = [SiteThresholds(site=None, n_patients=30, n_cells=30, steps=[(1.0, 0.5), (10.0, 0.9)])]
    return PublishedSets(prior=sites, after_label=after, **fields)


def test_a_site_with_enough_patients_has_its_own_threshold_and_all_others_share_one() -> None:
    probs, classes = np.array([[0.5, 0.3, 0.2]]), ["a", "b", "c"]
    north = build_answer_set(_published(), AnswerSetQuery(probs, classes, site="north"))
    assert (north.classes, north.site, north.n_patients) == (["a", "b", "c"], "north", 100)
    for site in ("south", None):
        other = build_answer_set(_published(), AnswerSetQuery(probs, classes, site=site))
        assert (other.classes, other.site, other.n_patients) == (["a"], None, 40)


def test_an_unlike_image_gets_no_set_and_who_is_rarely_read_twice_a_larger_one() -> None:
    probs, classes = np.array([[0.5, 0.3, 0.2]]), ["a", "b", "c"]
    unlike = build_answer_set(_published(), AnswerSetQuery(probs, classes, unlike=True))
    assert (unlike.classes, unlike.reason) == (None, "the image is out of distribution")
    sizes = []
    for mass in (1.0, 10.0, 11.0, None):
        found = build_answer_set(_published(), AnswerSetQuery(probs, classes, n_labels=1, own_mass=mass))
        sizes.append(None if found.classes is None else len(found.classes))
    assert sizes == [2, 3, None, None]
