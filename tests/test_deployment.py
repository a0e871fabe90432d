"""docker-compose.yml is valid, and the commands it runs work outside a container on PostgreSQL."""

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from packaging.utils import canonicalize_name

from tests.conftest import missing
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.two_roles import installation_of_two_roles
from tests.support.waiting import patient, wait_until

ROOT = Path(__file__).parents[1]
NAME = {"SECONDREAD_NAME": "reads.example.org"}
SERVICES = {"database", "owner", "service", "worker", "proxy", "prometheus", "grafana"}


def compose(file: str = "docker-compose.yml") -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())
    return document


def test_docker_compose_accepts_the_file_and_refuses_it_without_secrets() -> None:
    binary = shutil.which("docker-compose")
    if binary is None:
        missing("docker-compose (Debian package docker-compose)")
    environment = {k: v for k, v in os.environ.items() if k not in NAME}
    command = [str(binary), "-f", str(ROOT / "docker-compose.yml"), "config"]
    good = subprocess.run(command, capture_output=True, text=True, env=environment | NAME, check=False)
    assert good.returncode == 0, good.stderr
    assert set(yaml.safe_load(good.stdout)["services"]) == SERVICES
    bad = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (bad.returncode, "set it in .env" in bad.stderr) == (1, True)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_can_write_and_do_no_more_than_it_must(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    if name == "proxy":
        assert service["cap_add"] == ["NET_BIND_SERVICE"]
    else:
        assert "cap_add" not in service
        assert int(service["user"].split(":")[0]) > 0
    assert "privileged" not in service
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


def test_secrets_are_files_that_only_those_get_who_need_them(tmp_path: Path) -> None:
    document, folder = compose(), tmp_path / "secrets"
    for _ in range(2):
        subprocess.run(["sh", str(ROOT / "docker" / "make-secrets.sh"), str(folder)], check=True)
        contents = {path.name: path.read_text() for path in folder.iterdir()}
    of_two_servers = compose("docker-compose.two-servers.yml")["secrets"]
    mounted = {row["file"] for row in (document["secrets"] | of_two_servers).values()}
    assert {f"./docker/secrets/{name}" for name in contents} == mounted
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(set(contents.values())) == len(contents)
    again = tmp_path / "again"
    subprocess.run(["sh", str(ROOT / "docker" / "make-secrets.sh"), str(again)], check=True)
    assert all((again / name).read_text() != content for name, content in contents.items())
    holders = {
        name: [row for row in SERVICES if name in document["services"][row].get("secrets", [])]
        for name in contents
        if name not in of_two_servers
    }
    assert holders["secondread_database_owner_url"] == ["owner"]
    assert holders["postgres_password"] == holders["owner_password"] == ["database"]
    assert sorted(holders["key_ring"]) == ["owner", "service", "worker"]
    assert all(holders.values())
    for service in document["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|TOKEN|SECRET|KEY", name) or str(value).startswith("/run/secrets"), name


def test_every_file_that_is_mounted_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        for runtime in ("cpu", "gpu"):
            assert (ROOT / name.replace("${RUNTIME}", runtime)).exists(), name


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    from app.http import observability

    exposed = observability.render_prometheus_text().decode()
    dashboard = json.loads((ROOT / "docker" / "grafana" / "dashboards" / "secondread.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"secondread_\w+", target["expr"]):
                family = re.sub(r"_(total|bucket)$", "", name)
                assert f"# TYPE {family}" in exposed, name


@pytest.mark.slow
def test_the_commands_of_the_file_run_outside_a_container(
    two_roles: Installation, tmp_path: Path, tiny_release: Path
) -> None:
    services, folder, made = compose()["services"], tmp_path / "secrets", two_roles
    assert made.run(*services["owner"]["command"][1:]).returncode == 0
    (folder / "secondread_database_owner_url").unlink()
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


@pytest.fixture
def two_roles(postgres: PostgresServer, tmp_path: Path) -> Iterator[Installation]:
    with installation_of_two_roles(postgres, tmp_path) as made:
        yield made


@pytest.mark.slow
def test_the_scripts_make_two_roles_of_which_the_service_owns_nothing(two_roles: Installation, tmp_path: Path) -> None:
    made = two_roles
    done = made.run("db", "upgrade")
    assert "owns the tables" not in done.stdout + done.stderr
    (tmp_path / "secrets" / "secondread_database_owner_url").unlink()
    made.run("user", "add", "lead", "--role", "admin")
    url = (tmp_path / "secrets" / "secondread_database_url").read_text()
    with psycopg.connect(url, autocommit=True) as connection:
        owners = connection.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname IN ('public', 'dbos')")
        assert owners.fetchall() == [("secondread_owner",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE mine (id int)")


def test_a_folder_of_secrets_that_is_missing_is_one_line(tmp_path: Path) -> None:
    made = Installation(tmp_path / "home")
    made.environment["SECONDREAD_SECRETS"] = str(tmp_path / "nowhere")
    done = made.run("user", "list", check=False)
    assert (done.returncode, done.stderr.count("\n"), "there is no folder" in done.stderr) == (1, 1, True)


LOCKED = re.compile(
    r"^([a-z0-9][a-z0-9.-]*)==([^ ;]+)( ;[^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


@pytest.mark.parametrize("runtime", ["cpu", "gpu"])
def test_what_an_image_installs_is_pinned_by_digest_to_the_versions_that_were_tested(runtime: str) -> None:
    """`make lock` writes the files; whoever raises a version in constraints.txt runs it again."""
    text = (ROOT / "docker" / f"requirements-{runtime}.lock").read_text()
    locked = {found[1]: found[2] for found in LOCKED.finditer(text)}
    assert len(locked) == len(re.findall("^[a-z0-9]", text, re.MULTILINE)) > 60
    constraints = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    pinned = {canonicalize_name(name): version.split(";")[0].strip() for name, version in constraints.items()}
    assert {name: pinned.get(name) for name in locked} == locked
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *extras["dependencies"],
        *(
            row
            for name in (runtime, "serve", "charts", "oidc", "s3", "otel")
            for row in extras["optional-dependencies"][name]
        ),
    ]
    names = {canonicalize_name(re.split(r"[\[<>=;~! ]", row)[0]) for row in declared}
    assert names - set(locked) == set()
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "--require-hashes" in dockerfile
    assert [line for line in dockerfile.splitlines() if "pip install" in line and "--no-deps" not in line] == []


def _start(command: list[str], made: Installation) -> "subprocess.Popen[bytes]":
    with (made.home.parent / "services.log").open("ab") as log:
        return subprocess.Popen(command, env=made.environment, cwd=made.home.parent, stderr=log)


def _wait(made: Installation, path: str) -> str:
    def answer() -> str:
        try:
            folder = Path(made.environment["SECONDREAD_SECRETS"])
            token = {"Authorization": f"Bearer {(folder / 'secondread_metrics_token').read_text()}"}
            request = urllib.request.Request(made.address + path, headers=token)
            with urllib.request.urlopen(request, timeout=patient(5)) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    return wait_until(answer, what=lambda: f"{path} does not answer\n{made.log}")


def test_the_example_holds_no_secret() -> None:
    text = (ROOT / "docker" / ".env.example").read_text()
    assert [line for line in text.splitlines() if not line.startswith("#")] == ["SECONDREAD_NAME=reads.example.org"]
    ignored = {*(ROOT / ".gitignore").read_text().split(), *(ROOT / ".dockerignore").read_text().split()}
    assert {"/docker/secrets/", "docker/secrets"} <= ignored
