"""Models of annotators, fitted, judged and switched on; metrics that warn of annotators in disagreement."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert, select, text

from app.annotators.models.schemas import ReaderFitOut
from app.annotators.models.service import store_model
from app.context import ServiceContext
from app.database.tables import Account, Annotator, Case, CasePrediction, Label, PolicyRow, ReadRequest
from app.releases.queries import all_releases, class_codes
from ml.annotators.confusions import ReaderModel
from ml.datasets.cells import simulate_cell
from ml.util.arrays import FloatArray
from tests.app.test_comparison import added
from tests.app.test_leases import classes_of
from tests.app.test_snapshots import case_row, label_row, new_row, request_row
from tests.support.images import encode
from tests.support.jobs import finish_job
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, store

SWITCH = "/v1/reader-models/in-use"


def put_model(service: Service, confusions: dict[str, FloatArray], *, passed: bool = True) -> int:
    """Store a version for the champion, as a fit would."""
    release = service.get("admin", "/v1/aliases").json()["items"][0]["release"]
    matrices = np.array(list(confusions.values()))
    model = ReaderModel(tuple(confusions), np.full(len(confusions), 40), matrices, matrices.mean(axis=0))
    fit = ReaderFitOut(
        kind="rate",
        left_out_losses={"alike": 1.0, "rate": 0.9},
        n_cases=100,
        n_labels=200,
        n_annotators=len(confusions),
        gain_over_served=None,
        gain_over_alike=None,
        passed=passed,
        verdict="the next label is predicted better",
        temperature=1.0,
        log_concentration_shift=0.0,
    )
    with service.context.database.write() as session:
        return store_model(session, service.context.keys.audit, uuid.UUID(release), model, fit)


def two_readers(n_classes: int) -> dict[str, FloatArray]:
    """One says what they think, the other anything in half of the cases."""
    identity = np.eye(n_classes)
    return {"careful": identity, "careless": 0.5 * identity + 0.5 / n_classes}


def switch(service: Service, version: int | None, revision: int, **fields: Any) -> Any:
    body = {"version": version, "reason": "they differ", **fields}
    return service.call("admin", "PUT", SWITCH, json=body, headers={"If-Match": f'"{revision}"'})


def posterior(service: Service, case_id: str, **query: str) -> Any:
    return service.document(f"/v1/cases/{case_id}/posterior", "admin", **query)


@pytest.mark.both_databases
def test_a_label_weighs_by_who_gave_it_and_the_switch_goes_back(service: Service) -> None:
    codes = classes_of(service)
    leading = service.add_case("seen")["prediction"]["class_probs"]
    rare = min(leading, key=leading.__getitem__)
    by = {name: store(service, f"by-{name}", cell_png(), {name: codes.index(rare)}) for name in ("careful", "careless")}
    alike = {name: posterior(service, case) for name, case in by.items()}
    assert {shown["reader_model"] for shown in alike.values()} == {None}
    version = put_model(service, two_readers(len(codes)))
    assert {posterior(service, case)["reader_model"] for case in by.values()} == {None}, "stored is not in use"
    moved = switch(service, version, 0)
    assert moved.status_code == 200, moved.text
    assert (moved.headers["ETag"], moved.json()["version"]) == ('"1"', version)
    named = {name: posterior(service, case) for name, case in by.items()}
    assert {shown["reader_model"] for shown in named.values()} == {version}
    said = {name: shown["class_probs"][rare] for name, shown in named.items()}
    assert said["careless"] < said["careful"]
    assert said["careless"] < alike["careless"]["class_probs"][rare]
    for shown in named.values():
        assert sum(shown["class_probs"].values()) == pytest.approx(1.0)
        assert shown["label_counts"][rare] == shown["n_labels"] == 1
        assert all(low <= shown["class_probs"][k] <= high for k, (low, high) in shown["class_intervals"].items())
    for name, case in by.items():
        assert posterior(service, case, annotators="alike") == alike[name]
    assert switch(service, None, 1).json()["version"] is None
    assert {name: posterior(service, case) for name, case in by.items()} == alike


def test_somebody_unknown_weighs_like_the_population_and_no_label_like_the_prediction(service: Service) -> None:
    codes = classes_of(service)
    assert switch(service, put_model(service, two_readers(len(codes))), 0).status_code == 200
    unread = service.add_case("unread")
    shown = posterior(service, unread["id"])
    assert shown["reader_model"] is None
    assert shown["class_probs"] == unread["prediction"]["class_probs"]
    case = store(service, "read", cell_png(), {"somebody new": 0})
    assert posterior(service, case)["reader_model"] == 1


def test_only_what_held_out_labels_speak_for_can_be_used(service: Service) -> None:
    refused = switch(service, put_model(service, two_readers(len(classes_of(service))), passed=False), 0)
    assert refused.status_code == 409
    assert "cannot be used" in refused.json()["detail"]
    assert switch(service, 99, 0).status_code == 404
    assert switch(service, None, 7).status_code == 412
    assert switch(service, None, 0, reason="  ").status_code == 422
    assert service.call("admin", "PUT", SWITCH, json={"version": None, "reason": "x"}).status_code == 428
    assert service.get("admin", "/v1/reader-models").json()["in_use"] is None


def test_where_the_switch_is_can_be_read_before_it_is_moved(service: Service) -> None:
    empty = service.get("admin", SWITCH)
    assert empty.json() == {"version": None, "serves": False, "revision": 0}
    body = {"version": put_model(service, two_readers(len(classes_of(service)))), "reason": "x"}
    moved = service.call("admin", "PUT", SWITCH, json=body, headers={"If-Match": empty.headers["ETag"]})
    assert moved.json() == {"version": body["version"], "serves": True, "revision": 1}
    seen = service.get("admin", SWITCH)
    assert (seen.json(), seen.headers["ETag"]) == (moved.json(), '"1"')
    assert service.get("viewer", SWITCH).status_code == 403


@pytest.mark.parametrize("typed", ["\u00b2", "one", "0", "-1", "1.5"])
def test_the_form_refuses_what_is_no_version_and_switches_nothing(service: Service, typed: str) -> None:
    version = put_model(service, two_readers(len(classes_of(service))))
    assert switch(service, version, 0).status_code == 200
    fields = {"version": typed, "revision": "1", "reason": "they differ"}
    answer = service.call("admin", "POST", "/readers/switch", data=fields)
    assert answer.status_code == 422, answer.text
    assert service.get("admin", "/v1/reader-models").json()["in_use"] == version


def test_a_version_tells_what_it_holds_of_each_annotator(service: Service) -> None:
    codes = classes_of(service)
    shown = service.get("admin", f"/v1/reader-models/{put_model(service, two_readers(len(codes)))}").json()
    assert [reader["annotator"] for reader in shown["readers"]] == ["careful", "careless"]
    assert shown["readers"][0]["confusions"][codes[0]][codes[0]] == 1.0
    assert shown["readers"][0]["remark"] is None
    for rows in (shown["population"], *(reader["confusions"] for reader in shown["readers"])):
        assert all(sum(answers.values()) == pytest.approx(1.0) for answers in rows.values())


def test_a_damaged_model_weighs_nothing_and_is_told(service: Service) -> None:
    version = put_model(service, two_readers(len(classes_of(service))))
    case = store(service, "read", cell_png(), {"careless": 0})
    alike = posterior(service, case)
    assert switch(service, version, 0).status_code == 200
    service.written_past = True
    service.change(text('UPDATE reader_models SET document = \'{"version": 1, "names": 3}\''))
    assert posterior(service, case) == alike
    refused = service.get("admin", f"/v1/reader-models/{version}")
    assert refused.status_code == 409
    assert "cannot be read" in refused.json()["detail"]


def test_pages_tell_managers_how_labels_are_weighed_and_annotators_only_that_they_are(service: Service) -> None:
    codes = classes_of(service)
    habit = np.eye(len(codes))
    habit[0, [0, 1]] = 0.4, 0.6
    version = put_model(service, {"careful": np.eye(len(codes)), "hasty": habit})
    case = store(service, "read", cell_png(), {"hasty": 1})
    html = {"Accept": "text/html"}
    for path in ("/readers", f"/readers/{version}"):
        assert "Version 1" in service.get("admin", path, headers=dict(html)).text.replace("version 1", "Version 1")
    assert service.get("viewer", "/readers", headers=dict(html)).status_code == 403
    sent = {"version": str(version), "revision": "0", "reason": "they differ"}
    assert service.call("admin", "POST", "/readers/switch", data=sent, follow_redirects=False).status_code == 303
    page = service.get("admin", f"/cases/{case}", headers=dict(html)).text
    assert "Labels are weighted by annotator" in page
    assert "hasty labels" in page
    assert "such labels count less" in page
    assert "hasty labels" not in service.get("viewer", f"/cases/{case}", headers=dict(html)).text
    alike = service.get("admin", f"/cases/{case}?annotators=alike", headers=dict(html)).text
    assert "Annotator weighting is off in this view" in alike
    assert "hasty labels" not in alike


@pytest.mark.slow
@pytest.mark.ci
def test_too_few_labels_are_refused_in_words(service: Service) -> None:
    store(service, "one", cell_png(), {"only": 0})
    done = finish_job(service, "/v1/reader-models")
    assert (done["state"], "annotator" in done["error"]) == ("failed", True)


@pytest.mark.slow
def test_a_careless_annotator_is_found_and_counted_for_less(service: Service) -> None:
    """Every cell is read by two of three; one of these calls the first four classes by each other's names."""
    codes, rng, cells = classes_of(service), np.random.default_rng(2), 160
    for index in range(cells):
        cell = simulate_cell(index, seed=5, size=32)
        readers = rng.choice(3, 2, replace=False)
        given = {}
        for reader in readers:
            k = int(rng.choice(len(codes), p=cell.true_probs))
            given[f"reader {reader}"] = {0: 1, 1: 0, 2: 3, 3: 2}.get(k, k) if reader == 0 else k
        store(service, f"case-{index}", encode(cell.pixels), given, patient=f"p{index}")
    done = finish_job(service, "/v1/reader-models")
    assert done["state"] == "succeeded", done["error"]
    report = done["result"]
    assert report["passed"] is True
    assert report["gain_over_served"]["low"] > 0
    assert report["n_annotators"] == 3
    shown = service.get("admin", f"/v1/reader-models/{report['version']}").json()
    by_name = {reader["annotator"]: reader["confusions"] for reader in shown["readers"]}
    assert by_name["reader 0"][codes[0]][codes[1]] > 0.2 > by_name["reader 1"][codes[0]][codes[1]]
    assert switch(service, report["version"], 0).json()["version"] == report["version"]


def test_a_model_is_fitted_beside_releases_of_this_network_only(service: Service, dropout_release: Path) -> None:
    champion = service.document("/v1/aliases", "admin")["items"][0]["release"]
    for release, status in ((champion, 202), (str(uuid.uuid4()), 404), (added(service, dropout_release), 409)):
        assert service.post("admin", "/v1/reader-models", json={"release": release}).status_code == status


def fill(context: ServiceContext, n: int, leaning: float) -> None:
    """Cells read twice by three people, of whom the first says the second class where they would say the first."""
    rng = np.random.default_rng(0)
    with context.database.write() as session:
        release = all_releases(session)[0]
        codes = class_codes(release)
        accounts = session.execute(select(Account.id).order_by(Account.id).limit(3)).scalars().all()
        policy = session.execute(select(PolicyRow.version)).scalar_one()
        readers = [{**new_row(), "name": f"reader {k}", "account_id": None} for k in range(len(accounts))]
        session.execute(insert(Annotator), readers)
        rows: dict[Any, list[dict[str, Any]]] = {Case: [], CasePrediction: [], Label: [], ReadRequest: []}
        for number in range(n):
            case = case_row(number, accounts[0]) | {"pi": 1.0}
            rows[Case].append(case)
            prediction = new_row(case_id=case["id"], release_id=release.id, class_probs=[1 / len(codes)] * len(codes))
            rows[CasePrediction].append(prediction | {"log_concentration": 1.0, "disagreement_prob": 0.2})
            for ordinal, k in enumerate(rng.choice(3, 2, replace=False)):
                said = int(rng.random() < 0.3) or int(k == 0 and rng.random() < leaning)
                rows[Label].append(label_row(case["id"], readers[k]["id"], codes[said], accounts[0]))
                rows[ReadRequest].append(request_row(rows[Label][-1], ordinal, policy))
        for table, values in rows.items():
            session.execute(insert(table), values)


@pytest.mark.parametrize("leaning", [0.0, 0.6])
def test_annotators_who_lean_are_called_different_and_others_not(service: Service, leaning: float) -> None:
    fill(service.context, 120, leaning)
    service.written_past = True
    for weighting in ("ipw", "none"):
        document = service.document("/v1/metrics", partition="all", weighting=weighting)
        assert document["metrics"]["L_D"]["n"] == 120
        assert any("use the classes differently" in text for text in document["warnings"]) == (leaning > 0)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("weighting", ["ipw", "none"])
def test_metrics_comparison_and_report_have_both_intervals(service: Service, weighting: str) -> None:
    fill(service.context, 120, leaning=0.6)
    service.written_past = True
    asked = {"partition": "all", "weighting": weighting}
    metrics = service.document("/v1/metrics", **asked)["metrics"]
    for name in ("L", "agreement", "EL", "L_D", "CL", "CE", "skill_D"):
        row = metrics[name]
        assert row["low_new"] <= row["low"] <= row["high"] <= row["high_new"], name
    # who leans tells that the next annotator may
    disagreement = metrics["L_D"]
    assert disagreement["high_new"] - disagreement["low_new"] > 1.5 * (disagreement["high"] - disagreement["low"])
    release = service.document("/v1/releases")["items"][0]["id"]
    compared = service.document(f"/v1/releases/{release}/comparison", **asked)["metrics"]
    assert compared["L"]["champion"] == metrics["L"]
    assert compared["L"]["change"]["low_new"] == compared["L"]["change"]["high_new"] == 0
    assert "for new annotators" in report_page(service, path="/report/appendix", **asked)
    frozen = finish_job(service, "/v1/evaluations", **asked)["id"]
    found = service.document(f"/v1/evaluations/{frozen}")["document"]["metrics"]
    for name, row in metrics.items():
        for end in ("low_new", "high_new"):
            assert (found[name][end] is None) == (row[end] is None), name
            assert row[end] is None or found[name][end] == pytest.approx(row[end], rel=1e-6, abs=1e-9), (name, end)
    table = service.get("viewer", f"/v1/evaluations/{frozen}", headers={"Accept": "text/csv"}).text
    assert table.splitlines()[0].startswith("metric,value,se,low,high,low_new,high_new,")
