"""A service on a Monte-Carlo dropout release: predictions and posteriors are those of the exact mixture."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from app.database.tables import CasePrediction
from app.predictions.stored import members_bytes, stored_prediction
from app.releases.service import move_alias
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PredictiveDistribution
from ml.metrics import evaluate
from ml.metrics.posterior_gain import posterior_gain
from ml.training.calibrate import calibrate_run
from ml.training.export import export_run
from ml.training.run_folder import RunFolder
from tests.support.service import Service, cell_png, put_release


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


def test_members_survive_storage_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    probs, a = rng.dirichlet(np.ones(4), (6, 1)), rng.normal(0, 3, (6, 1))
    for distribution in (DirichletMixtureCpe(probs, a), EnsembleCpe(probs)):
        row = CasePrediction(class_probs=distribution.class_probs[0].tolist(), members=members_bytes(distribution, 0))
        back = stored_prediction(row)
        assert type(back) is type(distribution)
        np.testing.assert_array_equal(back.class_probs, distribution.class_probs)
        np.testing.assert_array_equal(back.disagreement_probs, distribution.disagreement_probs)
    assert members_bytes(DirichletCpe(probs[0], a[0]), 0) is None


def test_the_gain_of_a_label_is_the_librarys_for_the_mixture(service: Service, dropout_release: Path) -> None:
    use(service, dropout_release)
    members, concentrations, counts = [], [], []
    for number in range(6):
        case = service.add_case(f"case {number}", cell_png(number), patient=f"p{number}")
        prior = stored(service, case)
        assert isinstance(prior, DirichletMixtureCpe)
        members.append(prior.member_class_probs)
        concentrations.append(prior.member_log_concentration)
        codes = case["prediction"]["classes"]
        row = np.zeros(len(codes), dtype=int)
        for reader in range(number % 4):
            row[(number * reader) % 3] += 1
            service.outside_label(case["id"], f"r{reader}", codes[(number * reader) % 3])
        counts.append(row)
    mixture = DirichletMixtureCpe(np.concatenate(members, axis=1), np.concatenate(concentrations, axis=1))
    expected = posterior_gain(np.array(counts), mixture)
    found = service.get("viewer", "/v1/metrics", params={"partition": "all", "weighting": "none"}).json()
    assert found["posterior_gain"]["n"] == expected.n == 2
    assert found["posterior_gain"]["value"] == pytest.approx(expected.value, abs=1e-12)
