"""A service under test and short ways to call it."""

import functools
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
import numpy as np
from fastapi.testclient import TestClient
from PIL import Image
from sqlalchemy import Executable, Select, select, text
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.audit.chain.covered_rows import update_columns
from app.audit.chain.keys import AuditKeys
from app.audit.verify import verify_all
from app.cases.blindness import case_handle, case_of_handle
from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext
from app.database import tables
from app.database.engine import Database
from app.database.tables import new_id, utc_now
from app.http.principal import Principal
from app.labels.corrections import finalize_labels
from app.labels.schemas import LabelIn
from app.labels.submission import submit_label
from app.maintenance.export import export_dataset
from app.releases.registration import UNFINISHED, register_release
from app.releases.service import move_alias
from app.storage.blobs import FolderStore
from app.storage.bundles import SharedFolders
from ml.datasets.cells import simulate_cell
from ml.release.artifact import copy_release, read_release
from tests.support.clock import SettableClock
from tests.support.images import encode
from tests.support.process import METRICS_TOKEN

T = TypeVar("T")

#: Of every service under test, so that coins and partitions are the same in every run.
KEY = "the same coins and partitions in every run"
PEOPLE = {"admin": "admin", "viewer": "viewer", "anna": "annotator", "ben": "annotator", "outside": "service"}


@functools.cache
def cell_png(index: int = 0, size: int = 32) -> bytes:
    """A simulated cell; 32 px are enough where nobody looks at it."""
    return encode(simulate_cell(index, seed=77, size=size).pixels)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that fails whatever it is called with."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def show_at_once(database: Database) -> None:
    """Let the policy that came with the tables show a case after each commit."""
    with database.write() as session:  # not noted: there are no events yet
        change_append_only(session, "policies", text("UPDATE policies SET reveal = 'after_commit'"))


def change_append_only(session: Session, table: str, statement: Executable) -> None:
    """Change rows that the database lets nobody change."""
    dialect = session.get_bind().dialect.name
    before, after = (map(text, make(dialect, table)) for make in (tables.drop_triggers, tables.create_triggers))
    for piece in (*before, statement, *after):
        session.execute(piece)


def add_people(context: ServiceContext) -> dict[str, str]:
    """An account and a key for each of ``PEOPLE``."""
    keys = {}
    with context.database.write() as session:
        for name, role in PEOPLE.items():
            auth.add_account(session, context.keys.audit, name, role)
            scopes = ["labels:write"] if role == "service" else []
            keys[name] = auth.add_key(session, context.keys.audit, name, scopes)[1]
    return keys


class Service:
    """A service under test."""

    def __init__(self, client: TestClient, context: ServiceContext, keys: Mapping[str, str]) -> None:
        self.client, self.context, self.keys = client, context, dict(keys)
        #: called before some of the requests that change something
        self.before_change: Callable[[], None] = lambda: None
        #: set by a test that writes rows past the service
        self.written_past = False
        self._changes = 0
        self._frozen = False

    @property
    def clock(self) -> SettableClock:
        """The service's clock, for a test to set."""
        assert isinstance(self.context.clock, SettableClock)
        return self.context.clock

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Others look at the same rows: whoever would change them is told."""
        self._frozen = True
        yield
        self._frozen = False

    def call(self, who: str | None, method: str, path: str, **options: Any) -> httpx.Response:
        assert not self._frozen or method == "GET" or path == "/v1/predictions", (
            f"{method} {path}: this service is shared for reading"
        )
        headers = options.pop("headers", {})
        if who is not None:
            headers["Authorization"] = f"Bearer {self.keys[who]}"
        if method != "GET" and path != "/v1/cases":
            self._changes += 1
            if self._changes > 1 and self._changes.bit_count() == 1:  # the 2nd, 4th, 8th …
                self.before_change()
        response: httpx.Response = self.client.request(method, path, headers=headers, **options)
        return response

    def get(self, who: str | None, path: str, **options: Any) -> httpx.Response:
        return self.call(who, "GET", path, **options)

    def metrics(self) -> str:
        """What a monitoring system reads."""
        answer = self.client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def document(self, path: str, who: str = "viewer", **params: Any) -> Any:
        """What a GET answers with."""
        answer = self.get(who, path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def items(self, path: str, who: str = "viewer", **params: Any) -> Iterator[Any]:
        """What a list has, page by page."""
        while True:
            page = self.document(path, who, **params)
            yield from page["items"]
            params["cursor"] = page.get("next_cursor")
            if params["cursor"] is None:
                return

    def one(self, statement: Select[tuple[T]]) -> T:
        with self.context.database.read() as session:
            return session.execute(statement).scalar_one()

    def scalars(self, statement: Select[tuple[T]]) -> list[T]:
        """The first column of what a statement finds."""
        with self.context.database.read() as session:
            return list(session.execute(statement).scalars())

    def rows(self, statement: Select[Any]) -> list[Any]:
        with self.context.database.read() as session:
            return list(session.execute(statement).all())

    def change(self, statement: Executable) -> None:
        with self.context.database.write() as session:
            session.execute(statement)

    def faults(self) -> list[str]:
        """What `db verify` finds."""
        with self.context.database.read() as session:
            return verify_all(session, self.context).faults

    def export(self, out: Path, partition: Any = "all", **options: Any) -> None:
        with self.context.database.read() as session:
            export_dataset(session, self.context, out, partition, **options)

    def one_time_password(self, name: str) -> str:
        with self.context.database.write() as session:
            return auth.issue_one_time_password(session, self.context.keys.audit, name)

    def add_annotator(self, name: str) -> None:
        with self.context.database.write() as session:
            auth.add_account(session, self.context.keys.audit, name, "annotator")
            self.keys[name] = auth.add_key(session, self.context.keys.audit, name, [])[1]

    def settle(self, case_id: str, who: str = "admin", **body: Any) -> httpx.Response:
        """Settle a case, as split if nothing is said."""
        return self.post(who, f"/v1/cases/{case_id}/outcome", json=body or {"split": True, "reason": "experts differ"})

    def set_disabled(self, name: str, *, disabled: bool) -> None:
        with self.context.database.write() as session:
            auth.set_disabled(session, self.context.keys.audit, name, disabled=disabled)

    def post(self, who: str | None, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex, **options.pop("headers", {})}
        return self.call(who, "POST", path, headers=headers, **options)

    def add_case(
        self, external_id: str = "case-1", data: bytes | None = None, *, field: bytes | None = None, **fields: str
    ) -> dict[str, Any]:
        response = self.upload(external_id, cell_png() if data is None else data, field=field, **fields)
        assert response.status_code == 201, response.text
        return dict(response.json())

    def add_cases(self, n: int, **fields: str) -> list[dict[str, Any]]:
        """Different cells under the names `case 0`, `case 1` and so on."""
        return [self.add_case(f"case {number}", cell_png(number), **fields) for number in range(n)]

    def upload(
        self, external_id: str, data: bytes, key: str | None = None, *, field: bytes | None = None, **fields: str
    ) -> httpx.Response:
        files = {"image": ("secret-file-name.png", data)}
        if field is not None:
            files["field"] = ("secret-field-name.png", field)
        return self.post("admin", "/v1/cases", key, files=files, data={"external_id": external_id, **fields})

    def label(self, who: str, case_id: str, code: str, key: str | None = None, **fields: Any) -> httpx.Response:
        return self.post(who, f"/v1/cases/{case_id}/labels", key, json={"label": code, **fields})

    def principal(self, name: str, *scopes: str) -> Principal:
        """Somebody who calls, by the name of the account."""
        account = self.one(select(tables.Account).where(tables.Account.name == name))
        return Principal(account.id, account.name, account.role, frozenset(scopes))

    def known_as(self, who: str, case_id: str) -> str:
        """What an annotator knows a case by."""
        return str(case_handle(self.context.keys.readers, self.principal(who, "reads:own"), uuid.UUID(case_id)))

    def case_of(self, who: str, handle: str) -> str:
        """The case that an annotator knows by a handle."""
        principal = self.principal(who, "reads:own")
        with self.context.database.read() as session:
            return str(case_of_handle(session, self.context.keys.readers, principal, uuid.UUID(handle)))

    def lease_on(self, who: str, case_id: str) -> str:
        """The read of an annotator on a case: the one they hold, else the next that they get, which must be of it."""
        handle = self.known_as(who, case_id)
        held = [read for read in self.document("/v1/reads", who)["items"] if read["case_id"] == handle]
        read = held[0] if held else self.post(who, "/v1/reads").json()
        assert read["case_id"] == handle
        return str(read["id"])

    def answer(self, who: str, case_id: str, code: str, key: str | None = None, **fields: Any) -> httpx.Response:
        """An annotator's label of a case, through their read."""
        path = f"/v1/reads/{self.lease_on(who, case_id)}/labels"
        return self.post(who, path, key, json={"label": code, **fields})

    def make_labels_final(self) -> int:
        """Let the time for corrections pass, and let the worker see it; gives the number of labels."""
        with self.context.database.write() as session:
            session.execute(update_columns(tables.ProvisionalLabel, final_at=utc_now()))
        return finalize_labels(self.context)

    def outside_label(self, case_id: str, annotator: str, code: str, *, blind: bool = True) -> dict[str, Any]:
        response = self.label("outside", case_id, code, annotator=annotator, blind=blind)
        assert response.status_code == 201, response.text
        return dict(response.json())

    def put_release(self, path: Path) -> tables.ReleaseRow:
        with self.context.database.write() as session:
            return put_release(session, self.context.keys.audit, path, self.context.settings.releases_folder)

    def serve(self, path: Path) -> str:
        """Make a release the champion, whatever the gate says; gives its identifier."""
        release_id = self.put_release(path).id
        with self.context.database.write() as session:
            move_alias(session, self.context, "test", "champion", release_id, "test", None, despite_gate=True)
        return str(release_id)


def fill_targets(session: Session) -> None:
    """A version of the laboratory's own targets."""
    limits = {"disagreement_gap": 0.1, "leading_gap": 0.1, "caught": 0.5, "agreement": 0.8, "hours": 48.0}
    account_id = session.execute(select(tables.Account.id)).scalars().first()
    session.add(tables.ReportTargets(version=1, reason="test", created_by=account_id, **limits))
    session.add(
        tables.ClassSettings(version=1, classes=[{"code": "blast", "name": "Blast cell"}], created_by=account_id)
    )


def fill_knowledge(session: Session) -> None:
    """What specimens taught under the only release."""
    release_id = session.execute(select(tables.ReleaseRow.id)).scalars().first()
    session.add(tables.SpecimenKnowledge(version=1, release_id=release_id, kappa=2.0, groups={}))


def fill_signature(session: Session) -> None:
    """A signed specimen without cells."""
    account_id = session.execute(select(tables.Account.id)).scalars().first()
    specimen = tables.Specimen(id=new_id(), external_id="a signed one", created_by=account_id)
    session.add(specimen)
    session.flush()
    signed = {"meaning": "approved", "document": {"version": 1, "groups": []}, "digest": "0" * 64}
    session.add(tables.SpecimenSignature(specimen_id=specimen.id, number=1, account_id=account_id, **signed))


def fill_references(session: Session) -> None:
    """A definition of a class, and the only labelled case as a reference cell of it."""
    label = session.execute(select(tables.CountedLabel)).scalars().one()
    account_id = session.execute(select(tables.Account.id)).scalars().first()
    made = {"class_code": "blast", "number": 1, "created_by": account_id}
    session.add(tables.ClassDefinition(text="large, with little cytoplasm", **made))
    session.add(tables.ReferenceCell(case_id=label.case_id, kind="chosen", n_readers=2, n_same=2, **made))


def fill_repeats(session: Session) -> None:
    """A case that is held back from the annotator of the only label, and came to them a second time, drawn for it."""
    label = session.execute(select(tables.CountedLabel)).scalars().one()
    session.add(tables.HeldBack(annotator_id=label.annotator_id, case_id=label.case_id))
    named = {"annotator_id": label.annotator_id, "case_id": label.case_id, "label_id": label.id}
    seat = {"in_place_of": label.case_id, "due_on": "2026-01-01", "shuffle": 1}
    session.add(tables.Repeat(**named, **seat, policy_version=1))
    session.flush()
    answer = {"kind": "label", "class_code": "blast", "blind": True, "round": "planned", "created_by": label.created_by}
    session.add(tables.Label(annotator_id=label.annotator_id, case_id=label.case_id, purpose="repeat", **answer))
    asked = session.execute(select(tables.ReadRequest.id)).scalars().first()
    draw = {"annotator_id": label.annotator_id, "case_id": label.case_id, "probability": 0.5}
    session.add(tables.ReaderDraw(request_id=asked, position=0, among=[str(label.annotator_id)], **draw))


def fill_practice(session: Session) -> None:
    """A run of a set with a cell, its answer, and a decision on the annotator of the only label."""
    label = session.execute(select(tables.CountedLabel)).scalars().one()
    account = session.execute(select(tables.Account).where(tables.Account.name == "admin")).scalar_one()
    made = {"name": "a set", "purpose": "qualification", "n_per_run": 1, "min_labels": 3, "borderline_share": 0.2}
    chosen = tables.PracticeSet(**made, report={}, created_by=account.id)
    session.add(chosen)
    session.flush()
    run = tables.PracticeRun(set_id=chosen.id, annotator_id=label.annotator_id)
    session.add_all([run, tables.PracticeCell(set_id=chosen.id, case_id=label.case_id)])
    session.flush()
    item = tables.PracticeItem(run_id=run.id, annotator_id=label.annotator_id, case_id=label.case_id, position=0)
    session.add_all([item, tables.Qualification(annotator_id=label.annotator_id, kind="passed", run_id=run.id)])
    session.flush()
    session.add(tables.PracticeAnswer(item_id=item.id, class_code="blast"))


def pixels_of(data: bytes) -> Any:
    return np.asarray(Image.open(BytesIO(data)))


def store(service: Service, external_id: str, data: bytes, labels: dict[str, int], **fields: str) -> str:
    """Store a case and its outside labels by the functions behind the routes, where requests are not what is tested."""
    context = service.context
    new = prepare_case(context, CaseIn(external_id=external_id, **fields), data)
    admin, outside = (service.principal(name, "cases:write", "labels:write") for name in ("admin", "outside"))
    with context.database.write() as session:
        _, case = store_case(session, context, admin, new)
        for reader, k in labels.items():
            body = LabelIn(label=case.prediction.classes[k], annotator=reader, blind=True)
            submit_label(session, context, outside, uuid.UUID(case.id), body)
    return str(case.id)


def stored_image(context: ServiceContext, digest: str) -> Path:
    """Where an image lies, of a service whose images lie in a folder."""
    assert isinstance(context.images.store, FolderStore)
    return context.images.store.path(context.images.key(digest))


def put_release(session: Session, keys: AuditKeys, source: Path, releases_folder: Path) -> tables.ReleaseRow:
    """Make a release known that a test has made: its network is not run in a process of its own first."""
    releases_folder.mkdir(parents=True, exist_ok=True)
    copy = copy_release(read_release(source), releases_folder / UNFINISHED.replace("*", uuid.uuid4().hex))
    return register_release(session, keys, copy, SharedFolders(releases_folder.parent, None), new_id(), actor="test")[0]


def collect(service: Service, images: list[bytes], patients: bool) -> None:
    """Store the images as cases, of patients with three each; none to three outside annotators label them at random."""
    rng = np.random.default_rng(0)
    for number, data in enumerate(images):
        fields = {"patient": f"p{number // 3}"} if patients else {}
        labels = {f"r{reader}": int(rng.integers(8)) for reader in range(number % 4)}
        store(service, f"case-{number}", data, labels, **fields)
