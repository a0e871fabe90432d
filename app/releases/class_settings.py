"""Names, order, groups and keys of the classes as a lead has set them, in audited versions; codes never change."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import Account, ClassSettings
from app.http.errors import Conflict, NotFound
from app.http.models import ClassOut
from app.http.principal import Principal
from ml.messages import Message


@dataclass(frozen=True)
class ClassSetting:
    """What is set of one class; None: as the release has it."""

    code: str
    name: str | None = None
    group: str | None = None
    shortcut: str | None = None

    def apply(self, info: ClassOut) -> ClassOut:
        """The class of a release as it is set."""
        return info.model_copy(update={name: value for name, value in asdict(self).items() if value is not None})


def class_settings(session: Session) -> tuple[int, list[ClassSetting]]:
    """The version in force and what it sets, in order; 0 and nothing before the first."""
    newest = select(ClassSettings.version, ClassSettings.classes).order_by(ClassSettings.version.desc()).limit(1)
    row = session.execute(newest).one_or_none()
    return (0, []) if row is None else (row.version, [ClassSetting(**one) for one in row.classes])


def apply_settings(
    settings: Sequence[ClassSetting], classes: Sequence[ClassOut], *, in_order: bool = True
) -> list[ClassOut]:
    """Classes of a release as they are set; in the order that is set, or in that of the release's outputs."""
    by_code = {one.code: one for one in settings}
    applied = [by_code[info.code].apply(info) if info.code in by_code else info for info in classes]
    # classes that came with a later release follow those that were set
    places = {code: place for place, code in enumerate(by_code)} if in_order else {}
    return sorted(applied, key=lambda info: places.get(info.code, len(places)))


#: Classes that have a digit each; if there are more, each has a code of two digits.
_DIGITS = 9


def find_setting_faults(
    settings: Sequence[ClassSetting], classes: Sequence[ClassOut], shown: Callable[[str], str]
) -> dict[str, str]:
    """What is wrong with settings of a release's classes, by field and code; ``shown``: a name as the page has it."""
    faults: dict[str, str] = {
        f"name-{code}": Message("belongs to a class that the model release does not have")
        for code in {one.code for one in settings} - {info.code for info in classes}
    }
    owners: dict[tuple[str, str], str] = {}
    for info in apply_settings(settings, classes):
        for field, value in (("name", shown(info.name).casefold()), ("key", info.shortcut.lower())):
            if value and owners.setdefault((field, value), info.code) != info.code:
                taken = owners[field, value]
                faults[f"{field}-{info.code}"] = Message("is already used by the class {code}", code=taken)
    for one in settings:
        key = one.shortcut or "a"
        if len(key) != 1 or not key.isalnum() or key == "0":
            faults[f"key-{one.code}"] = Message("must be a letter or a digit from 1 to 9; other keys are reserved")
        elif key.isdigit() and len(classes) > _DIGITS:
            faults[f"key-{one.code}"] = Message("must be a letter; digits are reserved for class codes")
    return faults


def change_class_settings(
    session: Session,
    keys: AuditKeys,
    principal: Principal,
    settings: Sequence[ClassSetting],
    seen: int,
    classes: Sequence[ClassOut],
) -> int:
    """Set a release's classes by a new version, if the one in force is still the one that was seen."""
    version, before = class_settings(session)
    if apply_settings(settings, classes) == apply_settings(before, classes):
        return version  # a form that came twice, too
    if seen != version:
        raise Conflict("somebody else changed the classes in the meantime; reload the page")
    values = [asdict(one) for one in settings]
    row = ClassSettings(version=version + 1, classes=values, created_by=principal.account_id)
    session.add(row)
    session.flush()
    by_code = {one.code: one for one in before}
    names = [field.name for field in fields(ClassSetting)][1:]
    pairs = [(one, by_code.get(one.code, ClassSetting(one.code))) for one in settings]
    changed = {
        f"{one.code} {name}": [getattr(earlier, name), getattr(one, name)]
        for one, earlier in pairs
        for name in names
        if getattr(earlier, name) != getattr(one, name)
    }
    details = {"order": [one.code for one in settings], "changed": changed}
    events.record_event(
        session, keys, actor=principal.name, action="classes.change", object_id=row.version, details=details
    )
    return row.version


def restored_settings(session: Session, version: int) -> list[ClassSetting]:
    """What an earlier version set; 0: nothing, so that the classes are as the release has them."""
    if version == 0:
        return []
    earlier = select(ClassSettings.classes).where(ClassSettings.version == version)
    classes = session.execute(earlier).scalar_one_or_none()
    if classes is None:
        raise NotFound("there is no such version")
    return [ClassSetting(**one) for one in classes]


def list_class_settings(session: Session) -> list[tuple[ClassSettings, str]]:
    """Every version with the name of who made it, newest first."""
    made_by = select(ClassSettings, Account.name).join(Account, Account.id == ClassSettings.created_by)
    return [(row[0], row[1]) for row in session.execute(made_by.order_by(ClassSettings.version.desc()))]
