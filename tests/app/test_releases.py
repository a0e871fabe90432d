"""Releases of every kind, served and published: ensembles, int8 networks, constant disagreement, gauges."""

import json
import shutil
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import select, update

from app.accounts import people as auth
from app.database.tables import Alias, CasePrediction, PublishedEstimates, ReleaseRow, utc_now
from app.metrics import published as metrics_published
from app.metrics.cohort import evaluate_cohort
from app.metrics.published import publish_estimates
from app.predictions.stored import prediction_values, stored_prediction, stored_predictions
from app.releases.queries import get_champion_alias
from app.releases.registration import add_release
from app.releases.service import move_alias
from app.triage.rules import summarise_posterior
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution
from ml.images.preprocess import decode_image
from ml.metrics import evaluate
from ml.release.artifact import FAMILIARITY_FILE, read_release
from ml.release.ood_detector import OodScores
from ml.release.predictor import Prediction, Predictor
from ml.training.calibrate import calibrate_run
from ml.training.export import export_run
from ml.training.run_folder import RunFolder
from ml.util.files import file_sha256
from tests.support.command import run_here
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, collect, put_release, store
from tests.support.tiny_release import with_stated_metrics, without_check


def published(service: Service) -> list[tuple[UUID, datetime]]:
    return [(row.release_id, row.computed_at) for row in service.scalars(select(PublishedEstimates))]


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Cohorts that were evaluated."""
    evaluated: list[Any] = []
    evaluate = evaluate_cohort

    def counted(cohort: Any, **options: Any) -> Any:
        evaluated.append(cohort)
        return evaluate(cohort, **options)

    monkeypatch.setattr(metrics_published, "evaluate_cohort", counted)
    return evaluated


def test_estimates_are_computed_again_only_when_what_they_follow_from_changed(
    service: Service, evaluations: list[Any]
) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {})
    while (lease := service.post("anna", "/v1/reads")).status_code == 201:
        body = {"label": lease.json()["classes"][0]["code"]}
        assert service.post("anna", f"/v1/reads/{lease.json()['id']}/labels", json=body).status_code == 201
    service.make_labels_final()
    for _ in range(3):
        publish_estimates(service.context)
    assert len(evaluations) == 1
    (first,) = published(service)
    cases = service.get("viewer", "/v1/cases").json()["items"]
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


def use(service: Service, path: Path) -> None:
    context = service.context
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, path, context.settings.releases_folder)
        move_alias(session, context, "test", "champion", row.id, "test", None, despite_gate=True)


def stored(service: Service, case: dict[str, object]) -> PredictiveDistribution:
    import uuid

    from sqlalchemy import select

    with service.context.database.read() as session:
        wanted = uuid.UUID(str(case["id"]))
        row = session.execute(select(CasePrediction).where(CasePrediction.case_id == wanted)).scalar_one()
        return stored_prediction(row)


def test_the_posterior_is_that_of_the_exact_mixture(service: Service, dropout_release: Path) -> None:
    use(service, dropout_release)
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
    use(service, headless_release)
    case = service.add_case()
    assert case["prediction"]["disagreement_calibrated"] is False
    assert case["prediction"]["class_intervals"] is None
    assert isinstance(stored(service, case), EnsembleCpe)
    code = case["prediction"]["classes"][0]
    body = service.outside_label(case["id"], "rita", code)
    assert body["posterior"]["class_probs"] == case["prediction"]["class_probs"]


def test_metrics_use_the_mixtures_disagreement(service: Service, dropout_release: Path) -> None:
    use(service, dropout_release)
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
    found = service.get("admin", "/v1/metrics", params={"partition": "all", "weighting": "none"}).json()["metrics"][
        "L_D"
    ]["value"]
    assert found == pytest.approx(expected, abs=1e-12)


CASES, READERS = 16, 3


def promote(service: Service, release: str, *, despite_gate: bool) -> Any:
    body = {"release": release, "reason": "faster", "despite_gate": despite_gate}
    answer = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": "*"})
    work_off(service.context)
    return answer


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
    assert "Against the champion at that time" in page
    assert "Champion and candidate" not in page
    assert "stated by the maker" not in service.get("admin", f"/releases/{champion['id']}").text


@pytest.mark.slow
def test_it_goes_through_the_gate_and_is_served_like_any_other(
    service: Service, small_release: Path, int8_release: Path
) -> None:
    assert promote(service, add(service, small_release), despite_gate=True).status_code == 200
    rng = np.random.default_rng(4)
    for number in range(CASES):
        given = {f"reader {reader}": int(rng.integers(8)) for reader in range(READERS)}
        store(service, f"case-{number}", cell_png(number), given, patient=f"p{number}")
    added = add(service, int8_release)
    refused = promote(service, added, despite_gate=False)
    assert (refused.status_code, "no gate has judged" in refused.json()["detail"]) == (409, True)
    job = service.post("admin", f"/v1/releases/{added}/judgements").json()["id"]
    work_off(service.context)
    done = service.get("admin", f"/v1/jobs/{job}").json()
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
    headers = {"Authorization": f"Bearer {program}"}
    answer = service.client.post(
        "/v1/predictions", headers={**headers, "Content-Type": "image/png"}, content=cell_png(0)
    ).json()
    assert answer["release"] == added
    np.testing.assert_allclose(list(answer["class_probs"].values()), said.class_probs[0], rtol=0, atol=1e-12)
    inputs = release.preprocessing(image)[None]
    tensor = {"name": "image", "shape": list(inputs.shape), "datatype": "FP32", "data": inputs.ravel().tolist()}
    wanted = {"inputs": [tensor], "outputs": [{"name": "class_probs"}]}
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
    before, labelled = (
        summarise_posterior(back, 0.01),
        summarise_posterior(back.posterior(np.eye(4, 3, dtype=int) + [1, 0, 0]), 0.01),
    )
    assert before.disagreement_constant == (constant is not None)
    assert labelled.disagreement_constant is False
