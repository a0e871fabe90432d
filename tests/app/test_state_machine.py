"""Labels, revisions, retractions, promotions, roll-backs, restarts and retries in any order, against a model (F12)."""

from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule, run_state_machine_as_test
from sqlalchemy import func, select

from app.database.tables import Label
from app.main import attach_context
from tests.app.test_leases import classes_of
from tests.support.service import Service, cell_png
from tests.support.tiny_release import write_tiny_release

READERS, IMAGES = 3, 6
#: Of a chain: a row's id, and its class, None where it takes the label back.
Chain = list[tuple[str, str | None]]


class Laboratory(RuleBasedStateMachine):
    """What a lab does through an outside annotator system and by promotions, next to what should come of it."""

    cases = Bundle("cases")
    labels = Bundle("labels")
    service: Service
    releases: list[str]

    @initialize()
    def begin(self) -> None:
        self.codes = classes_of(self.service)
        self.chains: dict[str, dict[str, Chain]] = {}
        self.champion, self.revision = self._alias()
        self.last: tuple[str, str, dict[str, Any], dict[str, str]] | None = None
        self.last_answer: tuple[int, dict[str, Any]] = (0, {})

    def _alias(self) -> tuple[str, int]:
        aliases = self.service.document("/v1/aliases")["items"]
        return next((alias["release"], alias["revision"]) for alias in aliases if alias["name"] == "champion")

    def _send(
        self, who: str, method: str, path: str, headers: dict[str, str], **body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Send a request and remember it, to be sent again."""
        answer = self.service.call(who, method, path, headers=dict(headers), **body)
        if method == "POST":
            self.last, self.last_answer = (who, path, body, headers), (answer.status_code, answer.json())
        return answer.status_code, answer.json()

    def _post(self, path: str, json: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return self._send("outside", "POST", path, {"Idempotency-Key": uuid4().hex}, json=json)

    @rule(target=cases, image=st.integers(0, IMAGES - 1))
    def add_case(self, image: int) -> str:
        case: str = self.service.add_case(uuid4().hex, cell_png(image))["id"]
        self.chains[case] = {}
        return case

    @rule(target=labels, case=cases, reader=st.integers(0, READERS - 1), code=st.integers(0, 3))
    def label(self, case: str, reader: int, code: int) -> Any:
        name = f"reader {reader}"
        chain = self.chains[case].get(name, [])
        body = {"label": self.codes[code], "annotator": name, "blind": True}
        status, answer = self._post(f"/v1/cases/{case}/labels", body)
        if chain and chain[-1][1] is not None:
            assert status == 409, answer
            return multiple()
        assert status == 201, answer
        return self._grown(case, name, answer)

    def _grown(self, case: str, name: str, answer: dict[str, Any]) -> tuple[str, str, str]:
        row = answer["label"]
        self.chains[case].setdefault(name, []).append((row["id"], row["label"]))
        self._compare(case)
        return case, name, row["id"]

    @rule(target=labels, label=labels, code=st.integers(0, 3))
    def revise(self, label: tuple[str, str, str], code: int) -> Any:
        case, name, row = label
        body = {"label": self.codes[code], "reason": "looked again", "blind": True}
        status, answer = self._post(f"/v1/labels/{row}/revisions", body)
        if self.chains[case][name][-1][0] != row:
            assert status == 409, answer
            return multiple()
        assert status == 201, answer
        return self._grown(case, name, answer)

    @rule(target=labels, label=labels)
    def retract(self, label: tuple[str, str, str]) -> Any:
        case, name, row = label
        status, answer = self._post(f"/v1/labels/{row}/retraction", {"reason": "wrong patient"})
        last, code = self.chains[case][name][-1]
        if last != row or code is None:
            assert status == 409, answer
            return multiple()
        assert status == 201, answer
        return self._grown(case, name, answer)

    @rule(stale=st.booleans())
    def promote_or_roll_back(self, stale: bool) -> None:
        wanted = next(release for release in self.releases if release != self.champion)
        headers = {"If-Match": f'"{self.revision - stale}"'}
        body = {"release": wanted, "reason": "the other one", "despite_gate": True}
        status, answer = self._send("admin", "PUT", "/v1/aliases/champion", headers, json=body)
        assert status == (412 if stale else 200), answer
        if not stale:
            self.champion, self.revision = wanted, self.revision + 1
        assert self._alias() == (self.champion, self.revision)

    @rule()
    def restart(self) -> None:
        app: Any = self.service.client.app
        old = self.service.context
        attach_context(app, old.settings)
        self.service.context = app.state.context
        old.database.engine.dispose()

    @rule()
    def retry(self) -> None:
        if self.last is not None:
            who, path, body, headers = self.last
            again = self.service.call(who, "POST", path, headers=dict(headers), **body)
            assert (again.status_code, again.json()) == self.last_answer

    def _compare(self, case: str) -> None:
        """The posterior of a case counts the labels that stand, each once."""
        standing = Counter(chain[-1][1] for chain in self.chains[case].values() if chain[-1][1] is not None)
        posterior = self.service.document(f"/v1/cases/{case}/posterior")
        assert {code: n for code, n in posterior["label_counts"].items() if n} == dict(standing)

    def teardown(self) -> None:
        if not hasattr(self, "chains"):
            return
        for case in self.chains:
            self._compare(case)
        of_cases = Label.case_id.in_([UUID(case) for case in self.chains])
        n_rows = self.service.one(select(func.count(Label.id)).where(of_cases))
        assert n_rows == sum(len(chain) for chains in self.chains.values() for chain in chains.values())


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("examples", "steps"),
    [pytest.param(10, 30, marks=pytest.mark.slow), pytest.param(500, 50, marks=pytest.mark.heavy)],
)
def test_whatever_is_done_in_whatever_order_comes_to_what_it_should(
    service: Service, tmp_path: Path, examples: int, steps: int
) -> None:
    service.before_change = lambda: None  # no snapshots on the way
    service.put_release(write_tiny_release(tmp_path / "second", name="second"))
    Laboratory.service = service
    Laboratory.releases = [row["id"] for row in service.document("/v1/releases")["items"]]
    alike = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Laboratory, settings=settings(alike, max_examples=examples, stateful_step_count=steps))
    assert service.faults() == []
