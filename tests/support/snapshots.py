"""The law of snapshots: with what the audit chain says has changed since, they are what all rows say."""

import numpy as np

from app.context import ServiceContext
from app.metrics.dataset import EvaluationDataset
from app.metrics.load import load_dataset
from app.metrics.snapshot import load_current_dataset, write_snapshot
from app.releases.queries import all_releases, class_codes


def write_snapshots(context: ServiceContext) -> None:
    with context.database.read() as session:
        found = [(row.id, class_codes(row)) for row in all_releases(session)]
    for release_id, classes in found:
        write_snapshot(context.database, context.folders, release_id, classes)


def assert_snapshots_tell_all(context: ServiceContext) -> None:
    """Every column of every case, to the last bit."""
    with context.database.read_moment() as session:
        for row in all_releases(session):
            classes = class_codes(row)
            live = load_current_dataset(session, context.settings.home, row.id, classes)
            assert_same_columns(live, load_dataset(session, row.id, classes))


def assert_same_columns(found: EvaluationDataset, expected: EvaluationDataset) -> None:
    """Same cases in any order."""
    assert (found.classes, len(found)) == (expected.classes, len(expected))
    assert set(np.unique(found.site).tolist()) <= {0, *found.sites}
    first, second = (columns.take(np.lexsort(columns.case_id.T[::-1])) for columns in (found, expected))
    for name, column in first.arrays().items():
        np.testing.assert_array_equal(column, getattr(second, name), err_msg=name)
