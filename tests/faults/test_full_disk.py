"""A disk that is full, or takes no writes (F5): each path that writes says so, and everything works when it is over."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

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

    def __init__(self, made: Installation) -> None:
        self.made, self.password = made, made.one_time_password("lead")

    def upload(self, number: int) -> httpx2.Response:
        files, data = {"image": ("cell.png", cell_png(number))}, {"external_id": f"c{number}"}
        return self.made.call("lead", "POST", "/v1/cases", f"upload {number}", files=files, data=data)

    def label(self, case: str, reader: str) -> httpx2.Response:
        body = {"label": "blast", "annotator": reader, "blind": True}
        return self.made.call("lis", "POST", f"/v1/cases/{case}/labels", f"label {reader}", json=body)

    def archive(self, path: str) -> httpx2.Response:
        data = packed_cells(1000, 3)
        if path == "/imports":
            return self.made.call("lead", "POST", path, files={"archive": ("a.zip", data)})
        return self.made.call("lead", "POST", path, content=data, headers={"Content-Type": "application/zip"})

    def sign_in(self) -> httpx2.Response:
        headers = {"Origin": self.made.address, "Sec-Fetch-Site": "same-origin"}
        data = {"name": "lead", "password": self.password}
        return httpx2.post(f"{self.made.address}/login", data=data, headers=headers, timeout=patient(60))

    def writes(self, case: str) -> dict[str, Callable[[], httpx2.Response]]:
        """What must be refused, by name."""
        return {
            "upload": lambda: self.upload(1),
            "label": lambda: self.label(case, "r1"),
            "lease": lambda: self.made.call("anna", "POST", "/v1/reads"),
            "import": lambda: self.archive("/v1/imports"),
            "import by a form": lambda: self.archive("/imports"),
            "evaluation": lambda: self.made.call("lead", "POST", "/v1/evaluations", json={}),
            "recalibration": lambda: self.made.call("lead", "POST", "/v1/recalibrations", json={}),
            "sign-in": self.sign_in,
        }

    def reads(self, case: str) -> dict[str, int]:
        """Statuses of what needs no space."""
        image = {"content": cell_png(3), "headers": {"Content-Type": "image/png"}}
        statuses = {"predict": self.made.call("lead", "POST", "/v1/predictions", **image).status_code}
        for path in ("/v1/cases", "/v1/metrics", f"/v1/cases/{case}", f"/v1/cases/{case}/image", "/healthz", "/readyz"):
            statuses[path] = self.made.call("lead", "GET", path).status_code
        return statuses


@pytest.fixture
def on_small_disk(small_disk: SmallDisk, tiny_release: Path) -> Iterator[Installation]:
    """An installation whose HOME lies on the small disk."""
    with Installation(small_disk.path / "home") as made:
        made.keys = made.prepare(tiny_release, lead="admin", anna="annotator", lis="service")
        made.environment["SECONDREAD_MIN_FREE_BYTES"] = "0"
        yield made


@pytest.mark.slow
def test_a_full_disk_is_said_on_every_path_that_writes_and_full_service_comes_back(
    small_disk: SmallDisk, on_small_disk: Installation
) -> None:
    made, caller = on_small_disk, Caller(on_small_disk)
    made.start()
    case = caller.upload(0).json()["id"]
    small_disk.fill()
    refused = {name: write().status_code for name, write in caller.writes(case).items()}
    assert set(refused.values()) <= {503, 507}, refused
    assert {refused[name] for name in ("upload", "import", "import by a form")} == {507}
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
    statuses = {name: write().status_code for name, write in caller.writes(case).items()}
    assert set(statuses.values()) <= {200, 201, 202, 303}, statuses

    def imported() -> bool:
        jobs = made.get("/v1/jobs", made.keys["lead"])["items"]
        return any((job["kind"], job["state"]) == ("import", "succeeded") for job in jobs)

    wait_until(imported, 60, lambda: made.log)
    with made.parts() as context, context.database.read() as session:
        labels = session.execute(select(func.count()).select_from(Label)).scalar_one()
        assert verify_all(session, context).faults == []
    what = "data on 64 MB, full: eight kinds of writes refused, then sent again"
    Rounds("F5", what, "sqlite", 1, len(statuses) + 1, int(labels < 1), max(0, labels - 1), server_errors=0).note()
    assert labels == 1


@pytest.mark.slow
def test_folders_that_take_no_writes_leave_labels_alone(on_small_disk: Installation) -> None:
    made, caller = on_small_disk, Caller(on_small_disk)
    made.environment["SECONDREAD_WORKER"] = "false"
    made.start()
    case = caller.upload(0).json()["id"]
    (made.home / "imports").mkdir(exist_ok=True)
    with read_only(made.home / "images", made.home / "imports"):
        refused = {name: write().status_code for name, write in caller.writes(case).items()}
        without_files = {name for name, status in refused.items() if status != 507}
        assert refused.keys() - without_files == {"upload", "import", "import by a form"}
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
    with tempfile.TemporaryDirectory(prefix="sr-") as short:  # the name of a socket has at most 107 bytes
        Path(short).chmod(0o755)
        try:
            disk = SmallDisk(Path(short) / "small", 160)
        except PermissionError:
            missing("the right to mount a small file system")
        with disk:
            server = PostgresServer(postgres.binaries, disk.path)
            try:
                fill_postgresql(server, disk, tmp_path / "home", tiny_release)
            finally:
                server.stop()


def fill_postgresql(server: PostgresServer, disk: SmallDisk, home: Path, release: Path) -> None:
    """Label until the disk is full and for some time after, then give the space back."""
    with Installation(home, server.url(server.create())) as made:
        made.keys = made.prepare(release, lead="admin", lis="service")
        made.environment["SECONDREAD_WORKER"] = "false"
        caller = Caller(made)
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
        assert made.call("lead", "GET", "/healthz").status_code == 200
        disk.empty()
        wait_until(lambda: caller.label(case, "again").status_code == 201, 30, lambda: made.log)
        assert caller.upload(1).status_code == 201
        with made.parts() as context, context.database.read() as session:
            stored = {str(label) for label in session.execute(select(Label.id)).scalars()}
            cases = session.execute(select(func.count()).select_from(Case)).scalar_one()
            assert verify_all(session, context).faults == []
        lost, duplicates = len(set(acknowledged) - stored), len(stored) - len(acknowledged) - 1
        what = "PostgreSQL's data on 160 MB, full"
        Rounds("F5", what, "postgresql", 1, len(acknowledged) + 1, lost, duplicates, server_errors=0).note()
        assert set(acknowledged) <= stored
        assert (len(stored), cases) == (len(acknowledged) + 1, 2)
