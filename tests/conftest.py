"""Fixtures that several parts share: releases, databases, what is missing.

A test of the service runs on SQLite. Where PostgreSQL differs (leases, races, append-only rows, idempotency,
migrations, snapshots, jobs, what a text may contain) it is marked ``both_databases`` and runs on both; with
``--all-databases`` every test does."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from filelock import FileLock

from tests.support.bucket import BucketServer, bucket_server
from tests.support.chromium import FLAGS, find_chromium
from tests.support.label_queries import bypasses, watch_label_queries
from tests.support.postgres import PostgresServer, find_binaries
from tests.support.process import RUNNING
from tests.support.sabotage import call_undone, keep_marked
from tests.support.waiting import PATIENCE, stretch_database_deadlines

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_IS_MISSING = " is missing"


def missing(what: str) -> NoReturn:
    """Skip with one line that says what is missing; in CI nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI must have it")
    pytest.skip(f"{what}{_IS_MISSING}")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """A Chromium of this process: one, since a second one could not be driven beside it."""
    from playwright.sync_api import sync_playwright

    binary = find_chromium()
    if binary is None:
        missing("Chromium (Debian package chromium)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=binary, args=FLAGS)
        yield opened
        opened.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])}
    for reason in sorted(reasons):
        if reason.endswith(_IS_MISSING):
            what = reason.removeprefix("Skipped: ").removesuffix(_IS_MISSING)
            terminalreporter.write_line(f"missing: {what}; the tests that need it were skipped")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with what servers and workers wrote."""
    report = yield
    if report.failed:
        report.sections += [(f"processes on {made.home}", made.log) for made in RUNNING]
    return report


@pytest.fixture(autouse=True, scope="session")
def _databases_are_as_patient_as_the_tests() -> None:
    if PATIENCE != 1:
        stretch_database_deadlines()


@pytest.fixture(autouse=True, scope="session")
def _statements_on_labels_are_watched() -> None:
    watch_label_queries()


@pytest.fixture(autouse=True)
def _nothing_bypasses_the_counted_labels() -> Iterator[None]:
    """Hidden repeats are seen by the few that must, whatever a test lets the service do."""
    bypasses.clear()
    yield
    assert bypasses == []


@pytest.fixture(autouse=True)
def _files_are_readable() -> Iterator[None]:
    """Commands that ran in this process leave their mask of files for their own user only; a server of another user of
    the next test could then not read its own configuration."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test() -> Iterator[None]:
    """Whatever a failed test could not stop ends here, so that the next one does not fail for it."""
    before = list(RUNNING)
    yield
    for made in [made for made in RUNNING if made not in before]:
        made.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-databases", action="store_true", help="run every test of the service on PostgreSQL too")
    parser.addoption("--sabotage", action="store_true", help="undo each control, and see its test fail")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked on both databases."""
    mark = metafunc.definition.get_closest_marker
    marked = mark("both_databases") is not None and mark("one_database") is None
    both = mark("sqlite_only") is None and (marked or metafunc.config.getoption("all_databases"))
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    for fixture in {"database_kind", "shared_service"} & set(metafunc.fixturenames) - set(chosen):
        if both:
            metafunc.parametrize(fixture, ["sqlite", "postgresql"], indirect=True)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is slow on one database is quick on the other."""
    if config.getoption("sabotage"):
        keep_marked(items)
    for item in items:
        if item.get_closest_marker("slow_on_second_database") and "postgresql" in item.nodeid:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Call the test of a control without it, where that is asked for."""
    if pyfuncitem.config.getoption("sabotage"):
        return (yield from call_undone(pyfuncitem))
    return (yield)


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder with real data sets."""
    folder = os.environ.get("SECONDREAD_DATASETS")
    if not folder or not Path(folder).is_dir():
        missing("the folder with real data sets (set SECONDREAD_DATASETS)")
    return Path(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started from the system's binaries."""
    binaries = find_binaries()
    if binaries is None:
        missing("PostgreSQL (Debian package postgresql)")
    try:
        server = PostgresServer(binaries)
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and calibrated run of the compact network on 300 simulated cells."""
    return build_once(tmp_path_factory, "run", lambda folder: _train(folder / "cells")) / "cells"


def _train(path: Path) -> None:
    import torch

    from ml.datasets.cells import load_cells
    from ml.training.calibrate import calibrate_run
    from ml.training.run_folder import RunFolder
    from ml.training.train import train
    from tests.support.configs import quick_config

    folder = RunFolder(path)
    train(load_cells(300, seed=0), quick_config(epochs=2), folder, device=torch.device("cpu"))
    calibrate_run(folder, method="temperature", alpha=True)


@pytest.fixture(scope="session")
def small_release(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained release with a concentration head and a fused graph, of eight simulated cell types."""
    from ml.training.export import export_run
    from ml.training.run_folder import RunFolder

    return build_once(
        tmp_path_factory,
        "small release",
        lambda path: export_run(RunFolder(trained_run), path, fused=True, name="small cells"),
    )


@pytest.fixture(scope="session")
def int8_release(small_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small_release`` with its convolutions in whole numbers."""

    def build(path: Path) -> None:
        from ml.datasets.cells import load_cells
        from ml.training.quantize import QuantizationRequest, quantize_release

        # a network of two epochs may be worse by more than the gate allows, which is not what is tested with it
        wish = QuantizationRequest(n_images=24, shifts=False, despite_gate=True)
        quantize_release(small_release, load_cells(300, seed=0), path, wish)

    return build_once(tmp_path_factory, "int8 release", build)


@pytest.fixture(scope="session")
def dropout_release(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Monte-Carlo dropout ensemble of six with a concentration head, of the network of ``small_release``."""

    def build(path: Path) -> None:
        import shutil

        from ml.training.calibrate import calibrate_run
        from ml.training.export import export_run
        from ml.training.run_folder import RunFolder

        run = RunFolder(tmp_path_factory.mktemp("dropout") / "run")
        shutil.copytree(trained_run, run.path)
        calibrate_run(run, method="temperature", alpha=True, mc_dropout=6, seed=1)
        export_run(run, path)

    return build_once(tmp_path_factory, "dropout release", build)


@pytest.fixture(scope="session")
def tiny_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of a few kilobytes with the same classes, where the network is not what is tested."""
    from tests.support.tiny_release import write_tiny_release

    return build_once(tmp_path_factory, "tiny release", write_tiny_release)


@pytest.fixture(scope="session")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A server of buckets."""
    with bucket_server(tmp_path_factory.mktemp("buckets") / "log") as server:
        yield server


@pytest.fixture
def bucket(buckets: BucketServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of an empty bucket; credentials and endpoint are set."""
    for name, value in buckets.environment.items():
        monkeypatch.setenv(name, value)
    return buckets.create()


def build_once(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Folder or file of this name, built by whichever process of pytest-xdist asks first."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    path = root / "shared" / name
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_name(f"{name}.lock")):
        if not path.exists():
            partial = path.with_name(f"{name}.{os.getpid()}.part")
            build(partial)
            partial.rename(path)
    return path
