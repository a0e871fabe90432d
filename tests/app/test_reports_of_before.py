"""Evaluations that were frozen before a metric was known are still shown."""

import numpy as np

from app.evaluations import report
from app.evaluations.schemas import EvaluationDocument, GroupOut
from ml.metrics import evaluate

SINCE = {"agreement", "skill", "skill_D", "L_D_minus_max", "L_D_minus_gini"}


def test_a_document_without_the_new_metrics_shows_what_it_has() -> None:
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.ones(3), 30)
    today = EvaluationDocument.of(evaluate(rng.multinomial(3, q), q))
    before = today.model_copy(update={"metrics": {k: v for k, v in today.metrics.items() if k not in SINCE}})
    groups = report.environment().from_string(
        '{% import "sections.html" as sections %}{{ sections.groups(rows, "site", "By site") }}'
    )
    for document, known in ((today, True), (before, False)):
        names = {name for name, _, _ in report.headline(document)}  # type: ignore[arg-type]
        assert {"L", "accuracy"} <= names
        assert (names >= SINCE) == known
        page = groups.render(rows=[GroupOut(group="here", n_cases=30, metrics=document.metrics)])
        assert ("agreement" in page) == known
        assert "L_φ" in page
    assert "By site" in groups.render(rows=[])
