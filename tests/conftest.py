"""Fixtures that several parts share: a small release made by the real pipeline, databases, what is missing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer, find_binaries

_IS_MISSING = " is missing"


def missing(what: str) -> None:
    """Skip with one line that says what is missing; in CI nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI must have it")
    pytest.skip(f"{what}{_IS_MISSING}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])}
    for reason in sorted(reasons):
        if reason.endswith(_IS_MISSING):
            what = reason.removeprefix("Skipped: ").removesuffix(_IS_MISSING)
            terminalreporter.write_line(f"missing: {what}; the tests that need it were skipped")


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder with real data sets."""
    folder = os.environ.get("SECONDREAD_DATASETS")
    if not folder or not Path(folder).is_dir():
        missing("the folder with real data sets (set SECONDREAD_DATASETS)")
    return Path(str(folder))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started from the system's binaries."""
    binaries = find_binaries()
    if binaries is None:
        missing("PostgreSQL (Debian package postgresql)")
    assert binaries is not None
    server = PostgresServer(binaries)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and calibrated run of the compact network on 300 simulated cells."""
    import torch

    from ml.datasets.cells import load_cells
    from ml.training.calibrate import calibrate_run
    from ml.training.run_folder import RunFolder
    from ml.training.train import train
    from tests.support.configs import quick_config

    path = tmp_path_factory.mktemp("run") / "cells"
    folder = RunFolder(path)
    train(load_cells(300, seed=0), quick_config(epochs=2), folder, device=torch.device("cpu"))
    calibrate_run(folder, method="temperature", alpha=True)
    return path


@pytest.fixture(scope="session")
def small_release(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with a concentration head, of eight simulated cell types."""
    from ml.training.export import export_run
    from ml.training.run_folder import RunFolder

    path = tmp_path_factory.mktemp("release") / "cells"
    return export_run(RunFolder(trained_run), path, fused=True, name="small cells").path
