"""What is measured does not depend on the hour: on reads that are open, on what people do once they have been shown."""

from typing import Any

from sqlalchemy import select

from app.database.tables import Case
from tests.support.reports import report_page
from tests.support.service import Service, cell_png

ALL = {"partition": "all"}


def twice(service: Service, **fields: Any) -> list[str]:
    """Every case is planned twice, and shown once both reads are in; gives the class codes."""
    policy = {"rule": "disagreement", "threshold": 0.0, "adjudicate_below": None, "reveal": "after_case_closed"}
    policy |= {"repeat_rate": 0}
    assert service.post("admin", "/v1/policies", json=policy | {"reason": "t"} | fields).status_code == 201
    return [info["code"] for info in service.get("viewer", "/v1/releases").json()["items"][0]["classes"]]


def metrics(service: Service, **question: str) -> dict[str, Any]:
    document: dict[str, Any] = service.get("viewer", "/v1/metrics", params=ALL | question).json()
    return document


def own_label(service: Service, who: str, case_id: str) -> str:
    """Identifier of an annotator's own label of a case."""
    labels = service.get("viewer", f"/v1/cases/{case_id}/labels").json()["items"]
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
    leading = [max(c["prediction"]["class_probs"].items(), key=lambda item: item[1])[0] for c in _cases(service, cases)]
    expected = {"n_labels": 6, "n_revised": 0, "n_retracted": 3}
    expected |= {"towards_prediction": sum(code != codes[1] for code in leading)}
    expected |= {"away_from_prediction": sum(code == codes[1] for code in leading)}
    assert service.get("viewer", "/v1/agreement", params=ALL).json()["after_reveal"] == expected
    assert "taken back after their annotators had been shown" in report_page(service, partition="all")


def _cases(service: Service, cases: list[str]) -> list[dict[str, Any]]:
    return [service.get("viewer", f"/v1/cases/{case_id}").json() for case_id in cases]


def test_taking_a_label_back_before_anything_was_shown_takes_it_out(service: Service) -> None:
    codes = twice(service, reveal="never")
    cases = two_opinions(service, codes)
    path = f"/v1/labels/{own_label(service, 'ben', cases[0])}/retraction"
    assert service.post("ben", path, json={"reason": "another slide"}).status_code == 201
    assert metrics(service)["metrics"]["L_D"]["n"] == 2


def test_who_gives_in_after_the_reveal_keeps_their_blind_opinion_in_the_posterior(service: Service) -> None:
    codes = twice(service)
    (case_id,) = two_opinions(service, codes, 1)
    before = service.get("viewer", f"/v1/cases/{case_id}/posterior").json()
    assert service.get("ben", f"/v1/cases/{service.known_as('ben', case_id)}/posterior").status_code == 200
    path = f"/v1/labels/{own_label(service, 'ben', case_id)}/revisions"
    assert service.post("ben", path, json={"label": codes[0], "reason": "I see it now"}).status_code == 201
    assert service.get("viewer", f"/v1/cases/{case_id}/posterior").json() == before
    report = service.get("viewer", "/v1/agreement", params=ALL).json()["after_reveal"]
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
    assert any("leave them out" in text for text in document["warnings"])
    assert metrics(service, weighting="none")["metrics"]["L"]["n"] == 4


def test_a_twin_without_a_patient_has_the_partition_and_the_cluster_of_the_first(service: Service) -> None:
    codes = twice(service)
    for i in range(6):  # whatever the names say about partitions
        service.add_case(f"first {i}", cell_png(i), patient=f"p{i}")
        service.add_case(f"again {i}", cell_png(i))
        service.add_case(f"other {i}", cell_png(i), patient=f"another {i}")
    with service.context.database.read() as session:
        partition = {row.external_id: row.partition for row in session.execute(select(Case)).scalars()}
    assert all(partition[f"again {i}"] == partition[f"first {i}"] for i in range(6))
    assert len({partition[f"other {i}"] == partition[f"first {i}"] for i in range(6)}) == 2
    assert codes
    from app.metrics.load import load_dataset
    from app.metrics.service import release_or_champion

    with service.context.database.read() as session:
        columns = load_dataset(session, *release_or_champion(session, None))
        name = {row.id: row.external_id for row in session.execute(select(Case)).scalars()}
    cluster = dict(zip((name[case_id] for case_id in columns.ids()), columns.cluster.tolist(), strict=True))
    assert all(cluster[f"again {i}"] == cluster[f"first {i}"] != cluster[f"other {i}"] for i in range(6))
