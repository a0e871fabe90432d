"""Sets for the next answer, in the service: calibrated by patients whom no fit sees, published, shown, withheld."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import select, update

from app.cases.ingest import partition_of
from app.database.tables import AnswerSets, Case, CasePrediction, utc_now
from app.metrics.cohort import is_kept_for_sets
from app.metrics.prediction_set_calibration import calibrate_release_sets, publish_answer_sets
from app.predictions.stored import AnswerSetQuery, PublishedSets, SiteThresholds, build_answer_set
from app.recalibration.service import read_recalibration_inputs
from app.releases.queries import existing_release, get_champion_alias
from ml.conformal import answer_scores, calibrate, patient_masses
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, store


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
            store(
                service,
                names[-1],
                cell_png(50 * (partition == "evaluation") + 2 * number + cell, 16),
                labels,
                patient=patient,
                site="north",
            )
    return names


def read_all(service: Service, who: str) -> None:
    """Every read that an annotator gets, answered with the leading class but for every fourth one."""
    codes = [info["code"] for info in service.get("viewer", "/v1/releases").json()["items"][0]["classes"]]
    number = 0
    while (lease := service.post(who, "/v1/reads")).status_code == 201:
        number += 1
        code = codes[number % 3]
        assert service.post(who, f"/v1/reads/{lease.json()['id']}/labels", json={"label": code}).status_code == 201
    service.make_labels_final()


def twice(service: Service) -> None:
    policy = {"rule": "disagreement", "threshold": 0.0, "adjudicate_below": None, "reveal": "after_case_closed"}
    assert service.post("admin", "/v1/policies", json=policy | {"reason": "t"}).status_code == 201


def publish(service: Service) -> None:
    """What the worker does every minute."""
    publish_answer_sets(service.context)


def shown(service: Service) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = service.get("viewer", "/v1/cases", params={"limit": 100}).json()["items"]
    return cases


@pytest.mark.slow
def test_sets_are_calibrated_by_patients_whom_no_fit_sees_published_and_shown(service: Service) -> None:
    twice(service)
    kept = cells_of(service, "calibration", 11)
    cells_of(service, "evaluation", 5)
    before = shown(service)[0]["prediction"]["answer_set"]
    assert (before["classes"], before["reason"]) == (None, "no answers have calibrated sets of this release yet")
    read_all(service, "anna")
    publish(service)
    cases = shown(service)
    sets = cases[0]["prediction"]["answer_set"]
    assert (sets["level"], sets["n_patients"], sets["n_cells"], sets["site"]) == (0.9, 11, 22, None)
    # the same by the library, from what the API shows
    told = [case for case in cases if case["external_id"] in kept]
    codes = told[0]["prediction"]["classes"]
    probs = np.array([[case["prediction"]["class_probs"][code] for code in codes] for case in told])
    path = "/v1/cases/{}/labels"
    said = [service.get("viewer", path.format(case["id"])).json()["items"][0]["label"] for case in told]
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
    posterior = service.get("viewer", f"/v1/cases/{case_id}/posterior").json()
    assert posterior["n_labels"] == 1
    assert "read twice" in posterior["answer_set"]["reason"]
    assert service.get("viewer", f"/v1/cases/{case_id}/posterior?exclude_annotator=ben").json()["answer_set"] is None
    read_all(service, "ben")
    service.change(update(AnswerSets).values(computed_at=utc_now() - timedelta(days=1)))
    publish(service)
    store(service, "one more", cell_png(99, 16), {"r": 0}, patient="somebody new")
    newest = shown(service)[0]["id"]
    after = service.get("viewer", f"/v1/cases/{newest}/posterior").json()["answer_set"]
    assert after["classes"], after
    assert (after["n_patients"], after["n_cells"]) == (11, 22)
    twice_read = service.get("viewer", f"/v1/cases/{case_id}/posterior").json()["answer_set"]
    assert (twice_read["classes"], twice_read["reason"]) == (
        None,
        "sets are calibrated for cells with one label or none",
    )
    document = service.get("viewer", "/v1/metrics").json()["answer_sets"]
    rows = {(row["labels"], row["by"]): row for row in document["quality"]}
    assert set(rows) == {(0, "all"), (1, "all")}
    assert rows[0, "all"]["n_cells"] == rows[1, "all"]["n_cells"] == 10
    assert 0 <= rows[0, "all"]["coverage"]["value"] <= 1 <= rows[0, "all"]["mean_size"]["value"] <= 8
    page = service.get("viewer", f"/cases/{newest}", headers={"Accept": "text/html"}).text
    assert "The next annotator answers" in page
    assert "Sets for the next answer" in report_page(service)


def test_fewer_patients_than_needed_give_no_set_and_say_so(service: Service) -> None:
    cells_of(service, "calibration", 8, r=0, s=1)
    publish(service)
    prediction = shown(service)[0]["prediction"]["answer_set"]
    assert prediction["classes"] is None
    assert prediction["reason"] == "answers about cells of 8 patients are known, and at least 9 are needed"


def test_where_only_outside_systems_answer_their_labels_count_and_it_is_said(service: Service) -> None:
    cells_of(service, "calibration", 9, r=0, s=1, t=1)
    publish(service)
    case = shown(service)[0]
    assert case["prediction"]["answer_set"]["answers_of"] == "outside"
    assert len(case["prediction"]["answer_set"]["classes"]) >= 1
    notes = service.get("viewer", "/v1/metrics").json()["answer_sets"]["notes"]
    assert any("nobody but outside systems" in note for note in notes)


def test_sets_are_computed_at_once_and_then_once_a_day_and_reading_them_computes_nothing(service: Service) -> None:
    def computed() -> list[Any]:
        return [(row.release_id, row.computed_at) for row in service.scalars(select(AnswerSets))]

    publish(service)
    first = computed()
    cells_of(service, "calibration", 9, each=1, r=0)
    shown(service)
    assert computed() == first
    publish(service)  # there was no threshold
    second = computed()
    assert second != first
    store(service, "another", cell_png(5, 16), {"r": 1}, patient=patients(service, "calibration", 10)[9])
    publish(service)
    assert computed() == second
    service.change(update(AnswerSets).values(computed_at=utc_now() - timedelta(days=1)))
    publish(service)
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


def _mark(session: Any, case_id: UUID, **values: Any) -> None:
    """Another prediction in the place of one: rows of predictions are never changed."""
    row = session.execute(select(CasePrediction).where(CasePrediction.case_id == case_id)).scalar_one()
    session.expunge(row)
    from sqlalchemy import text

    from app.database.tables import create_triggers, drop_triggers

    dialect = session.get_bind().dialect.name
    for statement in drop_triggers(dialect, "predictions"):
        session.execute(text(statement))
    session.execute(update(CasePrediction).where(CasePrediction.id == row.id).values(**values))
    for statement in create_triggers(dialect, "predictions"):
        session.execute(text(statement))


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
    assert (unlike.classes, unlike.reason) == (None, "the image is unlike the cells of the release")
    sizes = []
    for mass in (1.0, 10.0, 11.0, None):
        found = build_answer_set(_published(), AnswerSetQuery(probs, classes, n_labels=1, own_mass=mass))
        sizes.append(None if found.classes is None else len(found.classes))
    assert sizes == [2, 3, None, None]
