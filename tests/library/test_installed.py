"""A wheel that has everything: with the core dependencies only, and installed by pip in new environments."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from secondread import __version__
from tests.support.installed import CORE, ROOT, LeanEnvironment, build_distributions, tracked_files, with_dependencies

PACKAGES = ("secondread/", "app/", "ml/", "migrations/")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_distributions(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def lean(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> LeanEnvironment:
    return LeanEnvironment(tmp_path_factory.mktemp("lean") / "environment", next(distributions.glob("*.whl")))


@pytest.mark.slow
def test_wheel_and_sdist_have_every_file_and_pass_the_check(distributions: Path) -> None:
    (wheel,), (sdist,) = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    assert (wheel.name, sdist.name) == (
        f"secondread_cells-{__version__}-py3-none-any.whl",
        f"secondread_cells-{__version__}.tar.gz",
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


@pytest.mark.slow
def test_the_library_loads_numpy_scipy_and_pyarrow_only(lean: LeanEnvironment) -> None:
    done = lean.python("-c", TOPS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(["ml", "numpy", "pyarrow", "scipy", "secondread"])


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve", "[serve,cpu]"),
        ("user list", "[serve]"),
        ("train --data cells --out run", "[train]"),
        ("predict release image.png", "[cpu]"),
        ("quantize release --data cells --out other", "[train,cpu]"),
        ("reproduce debias --quick", "[charts]"),
        ("evaluate --labels labels.csv --predictions predictions.csv --plots plots", "[charts]"),
        ("evaluate --labels labels.csv --predictions predictions.csv --report r.html", "[report]"),
        ("sort labels.csv --out sorted.parquet", "[duckdb]"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(lean: LeanEnvironment, command: str, extra: str) -> None:
    (lean.folder / "labels.csv").write_text("case_id,annotator,label\na,r,x\na,s,y\n")
    (lean.folder / "predictions.csv").write_text("case_id,prob:x,prob:y\na,0.5,0.5\n")
    done = lean.secondread(*command.split())
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert f"`{command.split()[0]}` needs the package" in line
    assert f"pip install 'secondread-cells{extra}" in line


@pytest.mark.slow
def test_help_and_version_work_without_extras(lean: LeanEnvironment) -> None:
    assert lean.secondread("--version").stdout == f"secondread {__version__}\n"
    for command in ((), ("serve",), ("train",), ("user", "add")):
        assert lean.secondread(*command, "--help").returncode == 0


class FreshEnvironment:
    """A virtual environment with the wheel and what an extra brings, and a home of its own."""

    def __init__(self, folder: Path, wheel: Path, extras: str) -> None:
        self.folder = folder
        venv.create(folder / "environment", with_pip=True)
        requirement = f"{wheel}[{extras}]" if extras else str(wheel)
        self.run("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), requirement)

    def run(self, program: str, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SECOND"))}
        environment["SECONDREAD_HOME"] = str(self.folder / "home")
        done = subprocess.run(
            [str(self.folder / "environment" / "bin" / program), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(build_distributions(tmp_path_factory.mktemp("build")).glob("*.whl"))


@pytest.mark.heavy
def test_the_core_is_what_the_quick_test_takes_it_for(wheel: Path, tmp_path: Path) -> None:
    fresh = FreshEnvironment(tmp_path, wheel, "")
    listed = fresh.run("python", "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check")
    names = {line.partition("==")[0].lower().replace("_", "-") for line in listed.split()}
    expected = {name.lower().replace("_", "-") for name in with_dependencies(CORE)}
    assert names - {"pip", "setuptools", "secondread-cells"} == expected
    assert fresh.run("secondread", "--version").startswith("secondread ")


@pytest.mark.heavy
def test_demo_and_examples_run_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    fresh = FreshEnvironment(tmp_path, wheel, "serve,train,charts,cpu")
    assert "Sign in at" in fresh.run("secondread", "demo")
    assert "consistent, not proven complete" in fresh.run("secondread", "db", "verify")
    fresh.run("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), "pytest")
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    modules = [str(fresh.folder / "environment" / packages / name) for name in ("secondread", "ml")]
    assert " passed" in fresh.run("python", "-m", "pytest", "-q", "--doctest-modules", *modules)
