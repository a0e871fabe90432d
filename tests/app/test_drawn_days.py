"""Cases whose annotators were drawn enter the metrics a day at a time: else those of the quick would come first."""

import numpy as np

from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset

DAY = 86_400.0


def columns(*, drawn: bool) -> EvaluationDataset:
    """Four cases due on one day, two of them read twice, and one that is due on the next."""
    data = EvaluationDataset.empty(["a", "b"], 5)
    data.case_id[:, 15] = np.arange(5)
    data.cluster[:] = np.arange(5)
    data.evaluation[:] = True
    data.pi[:] = 1.0
    data.class_probs[:] = 0.5
    data.disagreement_probs[:] = 0.5
    data.n_planned[:] = [1, 1, 2, 2, 1]
    data.drawn[:] = drawn
    data.first_due_at[:] = 10 * DAY + np.array([1.0, 2.0, 3.0, 4.0, DAY])
    for row in range(5):
        answered(data, row)
    return data


def answered(data: EvaluationDataset, row: int) -> None:
    data.first_class[row] = 0
    data.label_counts[row, 0] = data.n_planned[row]
    data.said[row, : data.n_planned[row]] = 0


def still_open(data: EvaluationDataset, row: int, ordinal: int) -> None:
    due = float(data.first_due_at[row])
    data.open_until[row] = due
    data.label_counts[row, 0] -= 1
    if ordinal == 1:
        data.first_open_until[row], data.first_class[row] = due, -1


def cohort(data: EvaluationDataset, at: float) -> tuple[int, int, list[float]]:
    """Cases in the cohort, cases left out, and weights of order 2."""
    found = build_cohort(data, CohortQuery(), at)
    assert found.weight2 is not None
    return len(found.columns), found.n_open, found.weight2.tolist()


def test_an_open_first_read_keeps_its_day_out_until_it_is_due() -> None:
    data = columns(drawn=True)
    still_open(data, 1, 1)
    assert cohort(data, 9 * DAY)[:2] == (1, 4)
    assert cohort(data, 10 * DAY + 3)[:2] == (5, 0)  # due without an answer: non-response
    assert build_cohort(data, CohortQuery(), 10 * DAY + 3).first is not None


def test_where_nobody_is_drawn_each_case_stands_for_itself() -> None:
    data = columns(drawn=False)
    still_open(data, 1, 1)
    assert cohort(data, 9 * DAY)[:2] == (4, 1)


def test_an_open_second_read_keeps_the_pairs_of_its_day_out() -> None:
    data = columns(drawn=True)
    assert cohort(data, 9 * DAY)[2][2:4] == [1.0, 1.0]
    still_open(data, 3, 2)
    n, n_open, weights = cohort(data, 9 * DAY)
    assert (n, n_open, sum(weights)) == (5, 0, 0.0)
    found = build_cohort(data, CohortQuery(), 9 * DAY).second
    assert found is not None
    assert sum(cell.waiting for cell in found.cells) == 2
    assert cohort(data, 10 * DAY + 4)[2][2:4] == [2.0, 0.0]


def test_a_correction_of_an_overdue_answer_does_not_hold_its_day_up() -> None:
    data = columns(drawn=True)
    data.first_open_until[0] = data.open_until[0] = np.inf  # may still be corrected
    assert cohort(data, 9 * DAY)[:2] == (1, 4)
    assert cohort(data, 11 * DAY)[:2] == (4, 1)
