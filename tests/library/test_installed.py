"""A wheel that has everything, and an environment with the core dependencies only."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from secondread import __version__
from tests.support.installed import LeanEnvironment, build_distributions, tracked_files

pytestmark = pytest.mark.slow

PACKAGES = ("secondread/", "app/", "ml/", "migrations/")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_distributions(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def lean(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> LeanEnvironment:
    return LeanEnvironment(tmp_path_factory.mktemp("lean") / "environment", next(distributions.glob("*.whl")))


def test_wheel_and_sdist_have_every_file_and_pass_the_check(distributions: Path) -> None:
    (wheel,), (sdist,) = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    assert (wheel.name, sdist.name) == (
        f"secondread-{__version__}-py3-none-any.whl",
        f"secondread-{__version__}.tar.gz",
    )
    files = {name for name in tracked_files() if name.startswith(PACKAGES)}
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert sorted(files - inside) == []
    assert sorted(name for name in inside - files if ".dist-info/" not in name) == []
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"}
    assert sorted((files | wanted) - names) == []
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


TOPS = """
import sys, sysconfig
from pathlib import Path
import secondread
for name in secondread.__all__:
    getattr(secondread, name)
secondread.evaluate({"case_id": ["a"], "count:x": [1]}, {"case_id": ["a"], "prob:x": [0.5], "prob:y": [0.5]})
site = Path(sysconfig.get_paths()["purelib"])
print(sorted({p.name for p in site.iterdir()} & {name.split(".")[0] for name in sys.modules}))
"""


def test_the_library_loads_numpy_scipy_and_pyarrow_only(lean: LeanEnvironment) -> None:
    done = lean.python("-c", TOPS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(["ml", "numpy", "pyarrow", "scipy", "secondread"])


def test_calibration_works_without_further_packages(lean: LeanEnvironment) -> None:
    code = """
import numpy as np, secondread
r = np.random.default_rng(0); logits = r.normal(size=(200, 3)); q = np.exp(logits) / np.exp(logits).sum(1)[:, None]
counts = np.stack([r.multinomial(2, p) for p in q])
fit = secondread.calibrate(3 * logits, r.normal(size=(200, 2)), counts, [str(i) for i in range(200)])
assert 2 < np.exp(fit.calibration.scaling.log_temperature) < 5, fit.calibration
"""
    done = lean.python("-c", code)
    assert done.returncode == 0, done.stderr


def test_evaluate_and_agreement_work_and_the_examples_run(lean: LeanEnvironment, tmp_path: Path) -> None:
    labels, predictions = tmp_path / "labels.csv", tmp_path / "predictions.csv"
    labels.write_text("case_id,annotator,label\na,r,x\na,s,y\nb,r,x\nb,s,x\n")
    predictions.write_text("case_id,prob:y,prob:x\na,0.5,0.5\nb,0.1,0.9\n")
    evaluated = lean.secondread("evaluate", "--labels", labels, "--predictions", predictions, "--json")
    assert json.loads(evaluated.stdout)["metrics"]["L"]["value"] == pytest.approx(0.26), evaluated.stderr
    agreed = lean.secondread("agreement", "--labels", labels, "--json")
    assert json.loads(agreed.stdout)["n_annotators"] == 2, agreed.stderr
    shown = lean.secondread("evaluate", "--labels", labels, "--predictions", predictions)
    assert "L_D" in shown.stdout, shown.stderr
    examples = lean.python("-c", "import doctest, secondread; print(doctest.testmod(secondread))")
    assert "failed=0" in examples.stdout, examples.stdout + examples.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve", "[serve,cpu]"),
        ("demo", "[serve,cpu]"),
        ("worker", "[serve"),
        ("user list", "[serve]"),
        ("db upgrade", "[serve]"),
        ("release list", "[serve]"),
        ("recalibrate", "[serve"),
        ("train --data cells --out run", "[train]"),
        ("export run --out release", "[train]"),
        ("predict release image.png", "[cpu]"),
        ("score release --images . --out p.csv", "[cpu]"),
        ("adapt release --images . --labels labels.csv --out other", "[cpu]"),
        ("quantize release --data cells --out other", "[train,cpu]"),
        ("reproduce debias --quick", "[charts]"),
        ("evaluate --labels labels.csv --predictions predictions.csv --plots plots", "[charts]"),
        ("evaluate --labels labels.csv --predictions predictions.csv --report r.html", "[report]"),
        ("sort labels.csv --out sorted.parquet", "[duckdb]"),
        ("audit --labels labels.csv --predictions predictions.csv -o r.html", "[report]"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(lean: LeanEnvironment, command: str, extra: str) -> None:
    (lean.folder / "labels.csv").write_text("case_id,annotator,label\na,r,x\na,s,y\n")
    (lean.folder / "predictions.csv").write_text("case_id,prob:x,prob:y\na,0.5,0.5\n")
    done = lean.secondread(*command.split())
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert f"`{command.split()[0]}` needs the package" in line
    assert f"pip install 'secondread{extra}" in line


def test_help_and_version_work_without_extras(lean: LeanEnvironment) -> None:
    assert lean.secondread("--version").stdout == f"secondread {__version__}\n"
    for command in ((), ("serve",), ("train",), ("user", "add")):
        assert lean.secondread(*command, "--help").returncode == 0
