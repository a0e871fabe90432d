"""A disk that is full, or takes no writes (F5): each path that writes says so, and everything works when it is over."""

import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from sqlalchemy import func, select

from app.audit.verify import verify_all
from app.database.tables import Case, Label
from tests.conftest import missing
from tests.faults.rounds import Rounds
from tests.faults.small_disk import SmallDisk, read_only
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until
from tests.support.workplace import packed_cells

LABELS = 5


class Caller:
    """Sends each kind of request to an installation, and the same one again when it was refused."""

    def __init__(self, made: Installation, keys: dict[str, str]) -> None:
        self.made, self.keys = made, keys
        self.password = made.one_time_password("lead")
        self.client = httpx2.Client(
            base_url=made.address,
            timeout=patient(60),
            headers={"Connection": "close"},  # a kept one may end between two requests
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def send(self, who: str, method: str, path: str, key: str = "", **body: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.keys[who]}", "Idempotency-Key": key or uuid.uuid4().hex}
        return self.client.request(method, path, headers=headers | body.pop("headers", {}), **body)

    def upload(self, number: int) -> httpx2.Response:
        files = {"image": ("cell.png", cell_png(number))}
        return self.send(
            "lead", "POST", "/v1/cases", f"upload {number}", files=files, data={"external_id": f"c{number}"}
        )

    def label(self, case: str, reader: str) -> httpx2.Response:
        body = {"label": "blast", "annotator": reader, "blind": True}
        return self.send("lis", "POST", f"/v1/cases/{case}/labels", f"label {reader}", json=body)

    def archive(self, path: str) -> httpx2.Response:
        data = packed_cells(1000, 3)
        if path == "/imports":
            return self.send("lead", "POST", path, files={"archive": ("a.zip", data)})
        return self.send("lead", "POST", path, content=data, headers={"Content-Type": "application/zip"})

    def sign_in(self) -> httpx2.Response:
        headers = {"Origin": self.made.address, "Sec-Fetch-Site": "same-origin"}
        return self.client.post("/login", data={"name": "lead", "password": self.password}, headers=headers)

    def writes(self, case: str) -> dict[str, Callable[[], httpx2.Response]]:
        """What must be refused, by name."""
        return {
            "upload": lambda: self.upload(1),
            "label": lambda: self.label(case, "r1"),
            "lease": lambda: self.send("anna", "POST", "/v1/reads"),
            "import": lambda: self.archive("/v1/imports"),
            "import by a form": lambda: self.archive("/imports"),
            "evaluation": lambda: self.send("lead", "POST", "/v1/evaluations", json={}),
            "recalibration": lambda: self.send("lead", "POST", "/v1/recalibrations", json={}),
            "sign-in": self.sign_in,
        }

    def reads(self, case: str) -> dict[str, int]:
        """Statuses of what needs no space."""
        image = {"content": cell_png(3), "headers": {"Content-Type": "image/png"}}
        statuses = {"predict": self.send("lead", "POST", "/v1/predictions", **image).status_code}
        for path in ("/v1/cases", "/v1/metrics", f"/v1/cases/{case}", f"/v1/cases/{case}/image", "/healthz", "/readyz"):
            statuses[path] = self.send("lead", "GET", path).status_code
        return statuses


def everything_works(caller: Caller, case: str) -> dict[str, int]:
    return {name: write().status_code for name, write in caller.writes(case).items()}


@pytest.mark.slow
def test_a_full_disk_is_said_on_every_path_that_writes_and_full_service_comes_back(
    small_disk: SmallDisk, tiny_release: Path, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        made = opened.enter_context(Installation(small_disk.path / "home"))
        keys = made.prepare(tiny_release, lead="admin", anna="annotator", lis="service")
        made.environment["SECONDREAD_MIN_FREE_BYTES"] = "0"
        caller = opened.enter_context(Caller(made, keys))
        made.start()
        case = caller.upload(0).json()["id"]
        small_disk.fill()
        refused = {name: write() for name, write in caller.writes(case).items()}
        assert {
            name: answer.status_code for name, answer in refused.items() if answer.status_code not in {503, 507}
        } == {}
        assert {refused[name].status_code for name in ("upload", "import", "import by a form")} == {507}
        assert set(caller.reads(case).values()) == {200}
        for arguments in (
            ("db", "backup", small_disk.path / "copy"),
            ("dataset", "export", "--out", small_disk.path / "out"),
        ):
            done = made.run(*arguments, check=False)
            assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert sorted(path.name for path in small_disk.path.iterdir()) == ["ballast", "home", "server.log"]
        assert [path for path in made.home.rglob("*") if path.name.endswith((".part", ".tmp"))] == []
        small_disk.empty()
        statuses = everything_works(caller, case)
        assert set(statuses.values()) <= {200, 201, 202, 303}, statuses
        jobs = [caller.send("lead", "GET", "/v1/jobs").json()["items"]]
        wait_until(
            lambda: [job for job in caller.send("lead", "GET", "/v1/jobs").json()["items"]
                     if (job["kind"], job["state"]) == ("import", "succeeded")],
            60,
            lambda: f"{jobs} {made.log}",
        )  # fmt: skip
        with made.parts() as context, context.database.read() as session:
            labels = session.execute(select(func.count()).select_from(Label)).scalar_one()
            assert verify_all(session, context).faults == []
    Rounds(
        fault="F5",
        what="data on 64 MB, full: eight kinds of writes refused, then sent again",
        database="sqlite",
        rounds=1,
        acknowledged=len(statuses) + 1,
        lost=0 if labels == 1 else 1,
        duplicates=max(0, labels - 1),
        server_errors=sum(answer.status_code in {500, 502, 504} for answer in refused.values()),
    ).note()


@pytest.mark.slow
def test_folders_that_take_no_writes_leave_labels_alone(small_disk: SmallDisk, tiny_release: Path) -> None:
    with ExitStack() as opened:
        made = opened.enter_context(Installation(small_disk.path / "home"))
        keys = made.prepare(tiny_release, lead="admin", anna="annotator", lis="service")
        made.environment |= {"SECONDREAD_MIN_FREE_BYTES": "0", "SECONDREAD_WORKER": "false"}
        caller = opened.enter_context(Caller(made, keys))
        made.start()
        case = caller.upload(0).json()["id"]
        (made.home / "imports").mkdir(exist_ok=True)
        with read_only(made.home / "images", made.home / "imports"):
            refused = {name: write().status_code for name, write in caller.writes(case).items()}
            assert {name for name, status in refused.items() if status == 507} == {
                "upload",
                "import",
                "import by a form",
            }
            assert {refused[name] for name in ("label", "lease", "evaluation", "recalibration")} == {201, 202}
            assert set(caller.reads(case).values()) == {200}
        assert caller.upload(1).status_code == 201
        assert caller.archive("/v1/imports").status_code == 202
        made.stop()
        made.home.chmod(0o700)
        with read_only(made.home):
            done = made.run("serve", check=False)
            assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        made.start()
        assert caller.label(case, "r2").status_code == 201


@pytest.mark.heavy
def test_postgresql_on_a_full_disk_loses_nothing_and_serves_again(
    postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    try:
        disk = SmallDisk(tmp_path / "small", 160)
    except PermissionError:
        missing("the right to mount a small file system")
    with disk:
        for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
            folder.chmod(0o755)
        server = PostgresServer(postgres.binaries, disk.path)
        try:
            fill_postgresql(server, disk, tmp_path / "home", tiny_release)
        finally:
            server.stop()


def fill_postgresql(server: PostgresServer, disk: SmallDisk, home: Path, release: Path) -> None:
    """Label until the disk is full and for some time after, then give the space back."""
    with ExitStack() as opened:
        made = opened.enter_context(Installation(home, server.url(server.create())))
        keys = made.prepare(release, lead="admin", lis="service")
        made.environment["SECONDREAD_WORKER"] = "false"
        caller = opened.enter_context(Caller(made, keys))
        made.start()
        case = caller.upload(0).json()["id"]
        disk.fill()
        statuses: Counter[int] = Counter()
        acknowledged = []
        while statuses[503] < LABELS and sum(statuses.values()) < 3000:
            answer = caller.label(case, f"r{sum(statuses.values())}")
            statuses[answer.status_code] += 1
            if answer.status_code == 201:
                acknowledged.append(answer.json().get("label", answer.json())["id"])
        assert set(statuses) <= {201, 503}, statuses
        assert statuses[503] == LABELS, statuses
        assert caller.send("lead", "GET", "/healthz").status_code == 200
        disk.empty()
        wait_until(lambda: caller.label(case, "again").status_code == 201, 30, lambda: made.log)
        assert caller.upload(1).status_code == 201
        with made.parts() as context, context.database.read() as session:
            stored = {str(label) for label in session.execute(select(Label.id)).scalars()}
            cases = session.execute(select(func.count()).select_from(Case)).scalar_one()
            assert verify_all(session, context).faults == []
        Rounds(
            fault="F5",
            what="PostgreSQL's data on 160 MB, full",
            database="postgresql",
            rounds=1,
            acknowledged=len(acknowledged) + 1,
            lost=len(set(acknowledged) - stored),
            duplicates=len(stored) - len(acknowledged) - 1,
            server_errors=0,
        ).note()
        assert set(acknowledged) <= stored
        assert (len(stored), cases) == (len(acknowledged) + 1, 2)
