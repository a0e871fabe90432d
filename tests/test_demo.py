"""`secondread demo` as `make run` calls it, and the README's examples as a newcomer pastes them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.process import Installation

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("demo") / ".secondread")
    made.run("demo")
    return made


def test_the_demo_is_whole_and_filling_it_again_changes_nothing(demo: Installation) -> None:
    before = json.loads(demo.run("release", "list", "--json").stdout)
    accounts = json.loads(demo.run("user", "list", "--json").stdout)
    again = demo.run("demo")
    assert len(re.findall(r"^  \S+ +[0-9a-f]{4}(-[0-9a-f]{4}){4}$", again.stderr, re.MULTILINE)) == 4
    assert json.loads(demo.run("release", "list", "--json").stdout) == before
    assert json.loads(demo.run("user", "list", "--json").stdout) == accounts
    assert before[0]["disagreement_calibrated"] is True
    assert json.loads(demo.run("db", "verify", "--json").stdout)["faults"] == []


def test_the_demo_network_learned_something(demo: Installation) -> None:
    report = json.loads((demo.home / "demo" / "run" / "calibration_report.json").read_text())
    steps = report["held_out"]
    assert steps["with concentration head"]["accuracy"]["value"] > 0.6
    assert steps["with concentration head"]["L_D"]["value"] < steps["raw"]["L_D"]["value"]


def test_the_examples_of_the_readme_work_when_pasted(demo: Installation) -> None:
    readme = (ROOT / "README.md").read_text()
    example = next(line for line in readme.splitlines() if line.startswith("curl "))
    assert "docs/images/cell.png" in example
    demo.start()
    try:
        pasted = example.replace("docs/images", str(ROOT / "docs" / "images")).replace(
            "http://127.0.0.1:8000", demo.address
        )
        done = subprocess.run(["bash", "-c", pasted], capture_output=True, text=True, check=True, cwd=demo.home.parent)
        answer = json.loads(done.stdout)
        assert sum(answer["class_probs"].values()) == pytest.approx(1)
        assert answer["disagreement_calibrated"] is True
        key = (demo.home / "demo" / "api_key").read_text().strip()
        assert demo.get("/v1/metrics?partition=all&weighting=none", key)["n_labels"] == 120
    finally:
        demo.stop()
