"""A case unlike the images of its release: flagged with reasons, its disagreement withheld until two labels are in."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.database.tables import CasePrediction, NetworkOutput
from app.releases.service import move_alias
from ml.datasets.cells import simulate_cell
from ml.release.artifact import read_release
from ml.release.ood_detector import OodScores
from ml.release.predictor import prediction_of
from ml.tables.reading import read_table
from tests.support.images import encode
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, collect, put_release
from tests.support.tiny_release import with_familiarity, without_check

STRANGE = encode(255 - simulate_cell(0, seed=21, size=32).pixels)


@pytest.fixture(scope="module")
def checked(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny release with checks of familiarity."""
    return with_familiarity(tiny_release, tmp_path_factory.mktemp("checked") / "release")


@pytest.fixture
def checking(service: Service, checked: Path) -> Service:
    """A service on that release."""
    context = service.context
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, checked, context.settings.releases_folder)
        move_alias(session, context, "test", "champion", row.id, "test", None, despite_gate=True)
    return service


def assert_withheld(prediction: dict[str, Any]) -> None:
    assert prediction["out_of_distribution"] is True
    assert prediction["reasons"]
    assert prediction["distance"] > 1
    assert prediction["distance_percentile"] == 100
    assert prediction["disagreement_prob"] is None
    assert prediction["class_intervals"] is None
    triage = prediction["triage"]
    assert (triage["decision"], triage["pi"], triage["expected_gain"]) == ("second_read", 1, None)


def test_phi_and_intervals_are_withheld_everywhere_until_two_labels(checking: Service) -> None:
    stateless = checking.post("viewer", "/v1/predictions", files={"image": ("x.png", STRANGE)}).json()
    case = checking.add_case("strange", STRANGE)
    listed = checking.get("viewer", "/v1/cases").json()["items"][0]
    history = checking.get("viewer", f"/v1/cases/{case['id']}/predictions").json()["items"][0]
    for prediction in (stateless, case["prediction"], listed["prediction"], history):
        assert_withheld(prediction)
        assert prediction["reasons"] == stateless["reasons"]
    codes = stateless["classes"]
    before = checking.get("viewer", f"/v1/cases/{case['id']}/posterior").json()
    one = checking.outside_label(case["id"], "rita", codes[0])["posterior"]
    for posterior in (before, one):
        assert posterior["disagreement_prob"] is None
        assert posterior["class_intervals"] is None
        assert posterior["further_labels_expected"] is None
    two = checking.outside_label(case["id"], "omar", codes[1])["posterior"]
    assert 0 < two["disagreement_prob"] < 1
    assert set(two["class_intervals"]) == set(codes)
    alone = checking.get("viewer", f"/v1/cases/{case['id']}/posterior?exclude_annotator=omar").json()
    assert alone["disagreement_prob"] is None


def test_raw_numbers_are_stored_and_tell_a_recalibrated_release_the_same(checking: Service, checked: Path) -> None:
    ids = [checking.add_case(f"c{k}", data)["id"] for k, data in enumerate([STRANGE, cell_png(1)])]
    release = read_release(checked)
    with checking.context.database.read() as session:
        for case_id in ids:
            wanted = uuid.UUID(case_id)
            row = session.execute(select(CasePrediction).where(CasePrediction.case_id == wanted)).scalar_one()
            output = session.execute(select(NetworkOutput).where(NetworkOutput.case_id == wanted)).scalar_one()
            logits, features, seen = (
                np.frombuffer(blob, dtype="<f4")[None].astype(np.float32)
                for blob in (output.logits, output.features, output.appearance or b"")
            )
            again = prediction_of(release, logits, features, seen)
            assert row.disagreement_prob == again.distribution.disagreement_probs[0]
            assert row.out_of_distribution == again.out_of_distribution[0]
            assert (row.unlike_reasons or []) == again.unlikeness.reasons[0]
            assert row.unlike_distance == again.unlikeness.distance[0]


def test_an_export_has_the_flag_of_each_case(checking: Service, tmp_path: Path) -> None:
    for name, data in (("strange", STRANGE), ("familiar", cell_png(1))):
        checking.outside_label(checking.add_case(name, data)["id"], "rita", "blast")
    checking.export(tmp_path / "export", images=False, kind="parquet")
    table = read_table(tmp_path / "export" / "predictions.parquet")
    flags = dict(zip(table.column("case_id").to_pylist(), table.column("out_of_distribution").to_pylist(), strict=True))
    assert flags == {"strange": True, "familiar": False}


def test_a_familiar_case_shows_all_and_says_how_near_it_is(checking: Service) -> None:
    shown = next(
        body
        for body in (
            checking.post("viewer", "/v1/predictions", files={"image": ("x.png", cell_png(i))}).json() for i in range(9)
        )
        if not body["out_of_distribution"]
    )
    assert shown["reasons"] == []
    assert 0 <= shown["distance"] <= 1
    assert 0 <= shown["distance_percentile"] <= 100
    assert shown["disagreement_prob"] is not None


def test_pages_say_why_and_show_the_disagreement_only_after_two_labels(checking: Service) -> None:
    case = checking.add_case("strange", STRANGE)
    for page in ("/worklist", f"/cases/{case['id']}"):
        text = checking.get("viewer", page).text
        assert "unlike the cells" in text
        assert ", ".join(case["prediction"]["reasons"]) in text
        assert "Two experts would disagree" not in text
    codes = case["prediction"]["classes"]
    for annotator, code in (("rita", codes[0]), ("omar", codes[1])):
        checking.outside_label(case["id"], annotator, code)
    assert "Two experts would disagree" in checking.get("viewer", f"/cases/{case['id']}").text


@pytest.fixture
def unchecking(service: Service, tiny_release: Path, tmp_path: Path) -> Service:
    """A service on a release with no check."""
    context = service.context
    with context.database.write() as session:
        unchecked = without_check(tiny_release, tmp_path / "unchecked")
        row = put_release(session, context.keys.audit, unchecked, context.settings.releases_folder)
        move_alias(session, context, "test", "champion", row.id, "test", None, despite_gate=True)
    return service


@undone("T8", "no check is no clean result", OodScores, "flags", property(lambda scores: scores.flagged.tolist()))
def test_what_nothing_checked_is_null_everywhere_and_read_twice(unchecking: Service, tmp_path: Path) -> None:
    stateless = unchecking.post("viewer", "/v1/predictions", files={"image": ("x.png", STRANGE)}).json()
    case = unchecking.add_case("strange", STRANGE)
    history = unchecking.get("viewer", f"/v1/cases/{case['id']}/predictions").json()["items"][0]
    for prediction in (stateless, case["prediction"], history):
        assert (prediction["out_of_distribution"], prediction["distance"], prediction["reasons"]) == (None, None, [])
        assert prediction["disagreement_prob"] is not None
        triage = prediction["triage"]
        assert (triage["decision"], triage["pi"], triage["expected_gain"]) == ("second_read", 1, None)
        assert triage["reason"].startswith("nothing checked")
    collect(unchecking, [cell_png(number) for number in range(30)], patients=False)
    drift = unchecking.get("viewer", "/v1/metrics?partition=all").json()["drift"]
    assert [row["unfamiliar_share"] for row in drift] == [None]
    unchecking.export(tmp_path / "export", images=False)
    exported = read_table(tmp_path / "export" / "predictions.csv")
    assert set(exported.column("out_of_distribution").to_pylist()) <= {None, ""}
    detail = unchecking.get("viewer", f"/v1/releases/{case['prediction']['release']}").json()
    assert detail["out_of_distribution_check"] is False
    for page in ("/worklist", f"/cases/{case['id']}"):
        assert "not checked" in unchecking.get("viewer", page).text
    assert "no check for unlike images" in unchecking.get("admin", f"/releases/{detail['id']}").text
