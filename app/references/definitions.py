"""What the study's guidelines say of each class: a new version is a new row, audited."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import Context
from app.database.tables import Account, ClassDefinition
from app.http.errors import NotFound
from app.http.models import In, Paragraph
from app.http.principal import Principal
from app.releases.queries import reading_classes


class DefinitionIn(In):
    """A new version of what the guidelines say of a class; empty takes the definition away."""

    text: Paragraph


def definitions(session: Session) -> dict[str, str]:
    """The text in force of each class that has one."""
    rows = session.execute(select(ClassDefinition).order_by(ClassDefinition.number)).scalars()
    newest = {row.class_code: row.text for row in rows}
    return {code: text for code, text in newest.items() if text}


def versions(session: Session, code: str) -> list[tuple[ClassDefinition, str]]:
    """Every version of a class's definition with the name of who wrote it, newest first."""
    statement = (
        select(ClassDefinition, Account.name)
        .join(Account, Account.id == ClassDefinition.created_by)
        .where(ClassDefinition.class_code == code)
        .order_by(ClassDefinition.number.desc())
    )
    return [(row[0], row[1]) for row in session.execute(statement)]


def define(session: Session, context: Context, principal: Principal, code: str, body: DefinitionIn) -> uuid.UUID | None:
    """Write a new version of the definition of a class; those before it stay.

    Returns:
        The identifier of the version; None where the text in force is the same.

    Raises:
        NotFound: there is no such class.
    """
    if code not in {info.code for info in reading_classes(session)}:
        raise NotFound("there is no such class")
    before, text = versions(session, code), "\n".join(line.strip() for line in body.text.strip().splitlines())
    if text == (before[0][0].text if before else ""):
        return None
    number = before[0][0].number + 1 if before else 1
    row = ClassDefinition(class_code=code, number=number, text=text, created_by=principal.account_id)
    session.add(row)
    session.flush()
    details = {"class": code, "number": number}
    events.record(
        session, context.keys.audit, actor=principal.name, action="definition.change", object_id=row.id, details=details
    )
    return row.id
