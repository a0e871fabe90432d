"""Two servers and two workers with a HOME each, PostgreSQL and a bucket: as containers, as pods, and as processes."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.conftest import missing
from tests.support.manifests import containers, environment
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.two_roles import installation_of_two_roles
from tests.support.waiting import patient, wait_until

ROOT = Path(__file__).parents[1]
FILES = ("docker-compose.yml", "docker-compose.two-servers.yml")
NAME = {"SECONDREAD_NAME": "reads.example.org"}
OURS = ("owner", "service", "service2", "worker", "worker2")
#: Of root, but without a right of root's: one listens on ports below 1024, the other one's volume is root's.
ROOTS = {"proxy": ["NET_BIND_SERVICE"], "bucket": None}


@cache
def composed() -> dict[str, Any]:
    """Both files as docker-compose understands them."""
    binary = shutil.which("docker-compose")
    if binary is None:
        missing("docker-compose (Debian package docker-compose)")
    files = [part for name in FILES for part in ("-f", str(ROOT / name))]
    done = subprocess.run(
        [str(binary), *files, "config"], capture_output=True, text=True, env=os.environ | NAME, check=False
    )
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
    homes = [volume for name in OURS for volume in services[name]["volumes"]]
    assert len(set(homes)) == len(OURS)  # nobody needs a disk of another one's
    assert all(volume.endswith(":/data:rw") for volume in homes)


def test_every_container_can_do_no_more_than_it_must() -> None:
    for name, service in composed()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("cap_add") == ROOTS.get(name), name
        assert (name in ROOTS) == ("user" not in service), name
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


@pytest.fixture
def two_roles(postgres: PostgresServer, tmp_path: Path) -> Iterator[Installation]:
    with installation_of_two_roles(postgres, tmp_path) as made:
        yield made


def on_this_machine(name: str, part: Part, two_roles: Installation, bucket: str, folder: Path) -> Installation:
    """A process of the shape: the same variables, but for where things are on this machine."""
    secrets = folder / f"secrets-{name}"
    shutil.copytree(folder / "secrets", secrets)
    if name != "owner":
        (secrets / "secondread_database_owner_url").unlink()
    made = Installation(folder / name / "home")
    made.home.parent.mkdir()
    places = {"/run/secrets/secondread": str(secrets), "/run/secrets": str(secrets), "/data/home": str(made.home)}
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
