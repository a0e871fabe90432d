"""A challenger beside the champion: another network sees the old images, and nobody who reads sees what it says."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.database.tables import Case, Exposure, utc_now
from app.triage.queries import _threshold_before, current_policy
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect, put_release, stored_image

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
    with service.context.database.read() as session:
        shown = session.execute(select(Exposure.release_id)).scalars().all()
    assert [str(release_id) for release_id in shown] == [case["prediction"]["release"]]


def test_a_promoted_network_predicts_the_old_cases_that_it_can_see(service: Service, dropout_release: Path) -> None:
    cases = [service.add_case(f"case-{number}", cell_png(number)) for number in range(3)]
    with service.context.database.read() as session:
        damaged = session.execute(select(Case.stored_sha256).where(Case.external_id == "case-1")).scalar_one()
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
