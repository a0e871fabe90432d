"""Labels weighed by who gave them, where a model of the annotators is in use."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.annotators.models.queries import model_in_use
from app.cases.queries import NamedLabel
from app.database.tables import CasePrediction
from app.predictions.stored import stored_prediction
from ml.agreement.long_labels import LongLabels
from ml.annotators.confusions import ReaderModel
from ml.annotators.posterior import answer_distribution, named_posterior
from ml.annotators.sentences import remark
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution, has_concentration


@dataclass(frozen=True)
class Weighed:
    """What an annotator drawn from the population answers next, after labels by named annotators.

    Attributes:
        version: of the model.
        distribution: of the population's answers (N = 1).
    """

    version: int
    distribution: DirichletMixtureCpe


def weighed(
    in_use: tuple[int, ReaderModel], prior: PredictiveDistribution, classes: list[str], labels: Sequence[NamedLabel]
) -> Weighed | None:
    """Weigh the labels of a case by who gave them; None where there is nothing to weigh.

    Args:
        in_use: version and model of the annotators.
        prior: of the case, with a concentration.
        classes: K codes of the release.
        labels: one per annotator.
    """
    if not labels or len(in_use[1].population) != len(classes):
        return None
    version, model = in_use
    long, matrices = _of_one_case(labels, classes), model.matrices([row.annotator for row in labels])
    return Weighed(version, answer_distribution(model.opinions(prior), long, matrices, model.population))


def _of_one_case(labels: Sequence[NamedLabel], classes: list[str]) -> LongLabels:
    n = len(labels)
    given = np.array([classes.index(str(row.label.class_code)) for row in labels], dtype=np.int64)
    return LongLabels(np.zeros(n, dtype=np.int64), np.arange(n), given, 1, n, len(classes))


def worth_of_next(
    session: Session, prediction: CasePrediction, classes: list[str], labels: Sequence[NamedLabel], names: Sequence[str]
) -> list[float] | None:
    """Expected gain of one more label of a case by each of these annotators; None where no model is in use.

    Args:
        session: for reading.
        prediction: of the case, its prior.
        classes: K codes of its release.
        labels: that it has, one per annotator.
        names: of annotators.
    """
    in_use, prior = model_in_use(session, prediction.release_id), stored_prediction(prediction)
    if in_use is None or not has_concentration(prior) or len(in_use[1].population) != len(classes):
        return None
    model = in_use[1]
    known = [row for row in labels if row.label.class_code in classes]
    given = model.matrices([row.annotator for row in known])
    after = named_posterior(model.opinions(prior), _of_one_case(known, classes), given)
    return [float(after.worth(matrix, model.population)[0]) for matrix in model.matrices(names)]


def remarks_on(model: ReaderModel, annotators: Sequence[str], names: Sequence[str]) -> list[str]:
    """What these annotators call otherwise than the others do, a sentence each."""
    return [said for name in annotators if (said := remark(model, name, names)) is not None]
