"""Labels weighed by who gave them, where a model of the annotators is in use."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.cases.queries import NamedLabel
from app.readers.queries import model_in_use
from ml.agreement.long_labels import LongLabels
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution
from ml.readers.confusions import ReaderModel
from ml.readers.posterior import answer_distribution
from ml.readers.sentences import remark


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
    session: Session,
    release_id: uuid.UUID,
    prior: PredictiveDistribution,
    classes: list[str],
    labels: Sequence[NamedLabel],
) -> Weighed | None:
    """Weigh the labels of a case by who gave them; None where no model is in use or there is nothing to weigh.

    Args:
        session: for reading.
        release_id: whose prediction the prior is.
        prior: of the case, with a concentration.
        classes: K codes of the release.
        labels: one per annotator.
    """
    in_use = model_in_use(session, release_id)
    if in_use is None or not labels or len(in_use[1].population) != len(classes):
        return None
    version, model = in_use
    given = np.array([classes.index(str(row.label.class_code)) for row in labels], dtype=np.int64)
    n = len(labels)
    long = LongLabels(np.zeros(n, dtype=np.int64), np.arange(n), given, 1, n, len(classes))
    matrices = model.matrices([row.annotator for row in labels])
    return Weighed(version, answer_distribution(model.opinions(prior), long, matrices, model.population))


def remarks_on(model: ReaderModel, annotators: Sequence[str], names: Sequence[str]) -> list[str]:
    """What these annotators call otherwise than the others do, a sentence each."""
    return [said for name in annotators if (said := remark(model, name, names)) is not None]
