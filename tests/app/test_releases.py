"""Releases of every kind, served and published: ensembles, int8, unlike images, adapted calibrations."""

import json
import shutil
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select, update

from app.accounts import people as auth
from app.database.tables import Alias, CasePrediction, NetworkOutput, PublishedEstimates, ReleaseRow, utc_now
from app.metrics import published as metrics_published
from app.metrics.cohort import evaluate_cohort
from app.metrics.published import publish_estimates
from app.predictions.stored import prediction_values, stored_prediction, stored_predictions
from app.recalibration.change_plan import ChangePlan
from app.recalibration.service import read_recalibration_inputs
from app.releases.queries import get_champion_alias
from app.releases.registration import add_release
from app.releases.service import move_alias
from app.triage.rules import summarise_posterior
from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.calibrators import calibration_mix
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import DisagreementMap, PairHead
from ml.calibration.domain_adaptation import recalibrate_for_annotators
from ml.calibration.logistic_normal import POINT
from ml.calibration.scaling import Scaling
from ml.datasets.cells import AnnotatorPool, simulate_cell
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution
from ml.images.preprocess import decode_image
from ml.metrics import evaluate
from ml.release.artifact import FAMILIARITY_FILE, read_release, write_recalibrated
from ml.release.ood_detector import OodScores
from ml.release.predictor import Prediction, Predictor, prediction_of
from ml.tables.reading import read_table
from ml.training.calibrate import calibrate_run
from ml.training.export import export_run
from ml.training.run_folder import RunFolder
from ml.util.arrays import FloatArray
from ml.util.files import file_sha256, read_json
from tests.app.test_gate_memory import promote
from tests.app.test_leases import answer_all, classes_of
from tests.support.command import run_here
from tests.support.images import encode
from tests.support.jobs import finish_job, work_off
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, collect, put_release, store
from tests.support.tiny_release import edit_release, with_familiarity, with_stated_metrics, without_check


def published(service: Service) -> list[tuple[UUID, datetime]]:
    return [(row.release_id, row.computed_at) for row in service.scalars(select(PublishedEstimates))]


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    evaluated: list[Any] = []
    evaluate = evaluate_cohort

    def counted(cohort: Any, **options: Any) -> Any:
        evaluated.append(cohort)
        return evaluate(cohort, **options)

    monkeypatch.setattr(metrics_published, "evaluate_cohort", counted)
    return evaluated


def test_estimates_are_computed_again_only_when_something_changed(service: Service, evaluations: list[Any]) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {})
    answer_all(service, "anna", classes_of(service))
    for _ in range(3):
        publish_estimates(service.context)
    assert len(evaluations) == 1
    (first,) = published(service)
    cases = service.document("/v1/cases")["items"]
    service.outside_label(cases[0]["id"], "another reader", cases[0]["prediction"]["classes"][0])
    publish_estimates(service.context)
    assert len(evaluations) == 2
    (second,) = published(service)
    assert second[1] > first[1]
    for number in range(4):  # of which some are to be evaluated
        service.add_case(f"one more {number}", cell_png(99 + number))
    for _ in range(2):
        publish_estimates(service.context)
    assert len(evaluations) == 3
    service.post("admin", "/v1/evaluations", json={})  # an event that changes no case
    publish_estimates(service.context)
    assert len(evaluations) == 3
    # a planned read that is due counts as closed
    service.clock.ahead = timedelta(days=400)
    for _ in range(2):
        publish_estimates(service.context)
    assert len(evaluations) == 4
    assert (evaluations[2].n_open > 0, evaluations[3].n_open) == (True, 0)


def test_estimates_of_a_former_champion_go(service: Service, evaluations: list[Any]) -> None:
    collect(service, [cell_png(number) for number in range(4)], patients=True)
    publish_estimates(service.context)
    service.written_past = True
    with service.context.database.write() as session:
        serving = get_champion_alias(session)
        assert serving is not None
        former = serving.release_id
        card = session.get_one(ReleaseRow, former).card
        successor = ReleaseRow(name="next", card_sha256="0" * 64, card=card)
        session.add(successor)
        session.flush()
        session.execute(update(Alias).values(release_id=successor.id))
    publish_estimates(service.context)
    assert [release_id for release_id, _ in published(service)] == [successor.id]
    assert len(evaluations) == 2
    service.change(update(Alias).values(release_id=former))
    publish_estimates(service.context)
    assert [release_id for release_id, _ in published(service)] == [former]
    assert len(evaluations) == 3


@pytest.fixture(scope="module")
def headless_release(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dropout ensemble without a concentration head."""
    run = RunFolder(tmp_path_factory.mktemp("dropout") / "run")
    shutil.copytree(trained_run, run.path)
    calibrate_run(run, method="temperature", alpha=False, mc_dropout=5)
    return export_run(run, run.path.parent / "release").path


def stored(service: Service, case: dict[str, Any]) -> PredictiveDistribution:
    return stored_prediction(service.one(select(CasePrediction).where(CasePrediction.case_id == UUID(case["id"]))))


@pytest.fixture(scope="module")
def neighbours_release(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with a logistic normal, a map of φ and a pair head."""
    parent, rng = read_release(tiny_release), np.random.default_rng(0)
    head = parent.calibration.concentration
    assert head is not None
    n = len(head.weight) - (4 if parent.calibration.refinement.summaries else 0)
    refinement = Refinement(
        disagreement_map=DisagreementMap(0.9, 1.1, -0.1),
        loadings=rng.normal(size=(len(parent.classes), 2)),
        pair_head=PairHead(0.25, rng.normal(0, 0.1, n + 5), -0.5),
        pair_summaries=Summaries.of(rng.normal(0, 3, (200, len(parent.classes)))),
    )
    calibration = Calibration(Scaling(), ConcentrationHead(np.zeros(n), POINT), refinement=refinement)
    path = tmp_path_factory.mktemp("neighbours") / "release"
    return write_recalibrated(path, parent, calibration, parent.card).path


@pytest.mark.parametrize("kind", ["dropout_release", "neighbours_release"])
def test_the_posterior_is_that_of_the_exact_mixture(
    service: Service, kind: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    service.serve(folder)
    case = service.add_case()
    prediction = case["prediction"]
    assert prediction["log_concentration"] is None
    assert prediction["disagreement_calibrated"] is True
    assert prediction["triage"]["expected_gain"] >= 0
    assert all(0 <= low <= high <= 1 for low, high in prediction["class_intervals"].values())
    prior = stored(service, case)
    assert isinstance(prior, DirichletMixtureCpe)
    codes = prediction["classes"]
    counts = np.zeros((1, len(codes)), dtype=int)
    for annotator, code in (("rita", codes[0]), ("omar", codes[3]), ("kim", codes[0])):
        body = service.outside_label(case["id"], annotator, code)
        counts[0, codes.index(code)] += 1
        expected = prior.posterior(counts)
        found = body["posterior"]
        np.testing.assert_allclose(list(found["class_probs"].values()), expected.class_probs[0], atol=1e-15)
        assert found["disagreement_prob"] == pytest.approx(expected.disagreement_probs[0], abs=1e-15)
        assert found["majority_prob"] is not None
        assert found["further_labels_expected"] is not None


@pytest.mark.slow
def test_without_a_head_the_posterior_stays_the_prior(service: Service, headless_release: Path) -> None:
    service.serve(headless_release)
    case = service.add_case()
    assert case["prediction"]["disagreement_calibrated"] is False
    assert case["prediction"]["class_intervals"] is None
    assert isinstance(stored(service, case), EnsembleCpe)
    body = service.outside_label(case["id"], "rita", case["prediction"]["classes"][0])
    assert body["posterior"]["class_probs"] == case["prediction"]["class_probs"]


def test_metrics_use_the_mixtures_disagreement(service: Service, dropout_release: Path) -> None:
    service.serve(dropout_release)
    priors, counts = [], []
    for index in range(4):
        case = service.add_case(f"case-{index}", cell_png(index))
        codes = case["prediction"]["classes"]
        row = np.zeros(len(codes), dtype=int)
        for reader in range(2):
            code = codes[(index + reader) % len(codes)]
            service.outside_label(case["id"], f"reader {reader}", code)
            row[codes.index(code)] += 1
        priors.append(stored(service, case))
        counts.append(row)
    probs = np.concatenate([prior.class_probs for prior in priors])
    dpe = np.concatenate([prior.disagreement_probs for prior in priors])
    expected = evaluate(counts, probs, dpe).to_dict()["metrics"]["L_D"]["value"]
    found = service.document("/v1/metrics", partition="all", weighting="none")["metrics"]["L_D"]
    assert found["value"] == pytest.approx(expected, abs=1e-12)


CASES, READERS = 16, 3


def add(service: Service, path: Path) -> str:
    """As `release add` does it: the network is tried in a limited process first."""
    context = service.context
    return str(add_release(context.database, context.keys.audit, path, context.folders)[0].id)


def release_add(service: Service, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[Any, str]:
    """Document and warnings of the command."""
    settings = service.context.settings
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    assert settings.secret_key is not None
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.secret_key.get_secret_value())
    done = run_here("release", "add", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
@pytest.mark.ci
def test_adding_a_release_without_a_check_warns_and_offers_to_fit_one(
    service: Service, tiny_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cells = without_check(tiny_release, tmp_path / "unchecked"), tmp_path / "cells"
    cells.mkdir()
    for number in range(40):
        (cells / f"{number}.png").write_bytes(cell_png(number))
    plain, warning = release_add(service, monkeypatch, folder)
    assert (plain["out_of_distribution_check"], warning.count("--fit-ood-check")) == (False, 1)
    fitted, quiet = release_add(service, monkeypatch, folder, "--fit-ood-check", cells)
    assert (fitted["out_of_distribution_check"], quiet) == (True, "")
    stored = read_release(service.context.folders.path(f"releases/{fitted['id']}"))
    assert stored.card["files"][FAMILIARITY_FILE] == file_sha256(stored.path / FAMILIARITY_FILE)
    assert stored.card_sha256 == fitted["card_sha256"] != plain["card_sha256"]
    assert release_add(service, monkeypatch, folder, "--fit-ood-check", cells)[0]["id"] == fitted["id"]
    left = [path.name for path in service.context.settings.releases_folder.iterdir()]
    assert len(left) == 3, left


@pytest.mark.slow
@pytest.mark.ci
def test_metrics_that_are_not_of_this_network_are_marked_and_shown_as_those_of_the_maker(
    service: Service, tiny_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = read_release(tiny_release).card
    held_out = dict.fromkeys(("champion", "candidate"), card["held_out"]["with concentration head"])
    shift = {"kind": "noise", "strength": "mild", "n": 9, "flagged": 0.5, "agreement": 0.5, "mean_disagreement": 0.5}
    folder = with_stated_metrics(tiny_release, tmp_path / "stated", held_out=held_out, shifts=[shift])
    stated, warning = release_add(service, monkeypatch, folder)
    assert (stated["metrics_stated_by_maker"], "stated by the maker" in warning) == (True, True)
    champion = service.get("viewer", "/v1/releases").json()["items"][-1]
    assert champion["metrics_stated_by_maker"] is False
    collect(service, [cell_png(number) for number in range(30)], patients=True)
    assert promote(service, stated["id"], despite_gate=True).status_code == 200
    drift = service.get("viewer", "/v1/metrics?partition=all").json()["drift"]
    assert [row["feature_shift"] for row in drift] == [None]
    assert promote(service, champion["id"], despite_gate=True).status_code == 200
    service.post("admin", f"/v1/releases/{stated['id']}/judgements")
    work_off(service.context)
    page = service.get("admin", f"/releases/{stated['id']}").text
    assert "stated by the maker" in page
    assert "Compared with the champion at that time" in page
    assert "Champion and candidate" not in page
    assert "stated by the maker" not in service.get("admin", f"/releases/{champion['id']}").text


@pytest.mark.slow
def test_int8_goes_through_the_gate_and_is_served(service: Service, small_release: Path, int8_release: Path) -> None:
    assert promote(service, add(service, small_release), despite_gate=True).status_code == 200
    rng = np.random.default_rng(4)
    for number in range(CASES):
        given = {f"reader {reader}": int(rng.integers(8)) for reader in range(READERS)}
        store(service, f"case-{number}", cell_png(number), given, patient=f"p{number}")
    added = add(service, int8_release)
    refused = promote(service, added, despite_gate=False)
    assert (refused.status_code, "needs a promotion check" in refused.json()["detail"]) == (409, True)
    done = finish_job(service, f"/v1/releases/{added}/judgements")
    assert done["state"] == "succeeded", done["error"]
    gate = done["result"]["gate"]
    assert gate["L"]["value"] != 0  # its own network has seen the same cases
    assert gate["passed"] == (gate["reasons"] == [])
    assert promote(service, added, despite_gate=True).status_code == 200
    release = read_release(int8_release)
    image = decode_image(cell_png(0))
    said: Any = Predictor(release, device="cpu").predict([image]).distribution
    with service.context.database.write() as session:
        program = auth.add_key(session, service.context.keys.audit, "outside", ["predict"])[1]
    headers = {"Authorization": f"Bearer {program}", "Content-Type": "image/png"}
    answer = service.client.post("/v1/predictions", headers=headers, content=cell_png(0)).json()
    assert answer["release"] == added
    np.testing.assert_allclose(list(answer["class_probs"].values()), said.class_probs[0], rtol=0, atol=1e-12)
    inputs = release.preprocessing(image)[None]
    tensor = {"name": "image", "shape": list(inputs.shape), "datatype": "FP32", "data": inputs.ravel().tolist()}
    wanted = {"inputs": [tensor], "outputs": [{"name": "class_probs"}]}
    headers = {"Authorization": f"Bearer {program}"}
    infer = service.client.post("/v2/models/champion/infer", headers=headers, json=wanted)
    assert infer.status_code == 200, infer.text
    np.testing.assert_allclose(infer.json()["outputs"][0]["data"], said.class_probs[0], rtol=0, atol=1e-6)


P = 0.17
RNG = np.random.default_rng(0)
PROBS, MEMBERS = RNG.dirichlet(np.ones(3), 4), RNG.dirichlet(np.ones(3), (5, 4))


@pytest.mark.parametrize("constant", [None, P])
@pytest.mark.parametrize("family", ["point", "dirichlet", "mixture"])
def test_what_was_served_is_what_is_stored_and_shown(family: str, constant: float | None) -> None:
    stated = None if constant is None else np.full(4, constant)
    made: dict[str, Any] = {
        "point": PointCpe(PROBS, stated_disagreement=stated),
        "dirichlet": DirichletCpe(PROBS, np.arange(4.0), stated_disagreement=stated),
        "mixture": DirichletMixtureCpe(MEMBERS, np.ones((5, 4)), stated_disagreement=stated),
    }
    served = made[family]
    plain, unknown = np.zeros((4, 1), dtype=np.float32), np.full(4, np.nan)
    unlike = OodScores(np.zeros(4, dtype=bool), unknown, unknown, [[]] * 4)
    prediction = Prediction(served, plain, plain, unknown, unlike)
    ids = [uuid.uuid4() for _ in PROBS]
    rows = [CasePrediction(**row) for row in prediction_values(ids, uuid.uuid4(), prediction, [None] * 4, utc_now())]
    back = stored_predictions(rows)
    np.testing.assert_array_equal(back.disagreement_probs, served.disagreement_probs)
    np.testing.assert_array_equal(back.class_probs, served.class_probs)
    assert (back.stated_disagreement is None) == (constant is None)
    labelled = back.posterior(np.eye(4, 3, dtype=int) + [1, 0, 0])
    assert summarise_posterior(back, 0.01).disagreement_constant == (constant is not None)
    assert summarise_posterior(labelled, 0.01).disagreement_constant is False


STRANGE = encode(255 - simulate_cell(0, seed=21, size=32).pixels)


@pytest.fixture(scope="module")
def checked(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_familiarity(tiny_release, tmp_path_factory.mktemp("checked") / "release")


@pytest.fixture
def checking(service: Service, checked: Path) -> Service:
    service.serve(checked)
    return service


def assert_withheld(prediction: dict[str, Any]) -> None:
    assert prediction["out_of_distribution"] is True
    assert prediction["reasons"]
    assert prediction["distance"] > 1
    assert prediction["distance_percentile"] == 100
    assert prediction["disagreement_prob"] is None
    assert prediction["class_intervals"] is prediction["consensus"] is None
    triage = prediction["triage"]
    assert (triage["decision"], triage["pi"], triage["expected_gain"]) == ("second_read", 1, None)


def test_phi_and_intervals_are_withheld_everywhere_until_two_labels(checking: Service) -> None:
    stateless = checking.post("viewer", "/v1/predictions", files={"image": ("x.png", STRANGE)}).json()
    case = checking.add_case("strange", STRANGE)
    listed = checking.document("/v1/cases")["items"][0]
    history = checking.document(f"/v1/cases/{case['id']}/predictions")["items"][0]
    for prediction in (stateless, case["prediction"], listed["prediction"], history):
        assert_withheld(prediction)
        assert prediction["reasons"] == stateless["reasons"]
    pages = ("/worklist", f"/cases/{case['id']}")
    for text in (checking.get("viewer", page).text for page in pages):
        assert "ut of distribution" in text
        assert ", ".join(stateless["reasons"]) in text
        assert "Disagreement probability" not in text
        assert "more experts looked" not in text
    codes = stateless["classes"]
    before = checking.document(f"/v1/cases/{case['id']}/posterior")
    one = checking.outside_label(case["id"], "rita", codes[0])["posterior"]
    for posterior in (before, one):
        withheld = ("disagreement_prob", "class_intervals", "further_labels_expected", "consensus")
        assert [posterior[name] for name in withheld] == [None] * 4
    two = checking.outside_label(case["id"], "omar", codes[1])["posterior"]
    assert 0 < two["disagreement_prob"] < 1
    assert set(two["class_intervals"]) == set(codes)
    full = checking.get("viewer", pages[1]).text
    assert "Disagreement probability" in full
    assert "If two more experts looked" in full
    alone = checking.document(f"/v1/cases/{case['id']}/posterior", exclude_annotator="omar")
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


def test_a_familiar_case_shows_all_and_says_how_near_it_is(checking: Service) -> None:
    asked = ({"image": ("x.png", cell_png(number))} for number in range(9))
    answers = (checking.post("viewer", "/v1/predictions", files=files).json() for files in asked)
    shown = next(answer for answer in answers if not answer["out_of_distribution"])
    assert shown["reasons"] == []
    assert 0 <= shown["distance"] <= 1
    assert 0 <= shown["distance_percentile"] <= 100
    assert shown["disagreement_prob"] is not None


def quarrelsome(true_probs: FloatArray) -> FloatArray:
    """Label distributions of a crowd that differs about twice as often."""
    flat = np.sqrt(true_probs)
    return np.asarray(flat / flat.sum(axis=1, keepdims=True))


def collect_double_reads(service: Service, cells: int, readers: int = 3) -> None:
    """Cells of patients with two each, read twice by outside annotators of a quarrelsome crowd."""
    stack = [simulate_cell(index, seed=5, size=32) for index in range(cells)]
    probs = quarrelsome(np.stack([cell.true_probs for cell in stack]))
    people, labels = AnnotatorPool(readers).read(probs, 2, np.random.default_rng(3))
    for index, cell in enumerate(stack):
        given = {f"reader {person}": int(k) for person, k in zip(people[index], labels[index], strict=True)}
        store(service, f"case-{index}", encode(cell.pixels), given, patient=f"p{index // 2}")


def adapted(service: Service) -> dict[str, Any]:
    return finish_job(service, "/v1/recalibrations", method="adapt")


@pytest.mark.slow
def test_a_champion_is_adapted_and_judged_and_serves_what_was_fitted(service: Service) -> None:
    collect_double_reads(service, 60)
    with service.context.database.read_moment() as session:
        material = read_recalibration_inputs(session, service.context)
    done = adapted(service)
    assert done["state"] == "succeeded", done["error"]
    report, change = done["result"], done["result"]["fit"]["adaptation"]
    # the same by the library, on the outputs that the service stored
    kept, parent = material.fitting, material.parent
    row_of, codes = {case_id: row for row, case_id in enumerate(kept.case_ids)}, list(parent.classes)
    counts = np.zeros((len(kept.case_ids), len(codes)), dtype=np.int64)
    for label in material.fitting_labels:
        if label.case_id in row_of:
            counts[row_of[label.case_id], codes.index(label.class_code)] += 1
    wanted = recalibrate_for_annotators(parent.calibration, kept.logits, kept.features, counts, kept.groups)
    assert change == wanted.figures
    assert change["n_double_reads"] == change["n_cases"] == len(kept.case_ids) >= 20
    assert change["mean_after"] > change["mean_before"]
    assert abs(change["mean_after"] - change["seen"]) < 0.05
    candidate = read_release(service.context.settings.releases_folder / report["release"])
    assert candidate.calibration.to_dict() == wanted.calibration.to_dict()
    assert candidate.network_sha256 == parent.network_sha256
    class_probs = wanted.calibration.apply(kept.logits, kept.features).class_probs
    mix = calibration_mix(class_probs, counts).tolist()
    assert candidate.card["calibration"] == {**parent.card["calibration"], "adaptation": change, "class_mix": mix}
    words = f"adapted to other annotators by {change['n_double_reads']} cells"
    assert words in (candidate.path / "README.md").read_text()
    # a third of the pairs is left without each of three readers: too few, and told so
    told = {row["annotator"]: row.get("failed") or "" for row in report["gate"]["without_annotator"]}
    assert set(told) == {f"reader {k}" for k in range(3)}
    assert all("adapting needs 20 cases" in sentence for sentence in told.values())
    assert words in service.get("admin", f"/releases/{report['release']}").text
    assert '<option value="temperature" selected>' in service.get("admin", "/releases").text
    _serves(service, report["release"], wanted.calibration)


def _serves(service: Service, release_id: str, calibration: Calibration) -> None:
    """Once promoted, new cases are predicted by it, to the last bit of what the library says."""
    with service.context.database.write() as session:
        move_alias(session, service.context, "test", "champion", uuid.UUID(release_id), "test", None, despite_gate=True)
    work_off(service.context)
    cell = simulate_cell(7, seed=99, size=32)
    case = service.add_case("new", encode(cell.pixels))
    predictor = Predictor(read_release(service.context.settings.releases_folder / release_id))
    said = calibration.apply(*predictor.outputs([Image.fromarray(cell.pixels)]))
    assert case["prediction"]["disagreement_prob"] == pytest.approx(float(said.disagreement_probs[0]), abs=1e-6)
    stored = list(case["prediction"]["class_probs"].values())
    np.testing.assert_allclose(stored, said.class_probs[0], atol=1e-6)


@pytest.mark.slow
def test_too_few_double_reads_are_refused_with_their_number(service: Service) -> None:
    collect_double_reads(service, 8)
    failed = adapted(service)
    with service.context.database.read() as session:
        n = len(read_recalibration_inputs(session, service.context).fitting.case_ids)
    needs = "needs 20 cells with two blinded planned labels, and labelled cells from 10 patients"
    for words in (needs, f"which has {n} and ", "more cells with two labels"):
        assert words in failed["error"]


def test_a_champion_without_a_head_is_refused(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    document = read_json(tiny_release / "calibration.json") | {"version": 1, "concentration": None}
    files = {"calibration.json": json.dumps(document).encode()}
    service.serve(edit_release(tiny_release, tmp_path / "headless", files, disagreement_calibrated=False))
    service.add_case("one", cell_png())
    failed = adapted(service)
    assert (failed["state"], "no concentration head" in failed["error"]) == ("failed", True)
    assert "method temperature" in failed["error"]


def test_a_plan_says_how_many_double_reads_and_whether_at_all(service: Service) -> None:
    assert "adapt" in ChangePlan().methods
    plan = service.context.settings.home / "plan.json"
    service.context.settings.change_plan = plan
    plan.write_text(json.dumps({"min_double_reads": 400}))
    service.add_case("one", cell_png())
    assert "needs 400 cells" in adapted(service)["error"]
    plan.write_text(json.dumps({"methods": ["temperature"]}))
    assert "allows the methods temperature, not adapt" in adapted(service)["error"]
    assert "other annotators" not in service.get("admin", "/releases").text


def test_an_export_has_the_flag_of_each_case(checking: Service, tmp_path: Path) -> None:
    for name, data in (("strange", STRANGE), ("familiar", cell_png(1))):
        checking.outside_label(checking.add_case(name, data)["id"], "rita", "blast")
    checking.export(tmp_path / "export", images=False, kind="parquet")
    table = read_table(tmp_path / "export" / "predictions.parquet")
    flags = dict(zip(table.column("case_id").to_pylist(), table.column("out_of_distribution").to_pylist(), strict=True))
    assert flags == {"strange": True, "familiar": False}


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
        assert triage["reason"].startswith("not checked")
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
    assert "no out-of-distribution check" in unchecking.get("admin", f"/releases/{detail['id']}").text
