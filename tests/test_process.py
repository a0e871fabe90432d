"""The command line and the server as a lab would run them: real processes, killed and started again."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(request: pytest.FixtureRequest, tmp_path: Path, tiny_release: Path) -> Iterator[Installation]:
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create()).replace("postgresql+psycopg", "postgresql")
    made = Installation(tmp_path / "home", url)
    made.run("db", "upgrade")
    made.run("release", "add", tiny_release)
    yield made
    if made.server is not None:
        made.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Tables and nothing in them: for commands that fail and so leave it as it is."""
    made = Installation(tmp_path_factory.mktemp("upgraded") / "home")
    made.run("db", "upgrade")
    return made


def curl(installation: Installation, key: str, path: str, *arguments: str) -> dict[str, object]:
    command = ["curl", "-sS", "-H", f"Authorization: Bearer {key}", *arguments, installation.address + path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, object] = json.loads(done.stdout)
    return document


@pytest.mark.slow_on_second_database
def test_from_an_empty_folder_to_metrics_and_back_after_a_kill(installation: Installation, tmp_path: Path) -> None:
    installation.run("user", "add", "lab", "--role", "admin")
    installation.run("user", "add", "robot", "--role", "service")
    key, robot = installation.key("lab"), installation.key("robot", "labels:write")
    installation.start()
    picture = tmp_path / "cell.png"
    picture.write_bytes(cell_png())
    upload = ("-H", "Idempotency-Key: one", "-F", f"image=@{picture}", "-F", "external_id=cell-1")
    case = curl(installation, key, "/v1/cases", *upload)
    for reader in ("a", "b"):
        body = json.dumps({"label": "monocyte", "annotator": reader, "blind": True})
        headers = ("-H", f"Idempotency-Key: {reader}", "-H", "Content-Type: application/json")
        curl(installation, robot, f"/v1/cases/{case['id']}/labels", *headers, "-d", body)
    before = installation.get(f"/v1/cases/{case['id']}/posterior", key)
    assert before["label_counts"]["monocyte"] == 2
    installation.stop(signal.SIGKILL)
    installation.start()
    assert installation.get(f"/v1/cases/{case['id']}/posterior", key) == before
    assert installation.stop() in {0, -signal.SIGTERM}  # requests are finished, then the signal takes its course
    assert json.loads(installation.run("db", "verify", "--json").stdout)["faults"] == []
    exported = json.loads(
        installation.run("dataset", "export", "--out", tmp_path / "out", "--partition", "all", "--json").stdout
    )
    assert exported == {"n_cases": 1, "n_labels": 2, "n_kept_for_sets": 0}
    tables = ("--labels", tmp_path / "out/labels.csv", "--predictions", tmp_path / "out/predictions.csv")
    assert json.loads(installation.run("evaluate", *tables, "--json").stdout)["n_labels"] == 2


@pytest.mark.slow
def test_releases_are_promoted_and_rolled_back_by_alias(tiny_release: Path, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "home")
    installation.run("db", "upgrade")
    installation.run("release", "add", tiny_release)
    write_tiny_release(tmp_path / "second", name="second")
    first = json.loads(installation.run("release", "list", "--json").stdout)[0]
    second = json.loads(installation.run("release", "add", tmp_path / "second", "--json").stdout)
    installation.run("release", "promote", second["id"], "--reason", "better", "--despite-gate")
    champion = {r["id"] for r in json.loads(installation.run("release", "list", "--json").stdout) if r["aliases"]}
    assert champion == {second["id"]}
    installation.run("release", "promote", first["id"], "--reason", "worse after all", "--despite-gate")
    champion = {r["id"] for r in json.loads(installation.run("release", "list", "--json").stdout) if r["aliases"]}
    assert champion == {first["id"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("release", "add", "nowhere"), "no card.json"),
        (("key", "add", "nobody"), "no account"),
        (("user", "add", "x", "--role", "king"), "unknown role"),
        (("release", "promote", "01890000-0000-7000-8000-000000000000", "--reason", "x"), "no such release"),
        (("predict", "nowhere", "x.png"), "no card.json"),
        (("train", "--data", "nonsense", "--out", "run"), "neither a folder nor"),
        (("calibrate", "nowhere"), "not"),
        (("export", "nowhere", "--out", "x"), "not a training run"),
    ],
)
def test_failures_are_one_line_and_status_1(arguments: tuple[str, ...], words: str, upgraded: Installation) -> None:
    done = upgraded.run(*arguments, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert words in last
    assert "Traceback" not in done.stderr


def test_predict_and_score_from_the_command_line(small_release: Path, tmp_path: Path) -> None:
    made = Installation(tmp_path / "home")
    images = tmp_path / "images"
    images.mkdir()
    for number in range(3):
        (images / f"cell{number}.png").write_bytes(cell_png(number))
    rows = json.loads(made.run("predict", small_release, *sorted(images.iterdir()), "--json").stdout)
    assert len(rows) == 3
    assert sum(rows[0]["class_probs"].values()) == pytest.approx(1)
    scored = made.run("score", small_release, "--images", images, "--out", tmp_path / "p.parquet", "--json")
    assert json.loads(scored.stdout)["n_cases"] == 3
    (images / "bad.png").write_text("no picture")
    scored = made.run("score", small_release, "--images", images, "--out", tmp_path / "p.parquet", "--json")
    assert json.loads(scored.stdout)["n_cases"] == 3
    assert json.loads(scored.stdout)["n_errors"] == 1
    failed = made.run("predict", small_release, images / "bad.png", check=False)
    assert (failed.returncode, "bad.png" in failed.stderr) == (1, True)
