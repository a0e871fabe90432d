"""Which cases should be read again first."""

from typing import Literal

import numpy as np
import pyarrow as pa

from ml.metrics.triage_curves import uncertainty_scores
from ml.tables.files import TableError, TableSource, check_predictions, place_of, read_table
from ml.tables.reading import refuse_empty_file

#: Disagreement of two annotators (DPE), or a common rule.
Score = Literal["disagreement", "max_probability", "entropy"]


def rank_second_reads(predictions: TableSource, *, score: Score = "disagreement", binary: bool = False) -> pa.Table:
    """Rank the cases of a PREDICTIONS table by how much they need a second read.

    Args:
        predictions: PREDICTIONS; a file or a table in memory.
        score: what a case is ranked by, the largest first: the probability that two annotators disagree
            (``disagreement``), 1 minus the largest class probability, or the entropy of the class probabilities.
        binary: one column of probabilities, whose complement is the other class.

    Returns:
        A row per case with ``case_id``, ``score`` and ``rank`` (from 1); cases of one score keep their order.

    Raises:
        TableError: the table cannot be used; the message names file, row and column.
        ValueError: an unknown score.

    >>> predictions = {"case_id": ["a", "b", "c"], "prob:x": [0.9, 0.5, 1.0], "prob:y": [0.1, 0.5, 0.0]}
    >>> rank_second_reads(predictions)["case_id"].to_pylist()
    ['b', 'a', 'c']
    """
    table, place = read_table(predictions), place_of(predictions, "PREDICTIONS")
    refuse_empty_file(table, predictions)
    if "finding" in table.column_names:
        raise TableError(f"{place}: the table has a column 'finding': rank one finding at a time")
    read = check_predictions(table, place, complement="the other class" if binary else None)
    common = {name.replace(" ", "_"): values for name, values in uncertainty_scores(read.class_probs).items()}
    scores = {"disagreement": read.disagreement_probs} | common
    if score not in scores:
        raise ValueError(f"unknown score {score!r}; there are {', '.join(scores)}")
    order = np.argsort(-scores[score], kind="stable")
    ranked = {"case_id": [read.case_ids[row] for row in order], "score": scores[score][order]}
    return pa.table(ranked | {"rank": np.arange(1, len(order) + 1)})
