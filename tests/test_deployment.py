"""docker-compose.yml is valid, and the commands it runs work outside a container on PostgreSQL."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import missing
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.waiting import patient, wait_until

ROOT = Path(__file__).parents[1]
SECRETS = {
    "POSTGRES_PASSWORD": "x" * 20,
    "SECONDREAD_SECRET_KEY": "0123456789abcdef" * 4,
    "SECONDREAD_METRICS_TOKEN": "fedcba9876543210" * 4,
    "SECONDREAD_NAME": "reads.example.org",
    "GRAFANA_PASSWORD": "y" * 20,
}


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def test_docker_compose_accepts_the_file_and_refuses_it_without_secrets() -> None:
    binary = shutil.which("docker-compose")
    if binary is None:
        missing("docker-compose (Debian package docker-compose)")
    environment = {k: v for k, v in os.environ.items() if k not in SECRETS}
    command = [str(binary), "-f", str(ROOT / "docker-compose.yml"), "config"]
    good = subprocess.run(command, capture_output=True, text=True, env=environment | SECRETS, check=False)
    assert good.returncode == 0, good.stderr
    shown = yaml.safe_load(good.stdout)
    assert set(shown["services"]) == {"database", "service", "worker", "proxy", "prometheus", "grafana"}
    bad = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (bad.returncode, "set it in .env" in bad.stderr) == (1, True)


def test_every_file_that_is_mounted_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    from app.platform import observability

    exposed = observability.exposition().decode()
    dashboard = json.loads((ROOT / "docker" / "grafana" / "dashboards" / "secondread.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"secondread_\w+", target["expr"]):
                family = re.sub(r"_(total|bucket)$", "", name)
                assert f"# TYPE {family}" in exposed, name


@pytest.mark.slow
def test_the_commands_of_the_file_run_outside_a_container(
    postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    services = compose()["services"]
    url = postgres.url(postgres.create())
    made = Installation(tmp_path / "home", url)
    made.environment |= {"SECONDREAD_SECRET_KEY": SECRETS["SECONDREAD_SECRET_KEY"]}
    made.environment["SECONDREAD_ALLOWED_HOSTS"] = '["127.0.0.1"]'
    made.environment["PATH"] = f"{Path(sys.executable).parent}:{made.environment['PATH']}"
    made.home.mkdir()
    running = [_start(services["service"]["command"], made)]
    try:
        _wait(made, "/healthz")
        made.run("release", "add", tiny_release)
        running.append(_start(services["worker"]["command"], made))
        _wait(made, "/readyz")
        assert "secondread_requests" in _wait(made, "/metrics")
        wait_until(lambda: "worker started" in made.log, what=lambda: made.log)
        assert running[1].poll() is None
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(patient(25)) for process in running][-1] == 0


def _start(command: list[str], made: Installation) -> "subprocess.Popen[bytes]":
    with (made.home.parent / "services.log").open("ab") as log:
        return subprocess.Popen(command, env=made.environment, cwd=made.home.parent, stderr=log)


def _wait(made: Installation, path: str) -> str:
    def answer() -> str:
        try:
            token = {"Authorization": f"Bearer {made.environment['SECONDREAD_METRICS_TOKEN']}"}
            request = urllib.request.Request(made.address + path, headers=token)
            with urllib.request.urlopen(request, timeout=patient(5)) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    return wait_until(answer, what=lambda: f"{path} does not answer\n{made.log}")


@pytest.mark.parametrize(
    "name", ["POSTGRES_PASSWORD", "SECONDREAD_SECRET_KEY", "SECONDREAD_METRICS_TOKEN", "GRAFANA_PASSWORD"]
)
def test_the_example_holds_no_secret(name: str) -> None:
    assert f"{name}=\n" in (ROOT / "docker" / ".env.example").read_text()
