"""A constant disagreement probability as predictions are stored and shown."""

import uuid
from typing import Any

import numpy as np
import pytest

from app.database.tables import CasePrediction, utc_now
from app.predictions.stored import prediction_values, stored_predictions
from app.triage.rules import summarise_posterior
from ml.distributions import DirichletCpe, DirichletMixtureCpe, PointCpe
from ml.release.ood_detector import OodScores
from ml.release.predictor import Prediction

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
