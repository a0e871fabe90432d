"""The API as its OpenAPI says it is: schemathesis, all phases, every role, against a live server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.process import Installation

ROOT = Path(__file__).parents[1]
ROLES = {"admin": "admin", "viewer": "viewer", "anna": "annotator", "robot": "service"}
ALL = "examples,coverage,fuzzing,stateful"
QUICK, LONG = 4, 60


def fuzz(made: Installation, token: str | None, phases: str, examples: int) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", "tests/support/schemathesis.toml"]
    command += ["run", f"{made.address}/openapi.json", "--max-examples", str(examples), "--seed", "1", "--workers", "1"]
    command += ["--phases", phases, "--no-color"]
    if token is not None:
        command += ["--header", f"Authorization: Bearer {token}"]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


def slow(*values: object) -> object:
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.ci])


def heavy(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.heavy)


@pytest.mark.parametrize(
    ("database", "who", "phases", "examples"),
    [
        slow("sqlite", "admin", ALL, QUICK),
        # of the cases made from the schema alone an annotator is refused nearly all
        slow("postgresql", "anna", "fuzzing,stateful", QUICK),
        *[heavy(database, who, ALL, LONG) for database in ("sqlite", "postgresql") for who in (*ROLES, None)],
    ],
)
def test_the_api_is_what_its_openapi_says(
    database: str,
    who: str | None,
    phases: str,
    examples: int,
    tmp_path: Path,
    tiny_release: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = None
    if database == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    made = Installation(tmp_path / "home", url)
    keys = made.prepare(tiny_release, **ROLES)
    made.environment |= {"SECONDREAD_WORKER": "false"}
    with made:
        made.start()
        found = fuzz(made, None if who is None else keys[who], phases, examples)
        made.stop()
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    log = (tmp_path / "server.log").read_text()
    assert '"status": 500' not in log
