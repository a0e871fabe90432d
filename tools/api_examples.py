"""Plays the examples of the API on a copy of the demo's HOME, and stores what was sent and answered.

    python -m tools.api_examples HOME

HOME is one that ``secondread demo`` has filled; it is copied and stays as it is. The words of an example are in this
file, its numbers come from the demo's release and laboratory.
"""

import base64
import io
import json
import shutil
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi.testclient import TestClient
from PIL import Image, ImageOps
from sqlalchemy import select

import app.demo
from app.accounts import people as auth
from app.accounts.passwords import hash_password
from app.database.tables import Account
from app.http.openapi import FILE
from app.http.principal import COOKIE
from app.http.routing import walk_routes
from app.main import create_app
from app.metrics.prediction_set_calibration import publish_answer_sets
from app.settings import Settings
from tests.support.jobs import work_off

_LISTED, _NUMBERS, _ENTRIES, _DIGITS = 2, 10, 3, 6
#: Lines of a text, and pixels of an image's longer side.
_LINES, _PIXELS = 8, 16
#: Open documents, of which the first entries are shown.
_DOCUMENTS = {"card": 4, "document": 5, "result": 6}
_PASSWORD = "the password of the admin"


def shortened(value: Any, name: str = "") -> Any:
    """An answer as an example shows it: six digits, and the first entries of long lists and tables.

    >>> shortened({"items": [{"p": 0.123456789}] * 9})
    {'items': [{'p': 0.123457}, {'p': 0.123457}]}
    """
    if isinstance(value, dict):
        pairs = list(value.items())
        if all(isinstance(inner, dict) for inner in value.values()):
            pairs = pairs[:_ENTRIES]
        return {key: shortened(inner, key) for key, inner in pairs[: _DOCUMENTS.get(name)]}
    if isinstance(value, list):
        kept = _LISTED if any(isinstance(inner, dict) for inner in value) else _NUMBERS
        return [shortened(inner) for inner in value[:kept]]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


class Player:
    """Sends requests to the application and keeps the first that each operation answered well.

    Args:
        home: of the service; it is changed.
    """

    def __init__(self, home: Path) -> None:
        token = "the token of a monitoring system, for examples"
        self.app = create_app(Settings(home=home, metrics_token=token))
        self.client, self.context = TestClient(self.app, "http://localhost"), self.app.state.context
        self.examples: dict[str, dict[str, Any]] = {}
        with self.context.database.write() as session:
            keys = self.context.keys.audit
            auth.add_account(session, keys, "laboratory", "service")
            scopes = {"laboratory": ["labels:write", "cases:write", "predict"]}
            people = ("admin", "annotator-1", "annotator-2", "laboratory")
            # a person who signs has a session and a password
            admin = session.execute(select(Account).where(Account.name == "admin")).scalar_one()
            admin.password_hash = hash_password(_PASSWORD)
            self.client.cookies.set(COOKIE, auth.begin_session(session, keys, admin))
            self.keys = {name: auth.add_key(session, keys, name, scopes.get(name, []))[1] for name in people}
        self.keys["monitoring"] = token

    def ask(self, who: str, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request by a key, or by the admin's session if there is none, and give the answer.

        It is kept as an example unless there is one.

        Raises:
            RuntimeError: it was refused.
        """
        headers = {"Authorization": f"Bearer {self.keys[who]}"} if who in self.keys else {}
        headers |= options.pop("headers", {})
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
        if body is not None:
            options["json"] = body
        given = options.get("files", {})
        several = {name: [file[0] for _, file in given] for name, _ in given} if isinstance(given, list) else {}
        files = several or {name: file[0] for name, file in dict(given).items()}
        sent = body or options.get("data", {}) | files or None
        answer = self.client.request(method, path, headers=headers, **options)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:2000]}")
        document = answer.json() if "json" in answer.headers.get("content-type", "") and answer.content else None
        example = {"path": path, "request": sent, "response": shortened(document)}
        name = self._name(method, path)
        kept = self.examples.setdefault(name, {k: v for k, v in example.items() if v is not None})
        asked = answer.request.headers.get("content-type", ""), options.get("content")
        for kind, content in (asked, (answer.headers.get("content-type", ""), document is None and answer.content)):
            if content:
                kept.setdefault("others", {})[kind.partition(";")[0]] = _shown(kind, content)
        return document

    def _name(self, method: str, path: str) -> str:
        scope = {"type": "http", "method": method, "path": urlsplit(path).path, "headers": []}
        for route in walk_routes(self.app):
            if route.matches(scope)[0].name == "FULL":
                return route.operation_id or route.name
        raise ValueError(path)


def _shown(kind: str, content: bytes) -> str:
    """A body that is no JSON: the first lines of a text, or bytes as a ``data:`` address, images made small."""
    if kind.startswith("text/"):
        lines = content.decode().splitlines(keepends=True)
        return "".join([line for line in lines if "python" not in line and "process_" not in line][:_LINES])
    shown = _thumbnail(content) if kind.startswith("image/") else content
    return f"data:{kind};base64,{base64.b64encode(shown).decode()}"


def _thumbnail(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(content)) as picture:
        picture.resize((_PIXELS, _PIXELS)).save(buffer, "PNG")
    return buffer.getvalue()


def _cell(number: int) -> bytes:
    """A cell that the demo does not have: one of its own in a mirror."""
    path = sorted((Path(app.demo.__file__).parent / "cells" / "images").iterdir())[number]
    buffer = io.BytesIO()
    with Image.open(path) as picture:
        ImageOps.mirror(picture).save(buffer, "PNG")
    return buffer.getvalue()


def _field(number: int) -> bytes:
    """A wider field with a cell in its middle: the cell, and its mirror on every side."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(_cell(number))) as cell:
        mirrored, (width, height) = ImageOps.mirror(cell), cell.size
        field = Image.new("RGB", (3 * width, 3 * height))
        for place in range(9):
            field.paste(cell if place == 4 else mirrored, (place % 3 * width, place // 3 * height))
    field.save(buffer, "PNG")
    return buffer.getvalue()


def _cases(play: Player) -> str:
    """Uploads and lists; gives the case that was stored."""
    image = {"files": {"image": ("cell.png", _cell(1))}}
    play.ask("laboratory", "POST", "/v1/predictions", **image)
    raw = {"content": _thumbnail(_cell(1)), "headers": {"Content-Type": "image/png"}}
    play.ask("laboratory", "POST", "/v1/predictions", **raw)
    fields = {"external_id": "slide-9-004", "patient": "p-0417", "site": "north", "specimen": "S-1042"}
    fields["metadata"] = '{"stain": "Wright"}'
    case = play.ask(
        "laboratory", "POST", "/v1/cases", data=fields, files=image["files"] | {"field": ("field.png", _field(1))}
    )
    cells = [("image", (f"{number:03}.png", _cell(number))) for number in (4, 5)]
    play.ask("laboratory", "POST", f"/v1/specimens/{case['specimen']}/cells", files=cells)
    about = {"external_id": "S-1043", "patient": "p-0418", "site": "north", "collected_at": "2026-11-25T07:30:00Z"}
    play.ask("laboratory", "POST", "/v1/specimens", about)
    play.ask("admin", "GET", "/v1/specimens?limit=2")
    for rest in ("", "/cells?limit=2"):
        play.ask("admin", "GET", f"/v1/specimens/{case['specimen']}{rest}")
    signatures = f"/v1/specimens/{case['specimen']}/signatures"
    version = play.ask("admin", "GET", f"/v1/specimens/{case['specimen']}")["version"]
    signed = {"meaning": "approved", "version": version, "comment": "seen at the microscope", "password": _PASSWORD}
    play.ask("a person", "POST", signatures, signed)
    play.ask("admin", "GET", signatures)
    play.ask("admin", "GET", "/v1/cases?limit=2")
    play.ask("admin", "GET", "/v1/worklist?limit=2")
    for rest in ("", "/image", "/field", "/predictions"):
        play.ask("admin", "GET", f"/v1/cases/{case['id']}{rest}")
    marked = {"text": "Auer rods at the upper edge", "x": 0.31, "y": 0.22}
    play.ask("admin", "POST", f"/v1/cases/{case['id']}/comments", marked)
    play.ask("admin", "GET", f"/v1/cases/{case['id']}/comments")
    play.ask("admin", "POST", "/v1/invitations", {"annotator": "Dr. Guest", "cases": [case["id"]]})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for number in (2, 3):
            target.writestr(f"cells/slide-9-{number:03}.png", _thumbnail(_cell(number)))
    zipped = {"content": archive.getvalue(), "headers": {"Content-Type": "application/zip"}}
    job = play.ask("admin", "POST", "/v1/imports", **zipped)
    work_off(play.context)
    play.ask("admin", "GET", f"/v1/imports/{job['id']}")
    return str(case["id"])


def _reads(play: Player, case_id: str) -> None:
    """Annotators lease, extend, decline, release, label and correct; an outside system labels."""
    one, two = "annotator-1", "annotator-2"
    given_back = play.ask(one, "POST", "/v1/reads")
    play.ask(one, "PATCH", f"/v1/reads/{given_back['id']}")
    play.ask(one, "GET", "/v1/reads")
    play.ask(one, "GET", f"/v1/reads/{given_back['id']}")
    play.ask(one, "DELETE", f"/v1/reads/{given_back['id']}")
    declined = play.ask(two, "POST", "/v1/reads")
    play.ask(two, "POST", f"/v1/reads/{declined['id']}/decline", {"reason": "image_quality", "note": "out of focus"})
    while True:  # until one is hidden, because a second read is still to come
        read = play.ask(one, "POST", "/v1/reads")
        codes = [info["code"] for info in read["classes"]]
        path = f"/v1/reads/{read['id']}"
        answer = play.ask(one, "POST", f"{path}/labels", {"label": codes[0], "confidence": 0.7})
        if answer["hidden_because"] is not None:
            play.ask(one, "POST", f"{path}/correction", {"label": codes[1]})
            break
    outside = {"label": codes[1], "annotator": "reader A", "blind": True}
    label = play.ask("laboratory", "POST", f"/v1/cases/{case_id}/labels", outside)["label"]
    sent = outside | {"external_id": "slide-9-004"}
    play.ask("laboratory", "POST", "/v1/labels", {"labels": [sent, sent | {"annotator": "reader B", "blind": False}]})
    revised = {"label": codes[2], "reason": "looked at the nucleus again", "blind": True}
    newer = play.ask("laboratory", "POST", f"/v1/labels/{label['id']}/revisions", revised)["label"]
    play.ask("admin", "GET", f"/v1/cases/{case_id}/labels?history=true")
    play.ask("admin", "GET", f"/v1/cases/{case_id}/posterior")
    play.ask("laboratory", "POST", f"/v1/labels/{newer['id']}/retraction", {"reason": "another patient's slide"})
    settled = {"class": codes[1], "reason": "discussed at the microscope"}
    play.ask("admin", "POST", f"/v1/cases/{case_id}/outcome", settled)
    play.ask("admin", "DELETE", f"/v1/cases/{case_id}/outcome?reason=a+new+slide+has+come")
    play.ask("admin", "POST", f"/v1/cases/{case_id}/assignments", {"annotator": "annotator-3"})


def _policy(play: Player) -> None:
    policy = {"rule": "disagreement", "threshold": 0.25, "reason": "a third of the cells is read twice"}
    play.ask("admin", "POST", "/v1/policies", policy)
    play.ask("admin", "GET", "/v1/policies")


def _evaluations(play: Player) -> None:
    """What the laboratory's labels say of predictions and annotators, and two jobs that learn from them."""
    for path in ("metrics?partition=all&weighting=none", "report?partition=all&weighting=none", "reader-drift"):
        play.ask("admin", "GET", f"/v1/{path}")
    play.ask("admin", "GET", "/v1/agreement?group_by=class")
    play.ask("admin", "GET", "/v1/annotators")
    play.ask("annotator-1", "GET", "/v1/annotators/me")
    version = play.ask("admin", "GET", "/v1/report-targets")["version"]
    targets = {"disagreement_gap": 0.075, "leading_gap": 0.05, "caught": 0.7, "agreement": 0.8, "hours": 24}
    stricter = targets | {"reason": "two months of reading twice are behind us"}
    play.ask("admin", "PUT", "/v1/report-targets", stricter, headers={"If-Match": f'"{version}"'})
    frozen = play.ask("admin", "POST", "/v1/evaluations", {"partition": "all", "weighting": "none"})
    job = play.ask("admin", "POST", "/v1/recalibrations", {"method": "temperature"})
    play.ask("admin", "POST", "/v1/reader-models", {"experts": []})
    work_off(play.context)
    for kind in ("application/json", "text/html", "text/csv"):
        play.ask("admin", "GET", f"/v1/evaluations/{frozen['id']}", headers={"Accept": kind})
    play.ask("admin", "GET", "/v1/evaluations")
    play.ask("admin", "GET", f"/v1/jobs/{job['id']}")
    play.ask("admin", "GET", "/v1/jobs")
    play.ask("admin", "GET", "/v1/reader-models")
    play.ask("admin", "GET", "/v1/reader-models/1")


def _releases(play: Player) -> None:
    """A look at the candidate, a judgement that is taken back, and the move of both switches."""
    releases = play.ask("admin", "GET", "/v1/releases")["items"]
    candidate = next(release["id"] for release in releases if not release["aliases"])
    play.ask("admin", "GET", f"/v1/releases/{candidate}")
    moved = {"release": candidate, "reason": "to compare it for a month"}
    play.ask("admin", "PUT", "/v1/aliases/challenger", moved, headers={"If-Match": '"0"'})
    work_off(play.context)  # it predicts the cases that were there
    play.ask("admin", "GET", f"/v1/releases/{candidate}/comparison?partition=all&weighting=none")
    job = play.ask("admin", "POST", f"/v1/releases/{candidate}/judgements")
    play.ask("admin", "DELETE", f"/v1/jobs/{job['id']}")
    work_off(play.context)
    play.ask("admin", "POST", f"/v1/jobs/{job['id']}/retry")
    play.ask("admin", "GET", "/v1/aliases")
    position = play.ask("admin", "GET", "/v1/reader-models/in-use")
    alike = {"version": None, "reason": "until there are more labels"}
    revision = f'"{position["revision"]}"'
    play.ask("admin", "PUT", "/v1/reader-models/in-use", alike, headers={"If-Match": revision})


def _practice(play: Player) -> None:
    """Two sets, a run of one of them, and a decision by hand."""
    training = {"name": "everyday cells", "purpose": "training", "n_cells": 20, "n_per_run": 5, "min_labels": 2}
    chosen = play.ask("admin", "POST", "/v1/practice/sets", training)
    play.ask("admin", "GET", "/v1/practice/sets")
    run = play.ask("annotator-1", "POST", "/v1/practice/runs", {"set": chosen["id"]})
    item = f"/v1/practice/items/{run['item']['id']}"
    play.ask("annotator-1", "GET", f"{item}/image")
    play.ask("annotator-1", "POST", f"{item}/answer", {"label": run["item"]["classes"][0]["code"]})
    play.ask("annotator-1", "GET", item)
    play.ask("annotator-1", "GET", f"/v1/practice/runs/{run['id']}")
    play.ask("annotator-1", "GET", "/v1/practice")
    decision = {"kind": "qualified", "reason": "has read these cells for years"}
    play.ask("admin", "POST", "/v1/practice/annotators/annotator-2/decisions", decision)
    play.ask("admin", "GET", "/v1/practice/annotators")
    play.ask("admin", "POST", f"/v1/practice/sets/{chosen['id']}/retirement")


def _operations(play: Player) -> None:
    play.ask("admin", "GET", "/v1/audit-events?limit=2")
    play.ask("admin", "GET", "/v1/changes?limit=2")
    play.ask("admin", "GET", "/healthz")
    play.ask("admin", "GET", "/readyz")
    play.ask("monitoring", "GET", "/metrics")


def main() -> None:
    """Play everything and write the file."""
    source = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(source, home)
        play = Player(home)
        publish_answer_sets(play.context)  # as the worker does every minute
        _policy(play)
        _reads(play, _cases(play))
        _evaluations(play)
        _releases(play)
        _practice(play)
        _operations(play)
        FILE.write_text(json.dumps(play.examples, indent=1, ensure_ascii=False) + "\n")
        print(f"{len(play.examples)} operations")


if __name__ == "__main__":
    main()
