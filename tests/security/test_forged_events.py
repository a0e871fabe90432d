"""What waits to be linked and was not signed as it stands, and what else a chain that is linked later must survive."""

from pathlib import Path

import pytest
from sqlalchemy import text

from app.audit.anchor import anchor_configured_file
from app.audit.chain import events
from app.context import ServiceContext
from tests.app.test_sealing import note, order, waits
from tests.support.service import Service

pytestmark = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
COPIED = "created_at, actor, action, object, details, reason, request_id, row_digests, event_sha256, signature"


def insert_copy(context: ServiceContext, action: str, **changed: str) -> int:
    """Write an event of then down once more, as a role may that writes events and has no key; gives its stamp."""
    columns = COPIED.split(", ")
    values = ", ".join(changed.get(name, name) for name in columns)
    copy = f"INSERT INTO audit_events (stamp, {COPIED}) SELECT nextval('audit_events_stamp_seq'), {values} "
    copy += "FROM audit_events WHERE action = :action ORDER BY stamp DESC LIMIT 1 RETURNING stamp"
    with context.database.write() as session:
        return int(session.execute(text(copy), {"action": action}).scalar_one())


@pytest.mark.parametrize(
    "changed",
    [{}, {"actor": "'somebody'"}, {"event_sha256": "''"}, {"signature": "''"}],
    ids=["replayed", "forged", "without a digest", "without a signature"],
)
def test_an_event_that_was_not_signed_as_it_stands_is_never_linked(service: Service, changed: dict[str, str]) -> None:
    """Somebody brings a row back as it was, with the event that wrote it then."""
    context = service.context
    service.add_case()
    service.seal()
    stamp = insert_copy(context, "case.add", **changed)
    service.written_past = True
    with context.database.write() as session:
        note(session, context, "after it")
    assert service.seal() == 1
    assert order(context) == ["after it"], "what is forged keeps nobody waiting"
    with context.database.read_moment() as session:
        faults = events.verify_chain(session, context.keys.audit)[1]
    assert faults == [f"audit event with stamp {stamp}, which waits to be linked, was changed"]


def test_the_worker_links_nothing_for_the_file_of_heads(service: Service, tmp_path: Path) -> None:
    """What a sealer refuses, the schedule that keeps heads outside does not do in its place."""
    context = service.context
    service.add_case()
    context.settings.audit_anchor = tmp_path / "heads"
    anchor_configured_file(context)
    context.settings.audit_anchor = None
    assert waits(context)
