"""Steady load leaves the service as it was (F13): no error, nothing lost, memory and descriptors level."""

from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.database.tables import Case, Label
from tests.faults import soak
from tests.faults.rounds import Rounds, results_folder
from tests.support.process import Installation


@pytest.mark.parametrize(
    "minutes", [pytest.param(0.2, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.heavy)]
)
def test_steady_load_leaves_the_service_as_it_was(tmp_path: Path, tiny_release: Path, minutes: float) -> None:
    with Installation(tmp_path / "home") as made:
        keys = made.prepare(tiny_release, admin="admin", viewer="viewer", outside="service")
        made.start()
        seen = soak.run(made, keys, 60 * minutes, samples=round(max(12, 6 * minutes)))
        with made.parts() as context, context.database.read() as session:
            n_labels, n_cases = (session.execute(select(func.count(row.id))).scalar_one() for row in (Label, Case))
    written = {
        "labels": (n_labels, seen.statuses["label 201"]),
        "cases": (n_cases - soak.FIRST_CASES, seen.statuses["upload 201"]),
    }
    Rounds(
        fault="F13",
        what="steady load of labels, uploads and predictions",
        database="sqlite",
        rounds=1,
        acknowledged=sum(acknowledged for _, acknowledged in written.values()),
        lost=sum(max(0, acknowledged - stored) for stored, acknowledged in written.values()),
        duplicates=sum(max(0, stored - acknowledged) for stored, acknowledged in written.values()),
        server_errors=seen.server_errors,
    ).note()
    if (folder := results_folder()) is not None and minutes > 1:
        soak.save(seen, minutes, folder / "soak")
    assert set(seen.statuses) == {"label 201", "upload 201", "prediction 200"}, seen.statuses
    assert [row for row in written.items() if row[1][0] != row[1][1]] == []
    assert seen.faults == []
    if minutes < 1:
        return
    for name in ("memory", "descriptors"):
        before, after = seen.later(name)
        assert after < 1.1 * before, (name, before, after)
