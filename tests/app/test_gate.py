"""The gate's verdict: read from the card, never guessed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.database.tables import ReleaseRow
from app.releases.gate_verdicts import gate_verdict, read_card_gate
from app.releases.queries import all_releases
from app.releases.registration import add_release
from ml.metrics.jackknife import Estimate
from tests.support.service import Service, put_release

CHANGE = Estimate(-0.01, 0.002, -0.014, -0.006, 100, 3, 90.0).to_dict()
GOOD: dict[str, Any] = {"passed": True, "reasons": [], "L": CHANGE, "L_D": CHANGE, "without_annotator": []}
BAD = GOOD | {
    "passed": False,
    "reasons": ["L may rise"],
    "without_annotator": [{"annotator": "anna", "failed": "too few labels"}, {"annotator": "ben", "L": CHANGE}],
}
MALFORMED: dict[str, Any] = {
    "no gate": {"method": "temperature"},
    "misspelt": {"gaet": GOOD},
    "null": None,
    "no verdict": {"gate": {name: value for name, value in GOOD.items() if name != "passed"}},
    "a word": {"gate": GOOD | {"passed": "true"}},
    "passed with reasons": {"gate": GOOD | {"reasons": ["L may rise"]}},
    "refused without": {"gate": GOOD | {"passed": False}},
    "unknown part": {"gate": GOOD | {"overruled": True}},
    "no estimate": {"gate": GOOD | {"L": {"value": 0.1}}},
}


def test_the_verdict_of_a_card() -> None:
    assert gate_verdict(read_card_gate({"name": "trained"})) == "not_judged"
    for document, verdict in ((GOOD, "passed"), (BAD, "refused")):
        gate = read_card_gate({"recalibration": {"gate": document}})
        assert gate is not None
        assert gate_verdict(gate) == verdict
        assert gate.to_dict() == document


@pytest.mark.parametrize("recalibration", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_gate_is_refused(recalibration: Any) -> None:
    with pytest.raises(ValueError, match=r"card is malformed: recalibration"):
        read_card_gate({"recalibration": recalibration})


def test_a_release_with_a_malformed_gate_is_not_added(service: Service, small_release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "release"
    shutil.copytree(small_release, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"recalibration": {"gaet": GOOD}}))
    context = service.context
    with pytest.raises(ValueError, match="recalibration has no gate"):
        add_release(context.database, context.keys.audit, folder, context.folders)
    assert len(service.get("viewer", "/v1/releases").json()["items"]) == 1


def test_a_malformed_gate_in_the_database_is_shown_as_such_and_never_promoted(service: Service) -> None:
    """What an earlier version let in: whatever its column says, it counts as not judged."""
    service.written_past = True
    with service.context.database.write() as session:
        served = all_releases(session)[0]
        for number, recalibration in enumerate(MALFORMED.values()):
            card = {**served.card, "recalibration": recalibration}
            gate = "passed" if number % 2 else "not_judged"
            session.add(ReleaseRow(name="malformed", card_sha256=f"{number:064}", card=card, gate=gate))
    rows = service.get("viewer", "/v1/releases").json()["items"]
    assert [row["gate_fault"] for row in rows if row["name"] != "malformed"] == [None]
    assert service.get("admin", "/releases").text.count("malformed card") == len(MALFORMED)
    for row in rows[:-1]:
        assert (row["name"], row["gate_passed"]) == ("malformed", None)
        assert "card is malformed" in row["gate_fault"]
        assert service.get("viewer", f"/v1/releases/{row['id']}").json()["gate_fault"] == row["gate_fault"]
        page = service.get("admin", f"/releases/{row['id']}")
        shown = page.status_code, "cannot be promoted" in page.text, 'value="champion"' in page.text
        assert shown == (200, True, False)
        body = {"release": row["id"], "reason": "all the same", "despite_gate": True}
        refused = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": '"1"'})
        assert (refused.status_code, "cannot be promoted" in refused.json()["detail"]) == (409, True)
    assert service.get("viewer", "/v1/aliases").json()["items"][0]["release"] == str(served.id)


def test_a_release_that_no_gate_has_judged_becomes_champion_by_an_explicit_choice_only(
    service: Service, small_release: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "release"
    shutil.copytree(small_release, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"name": "trained anew"}))
    context = service.context
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, folder, context.settings.releases_folder)
    body = {"release": str(row.id), "reason": "trained on more cells"}
    headers = {"If-Match": '"1"'}
    assert service.get("viewer", f"/v1/releases/{row.id}").json()["gate_passed"] is None
    watched = service.call("admin", "PUT", "/v1/aliases/challenger", json=body, headers={"If-Match": '"0"'})
    assert watched.status_code == 200  # nobody is served by a challenger
    refused = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers=headers)
    assert (refused.status_code, "no gate has judged" in refused.json()["detail"]) == (409, True)
    chosen = service.call("admin", "PUT", "/v1/aliases/champion", json=body | {"despite_gate": True}, headers=headers)
    assert (chosen.status_code, chosen.json()["release"]) == (200, str(row.id))
