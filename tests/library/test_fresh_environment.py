"""The wheel in new environments outside the checkout, installed by pip from the package registry."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.installed import CORE, ROOT, build_distributions, with_dependencies

pytestmark = pytest.mark.heavy


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


def test_the_core_is_what_the_quick_test_takes_it_for(wheel: Path, tmp_path: Path) -> None:
    fresh = FreshEnvironment(tmp_path, wheel, "")
    listed = fresh.run("python", "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check")
    names = {line.partition("==")[0].lower().replace("_", "-") for line in listed.split()}
    expected = {name.lower().replace("_", "-") for name in with_dependencies(CORE)}
    assert names - {"pip", "setuptools", "secondread"} == expected
    assert fresh.run("secondread", "--version").startswith("secondread ")


def test_demo_and_examples_run_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    fresh = FreshEnvironment(tmp_path, wheel, "serve,train,charts,cpu")
    assert "sign in at" in fresh.run("secondread", "demo")
    assert "consistent, not proven complete" in fresh.run("secondread", "db", "verify")
    fresh.run("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), "pytest")
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    modules = [str(fresh.folder / "environment" / packages / name) for name in ("secondread", "ml")]
    assert " passed" in fresh.run("python", "-m", "pytest", "-q", "--doctest-modules", *modules)
