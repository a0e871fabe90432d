"""Weight labels by annotator where an annotator model is in use."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.annotators.models.service import model_in_use
from app.cases.service import NamedLabel
from app.database.tables import CasePrediction
from app.predictions.service import stored_prediction
from ml.agreement.long_labels import LongLabels
from ml.annotators.confusions import ReaderModel
from ml.annotators.posterior import answer_distribution, named_posterior
from ml.annotators.sentences import describe_annotator_habit
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution, has_concentration


@dataclass(frozen=True)
class WeightedPosterior:
    """Predictive distribution of the population's next answer, after labels by named annotators."""

    version: int
    # of the population's answers (N = 1)
    distribution: DirichletMixtureCpe


def weighted_posterior(
    in_use: tuple[int, ReaderModel], prior: PredictiveDistribution, classes: list[str], labels: Sequence[NamedLabel]
) -> WeightedPosterior | None:
    """Weight the labels of a case by their annotators; None where there is nothing to weight."""
    if not labels or len(in_use[1].population) != len(classes):
        return None
    version, model = in_use
    long, matrices = _long_labels_of_case(labels, classes), model.matrices([row.annotator for row in labels])
    return WeightedPosterior(version, answer_distribution(model.opinions(prior), long, matrices, model.population))


def _long_labels_of_case(labels: Sequence[NamedLabel], classes: list[str]) -> LongLabels:
    n = len(labels)
    given = np.array([classes.index(str(row.label.class_code)) for row in labels], dtype=np.int64)
    return LongLabels(np.zeros(n, dtype=np.int64), np.arange(n), given, 1, n, len(classes))


def expected_gains_of_next(
    session: Session, prediction: CasePrediction, classes: list[str], labels: Sequence[NamedLabel], names: Sequence[str]
) -> list[float] | None:
    """Expected gain of one more label of a case by each of these annotators; None where no model is in use."""
    in_use, prior = model_in_use(session, prediction.release_id), stored_prediction(prediction)
    if in_use is None or not has_concentration(prior) or len(in_use[1].population) != len(classes):
        return None
    model = in_use[1]
    usable_labels = [row for row in labels if row.label.class_code in classes]
    given = model.matrices([row.annotator for row in usable_labels])
    after = named_posterior(model.opinions(prior), _long_labels_of_case(usable_labels, classes), given)
    return [float(after.worth(matrix, model.population)[0]) for matrix in model.matrices(names)]


def remarks_on(model: ReaderModel, annotators: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a sentence for each annotator whose answers differ from those of the others."""
    return [sentence for name in annotators if (sentence := describe_annotator_habit(model, name, names)) is not None]
