"""What docker-compose starts can do no more than it must, and its processes are one service, as those of pods are."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import yaml
from packaging.utils import canonicalize_name

from app.http import observability
from tests.conftest import missing
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until
from tests.test_kubernetes import containers, environment

ROOT = Path(__file__).parents[1]
NAME = {"SECONDREAD_NAME": "reads.example.org"}
SERVICES = {"database", "owner", "service", "worker", "proxy", "prometheus", "grafana"}


def compose(file: str = "docker-compose.yml") -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())
    return document


def understood(*files: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Files as docker-compose understands them."""
    binary = shutil.which("docker-compose")
    if binary is None:
        missing("docker-compose (Debian package docker-compose)")
    command = [str(binary), *(part for name in files for part in ("-f", str(ROOT / name))), "config"]
    known = {name: value for name, value in os.environ.items() if name not in NAME}
    return subprocess.run(command, capture_output=True, text=True, env=known | variables, check=False)


def test_docker_compose_accepts_the_file_and_refuses_it_without_secrets() -> None:
    good, bad = (understood("docker-compose.yml", **variables) for variables in (NAME, {}))
    assert good.returncode == 0, good.stderr
    assert set(yaml.safe_load(good.stdout)["services"]) == SERVICES
    assert (bad.returncode, "set it in .env" in bad.stderr) == (1, True)


def test_secrets_are_files_that_only_those_get_who_need_them(tmp_path: Path) -> None:
    document, folder = compose(), tmp_path / "secrets"
    for _ in range(2):
        subprocess.run(["sh", str(ROOT / "docker" / "make-secrets.sh"), str(folder)], check=True)
        contents = {path.name: path.read_text() for path in folder.iterdir()}
    for name in ("secondread_database_url", "secondread_database_owner_url"):
        assert "?sslmode=verify-full&sslrootcert=/run/secrets/database_certificate" in contents[name]
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
    exposed = observability.render_prometheus_text().decode()
    dashboard = json.loads((ROOT / "docker" / "grafana" / "dashboards" / "secondread.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"secondread_\w+", target["expr"]):
                family = re.sub(r"_(total|bucket)$", "", name)
                assert f"# TYPE {family}" in exposed, name


@pytest.mark.slow
def test_the_scripts_make_two_roles_of_which_the_service_owns_nothing(two_roles: Installation, tmp_path: Path) -> None:
    made = two_roles
    done = made.run("db", "upgrade")
    assert "owns the tables" not in done.stdout + done.stderr
    (tmp_path / "secrets" / "secondread_database_owner_url").unlink()
    made.run("user", "add", "lead", "--role", "admin")
    url = (tmp_path / "secrets" / "secondread_database_url").read_text()
    with pytest.raises(psycopg.OperationalError, match=r"certificate for \"database\""):
        psycopg.connect(url.replace("@database:", "@elsewhere:"))
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.pgconn.ssl_in_use
        owners = connection.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname IN ('public', 'dbos')")
        assert owners.fetchall() == [("secondread_owner",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE mine (id int)")


@pytest.mark.slow
@pytest.mark.ci
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
    constraints = re.findall(r"^([^#\n=]+)==([^;\n]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {canonicalize_name(name): version.strip() for name, version in constraints}
    assert {name: pinned.get(name) for name in locked} == locked
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = list(extras["dependencies"])
    for name in (runtime, "serve", "charts", "oidc", "s3", "otel"):
        declared += extras["optional-dependencies"][name]
    names = {canonicalize_name(re.split(r"[\[<>=;~! ]", row)[0]) for row in declared}
    assert names - set(locked) == set()
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "--require-hashes" in dockerfile
    assert [line for line in dockerfile.splitlines() if "pip install" in line and "--no-deps" not in line] == []


def test_the_example_holds_no_secret() -> None:
    text = (ROOT / "docker" / ".env.example").read_text()
    assert [line for line in text.splitlines() if not line.startswith("#")] == ["SECONDREAD_NAME=reads.example.org"]
    ignored = {*(ROOT / ".gitignore").read_text().split(), *(ROOT / ".dockerignore").read_text().split()}
    assert {"/docker/secrets/", "docker/secrets"} <= ignored


OURS = ("owner", "service", "service2", "worker", "worker2")
#: Of root, but without a right of root's: one listens on ports below 1024, the other one's volume is root's.
ROOTS = {"proxy": ["NET_BIND_SERVICE"], "bucket": None}


@cache
def composed() -> dict[str, Any]:
    """Both files."""
    done = understood("docker-compose.yml", "docker-compose.two-servers.yml", **NAME)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = yaml.safe_load(done.stdout)
    return document


def test_the_two_files_make_two_servers_two_workers_and_a_bucket() -> None:
    services = composed()["services"]
    assert set(services) == {*OURS, "database", "bucket", "bucket-made", "proxy", "prometheus", "grafana"}
    for twin in ("service", "worker"):
        first, second = services[twin], services[f"{twin}2"]
        for part in ("command", "entrypoint", "environment", "secrets", "user", "stop_grace_period", "build"):
            assert first[part] == second[part], (twin, part)
    for name in OURS:
        assert [volume.split(":")[1] for volume in services[name]["volumes"]] == ["/data", "/heads"], name
    volumes = {volume for name in OURS for volume in services[name]["volumes"]}
    assert len(volumes) == len(OURS) + 1  # nobody needs the HOME of another one
    assert "database" not in {volume.split(":")[0] for volume in volumes}


def test_a_container_can_write_and_do_no_more_than_it_must() -> None:
    for name, service in composed()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("cap_add") == ROOTS.get(name), name
        assert (name in ROOTS) == ("user" not in service), name
        assert int(service.get("user", "1").split(":")[0]) > 0, name
        assert service["pids_limit"] > 0, name
        assert "privileged" not in service, name
        assert "docker.sock" not in str(service.get("volumes", [])), name
        tag = service.get("image", "built:here").rpartition(":")
        assert tag[0], name
        assert tag[2] != "latest", name


def test_the_secret_of_the_bucket_is_a_file_of_those_who_need_it(tmp_path: Path) -> None:
    services = composed()["services"]
    holders = {name for name, row in services.items() if "bucket_secret_key" in str(row.get("secrets", []))}
    assert holders == {*OURS, "bucket", "bucket-made"}
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|TOKEN|SECRET|KEY$", variable) or str(value).startswith("/run/secrets"), name
    entrypoint = [part.replace("$$", "$") for part in services["service2"]["entrypoint"]]
    (tmp_path / "bucket_secret_key").write_text("a secret with $HOME and `id` in it")
    script = entrypoint[2].replace("/run/secrets", str(tmp_path))
    command = [*entrypoint[:2], script, "printenv", "AWS_SECRET_ACCESS_KEY"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "a secret with $HOME and `id` in it\n"


def test_the_proxy_and_prometheus_know_both_servers_by_names_that_they_answer_to() -> None:
    services = composed()["services"]
    hosts = json.loads(services["service2"]["environment"]["SECONDREAD_ALLOWED_HOSTS"])
    folder = ROOT / "docker" / "two-servers"
    asked = re.search(r"reverse_proxy (.+) \{", (folder / "Caddyfile").read_text())[1].split()
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert asked == job["static_configs"][0]["targets"] == ["service:8000", "service2:8000"]
    assert {row.split(":")[0] for row in asked} <= set(hosts) & set(services)
    for name, file in (("proxy", "Caddyfile"), ("prometheus", "prometheus.yml")):
        (mounted,) = (volume for volume in services[name]["volumes"] if volume.split(":")[0].endswith(file))
        assert mounted.split(":")[0] == str(folder / file)


@dataclass(frozen=True)
class Part:
    """A process of a shape: its command and what its environment says."""

    command: list[str]
    environment: dict[str, str | None]


def of_compose() -> dict[str, Part]:
    services = composed()["services"]
    return {name: Part(services[name]["command"], services[name]["environment"]) for name in OURS}


def of_kubernetes() -> dict[str, Part]:
    parts = {
        container["name"]: Part(container["command"], environment("postgres-s3", container))
        for _, container in containers("postgres-s3")
    }
    twins = {"owner": "migrate", "service": "service", "service2": "service", "worker": "worker", "worker2": "worker"}
    return {name: parts[of] for name, of in twins.items()}


def on_this_machine(name: str, part: Part, two_roles: Installation, bucket: str, folder: Path) -> Installation:
    """A process of the shape: the same variables, but for where things are on this machine."""
    secrets = folder / f"secrets-{name}"
    shutil.copytree(folder / "secrets", secrets)
    if name != "owner":
        (secrets / "secondread_database_owner_url").unlink()
    made = Installation(folder / name / "home")
    made.home.parent.mkdir()
    places = {"/run/secrets/secondread": str(secrets), "/run/secrets": str(secrets), "/data/home": str(made.home)}
    places["/heads"] = str(folder)
    for variable, value in part.environment.items():
        if value is not None and variable not in os.environ:  # those of the bucket are set by the fixture
            for there, here in places.items():
                value = value.replace(there, here)
            made.environment[variable] = value
    del made.environment["SECONDREAD_METRICS_TOKEN"]  # it is a secret here
    return made


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("shape", [of_compose, of_kubernetes])
def test_processes_with_these_settings_are_one_service(
    shape: Any, two_roles: Installation, bucket: str, tmp_path: Path, tiny_release: Path
) -> None:
    parts = shape()
    made = {name: on_this_machine(name, part, two_roles, bucket, tmp_path) for name, part in parts.items()}
    for name, row in made.items():
        row.environment |= {"SECONDREAD_STORAGE_URL": bucket, "SECONDREAD_HOME": str(row.home)}
        row.environment.pop("SECONDREAD_PUBLIC_URL", None)
        assert parts[name].command[0] == "secondread"
    try:
        made["owner"].run(*parts["owner"].command[1:])
        made["owner"].run("release", "add", tiny_release)
        made["owner"].run("user", "add", "lead", "--role", "admin")
        token = made["owner"].key("lead")
        for name in ("service", "service2"):
            made[name].start()
        for name in ("worker", "worker2"):
            made[name].spawn(*parts[name].command[1:])
        _two_servers_agree(made["service"], made["service2"], token, tmp_path)
    finally:
        for row in made.values():
            row.close()


def _two_servers_agree(one: Installation, other: Installation, token: str, folder: Path) -> None:
    def ask(made: Installation, method: str, path: str, key: str = token, **more: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": path}
        return httpx2.request(method, made.address + path, headers=headers, timeout=patient(30), **more)

    image = {"image": ("cell.png", cell_png(), "image/png")}
    stored = ask(one, "POST", "/v1/cases", data={"external_id": "case-1"}, files=image)
    assert stored.status_code == 201, stored.text
    path = f"/v1/cases/{stored.json()['id']}/image"
    assert ask(other, "GET", path).content == ask(one, "GET", path).content
    secret = (folder / "secrets" / "secondread_metrics_token").read_text()
    wait_until(lambda: "secondread_workers 2.0" in ask(one, "GET", "/metrics", secret).text, 60, lambda: one.log)
    one.stop(9)
    assert ask(other, "GET", path).status_code == 200


@pytest.fixture
def two_roles(postgres: PostgresServer, tmp_path: Path) -> Iterator[Installation]:
    """An installation whose settings are files, on a database whose roles the scripts of the containers made."""
    folder, name = tmp_path / "secrets", postgres.create()
    subprocess.run(["sh", str(ROOT / "docker" / "make-secrets.sh"), str(folder)], check=True)
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "POSTGRES_DB": name, "SECRETS": str(folder)}
    path = {"PATH": f"{postgres.binaries}:{os.environ['PATH']}"}
    subprocess.run([str(ROOT / "docker" / "database" / "roles.sh")], env=here | path, check=True)
    postgres.encrypt(folder / "database_certificate", folder / "database_key")
    for file in ("secondread_database_url", "secondread_database_owner_url"):
        url = (folder / file).read_text().replace("database:5432/secondread", f"database:{postgres.port}/{name}")
        url = url.replace("/run/secrets", str(folder)) + "&hostaddr=127.0.0.1"
        (folder / file).chmod(0o600)
        (folder / file).write_text(url)
    made = Installation(tmp_path / "home")
    for setting in ("DATABASE_URL", "METRICS_TOKEN"):
        made.environment.pop(f"SECONDREAD_{setting}", None)
    made.environment |= {"SECONDREAD_SECRETS": str(folder), "SECONDREAD_SECRET_KEY_FILE": str(folder / "key_ring")}
    made.environment["SECONDREAD_ALLOWED_HOSTS"] = '["127.0.0.1"]'
    made.environment["PATH"] = f"{Path(sys.executable).parent}:{made.environment['PATH']}"
    made.home.mkdir()
    yield made
    postgres.encrypt(None, None)
    with psycopg.connect(postgres.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        for statement in (f'DROP DATABASE "{name}" WITH (FORCE)', "DROP ROLE secondread", "DROP ROLE secondread_owner"):
            connection.execute(statement)
