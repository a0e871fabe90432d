"""Form tokens, form fields and opaque ids in page paths."""

import hmac
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Form, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from app.audit.chain.keys import AnnotatorKeys
from app.database.idempotency import Once
from app.http.errors import Forbidden, InvalidValue, NotFound, describe_fault
from app.http.languages import class_name, translate_sentence
from app.http.models import ClassOut, PageText
from app.http.principal import Principal
from app.releases.service import ClassSetting, find_setting_faults
from app.reports.service import TargetsIn
from app.triage.service import AMOUNT_OF_RULE, PolicyIn, PolicyOut, ReportingGroupOut, UrgentClassOut
from ml.messages import Message


class OtherAccount(Forbidden):
    """A form comes from a page that was made for somebody else, who used the same browser."""

    code, title = "other-account", "Another person is signed in"


_HANDLE = re.compile(r"([0-9a-f]{32}\.[0-9a-f]{32})(?:\.([0-9]{1,6}))?")


def _page_digest(keys: AnnotatorKeys, *parts: bytes) -> str:
    return keys.pages.digest(b":".join(parts)).hex()[:32]


def case_number(case_id: uuid.UUID) -> str:
    """Short number of a case that says nothing about its content, unlike a file name."""
    return case_id.hex[-6:].upper()


def account_handle(keys: AnnotatorKeys, account_id: uuid.UUID) -> str:
    """Opaque name of an account for its own browser."""
    return _page_digest(keys, b"account", account_id.bytes)


def require_account(keys: AnnotatorKeys, principal: Principal, handle: str) -> None:
    """Refuse a form of a page that was made for another person, who used the same browser."""
    if handle != account_handle(keys, principal.account_id):
        raise OtherAccount("another person opened this page and must sign in again to continue")


def read_handle(keys: AnnotatorKeys, account_id: uuid.UUID, read_id: uuid.UUID) -> str:
    """Opaque name of a read for the pages of its annotator."""
    return f"{read_id.hex}.{_page_digest(keys, b'read', account_id.bytes, read_id.bytes)}"


def correction_handle(keys: AnnotatorKeys, account_id: uuid.UUID, read_id: uuid.UUID, position: int) -> str:
    """Opaque name of the answer that a correction replaces, by its position in the chain."""
    return f"{read_handle(keys, account_id, read_id)}.{position}"


def read_of_handle(keys: AnnotatorKeys, principal: Principal, handle: str) -> uuid.UUID:
    """The read that a form of this caller's pages is about."""
    read_id, position = answer_of_handle(keys, principal, handle)
    if position is not None:
        raise NotFound("there is no such read")
    return read_id


def answer_of_handle(keys: AnnotatorKeys, principal: Principal, handle: str) -> tuple[uuid.UUID, int | None]:
    """The read that a form of this caller's pages answers, and the place of the answer that it replaces, if any."""
    parts = _HANDLE.fullmatch(handle)
    if parts is None:
        raise NotFound("there is no such read")
    read_id = uuid.UUID(hex=parts[1].split(".")[0])
    if not hmac.compare_digest(parts[1], read_handle(keys, principal.account_id, read_id)):
        raise OtherAccount("another person opened this page and must sign in again to answer")
    return read_id, None if parts[2] is None else int(parts[2])


@dataclass(frozen=True)
class TypedForm:
    """A form as a page shows it: as stored, or after a refusal with what was typed and what is wrong with it."""

    path: str = ""
    typed: FormData = field(default_factory=FormData)
    # by field; an empty name for the form as a whole
    faults: Mapping[str, str] = field(default_factory=dict)

    def at(self, path: str, **fields: object) -> "TypedForm":
        """The form that posts to a path, with these values where several forms do; as stored unless it was refused."""
        mine = path == self.path and all(self.typed.get(name) == str(value) for name, value in fields.items())
        return self if mine else TypedForm()

    def value(self, name: str, stored: object = "") -> object:
        """What a field shows."""
        return self.typed.get(name, "") if self.path else stored


_BACK_TO = "back_to"
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Response])


def back_to(show: Callable[..., Response], fields: Mapping[str, str] = {}) -> Callable[[_Endpoint], _Endpoint]:
    """A refused form of this route comes back on the page that ``show`` draws; ``fields`` renames those of faults."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _BACK_TO, (show, fields))
        return endpoint

    return mark


def page_of_form(request: Request) -> tuple[Callable[..., Response], Mapping[str, str]] | None:
    """The page that a refused form comes back on, and the names of its fields; None for other routes."""
    back_to: tuple[Callable[..., Response], Mapping[str, str]] | None
    back_to = getattr(request.scope.get("endpoint"), _BACK_TO, None)
    return back_to


_Model = TypeVar("_Model", bound=BaseModel)


class WrongFields(InvalidValue):
    """Fields of a form that are not acceptable."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        sentences = [
            f"{name.replace('_', ' ')} {translate_sentence(what)}" if name else what for name, what in faults.items()
        ]
        super().__init__("; ".join(sentences))
        self.faults = dict(faults)


def require_reason(text: str) -> str:
    """A reason that somebody typed, which must say something."""
    if not text.strip():
        problem = InvalidValue("give a reason")
        problem.faults = {"reason": problem.detail}
        raise problem
    return text.strip()


class MoveForm(BaseModel):
    """The form of a release's page that makes it champion or challenger."""

    model_config = ConfigDict(extra="forbid")

    alias: Literal["champion", "challenger"]
    listed: bool = False  # whether it stands on the page of all releases
    revision: int = Field(ge=0, le=2**31 - 1)
    despite_gate: bool = False
    reason: PageText = Field("", max_length=2000)
    password: PageText = Field("", max_length=300, repr=False)


async def _once_by_form(request: Request, form_key: Annotated[PageText, Form(max_length=64)] = "") -> Once:
    if not form_key:
        raise InvalidValue("the form was incomplete; reload the page")
    return Once.of(request, form_key)


#: Of a route that does what a form asks for once, however often a browser sends it.
IdempotentForm = Annotated[Once, Depends(_once_by_form)]


def validate_form(model: type[_Model], **values: Any) -> _Model:
    """Validate a form's values by a model of the API."""
    try:
        return model(**values)
    except ValidationError as exc:
        faults: dict[str, str] = {}
        for fault in exc.errors():
            faults.setdefault(str(fault["loc"][0]) if fault["loc"] else "", describe_fault(fault))
        raise WrongFields(faults) from exc


def as_number(text: str) -> str:
    """A number as typed, with a decimal comma or a point.

    >>> as_number(" 0,2 "), as_number("1,000.5"), as_number("two")
    ('0.2', '1,000.5', 'two')
    """
    text = text.strip()
    whole, comma, rest = text.partition(",")
    if comma and rest.isdigit() and whole.removeprefix("-").isdigit():
        return f"{whole}.{rest}"
    return text


@dataclass(frozen=True)
class UrgentRow:
    """A class that brings a patient's cells forward, in the form of the policy, as typed."""

    code: str = ""
    above: str = ""
    hours: str = ""

    @classmethod
    def of(cls, rule: UrgentClassOut) -> "UrgentRow":
        """The row of a stored rule."""
        return cls(rule.class_code, _as_percent(rule.above), str(rule.hours))

    @classmethod
    def typed(cls, form: FormData) -> "list[UrgentRow]":
        """The rows of a form that was refused."""
        return [cls(*row) for row in _typed_rows(form, "urgent_class", "urgent_above", "urgent_hours")]


_NUMBER = r"(\d+(?:[.,]\d+)?)"
_THRESHOLD = re.compile(rf"\s*{_NUMBER}\s*[%％](?:\s*[×xX*]\s*{_NUMBER})?\s*(?:[,;、]|$)")


@dataclass(frozen=True)
class GroupRow:
    """A reporting group in the form of the policy, as typed."""

    name: str = ""
    classes: str = ""
    thresholds: str = ""

    @classmethod
    def of(cls, group: ReportingGroupOut) -> "GroupRow":
        """The row of a stored group."""
        thresholds = [
            f"{_as_percent(one.at)}%" + ("" if one.miss_cost == 1 else f" × {_as_plain(one.miss_cost)}")
            for one in group.thresholds
        ]
        return cls(group.group, ", ".join(group.classes), ", ".join(thresholds))

    @classmethod
    def typed(cls, form: FormData) -> "list[GroupRow]":
        """The rows of a form that was refused."""
        return [cls(*row) for row in _typed_rows(form, "group_name", "group_classes", "group_thresholds")]

    def parts(self) -> tuple[str, list[str], list[tuple[float, str]]]:
        """Its name, the codes of its classes, and its thresholds with their costs."""
        name, codes = self.name.strip(), [code.strip() for code in self.classes.split(",") if code.strip()]
        if not (name and codes):
            fault = Message("has a row without a name or classes; add them or empty the row")
            raise WrongFields({"reporting_groups": fault})
        return name, codes, self._read_thresholds()

    def _read_thresholds(self) -> list[tuple[float, str]]:
        # A per cent sign ends each share, so that a decimal comma never looks like the comma between two of them.
        found, place = [], 0
        while place < len(self.thresholds.rstrip()):
            one = _THRESHOLD.match(self.thresholds, place)
            at = 0.0 if one is None else float(_from_percent(as_number(one[1])))
            if one is None or not 0 < at < 1:
                fault = Message("needs thresholds between 0 and 100% for {name}, such as 5% × 10, 20%", name=self.name)
                raise WrongFields({"reporting_groups": fault})
            found.append((at, as_number(one[2] or "1")))
            place = one.end()
        return found


#: Rows for urgent classes that the form of the policy has at least, and empty ones for further reporting groups.
URGENT_ROWS, MORE_GROUPS = 2, 2


_NUMBERS = {"threshold", "audit_rate", "target_error", "adjudicate_below", "repeat_rate"}


_Texts = Annotated[list[Annotated[PageText, Field(max_length=100)]], Field(max_length=1000)]
_LongTexts = Annotated[list[Annotated[PageText, Field(max_length=20_000)]], Field(max_length=100)]
# fields of which each has a value in every row
_ROWS = ("urgent_", "group_")


def _typed_rows(form: FormData, *names: str) -> list[tuple[str, ...]]:
    columns = (form.getlist(name) for name in names)
    return [tuple(map(str, row)) for row in zip(*columns, strict=False)]


def _rows_of(*columns: list[str]) -> list[tuple[str, ...]]:
    try:
        return list(zip(*columns, strict=True))
    except ValueError as exc:
        raise InvalidValue("the form was incomplete; reload the page") from exc


class PolicyForm(BaseModel):
    """The policy page's form: texts as typed; an empty field takes its default, except the one for adjudication."""

    model_config = ConfigDict(extra="forbid")

    rule: str = ""
    threshold: str = ""
    capacity_per_day: str = ""
    reads_per_specimen: str = ""
    specimen_goal: str = ""
    audit_rate: str = ""
    target_error: str = ""
    adjudicate_below: str = ""
    max_labels: str = ""
    reveal: str = ""
    lease_seconds: str = ""
    due_days: str = ""
    repeat_rate: str = ""
    draw_readers: str = ""
    require_qualification: str = ""
    urgent_class: _Texts = []
    urgent_above: _Texts = []
    urgent_hours: _Texts = []
    group_name: _LongTexts = []
    group_classes: _LongTexts = []
    group_thresholds: _LongTexts = []
    reason: str = ""

    def policy(self) -> PolicyIn:
        """The new version of the policy."""
        needed = AMOUNT_OF_RULE.get(self.rule, "threshold")
        unused = {"threshold", *AMOUNT_OF_RULE.values()} - {needed}
        if self.rule != "specimen_value":
            unused.add("specimen_goal")
        texts = {name: text for name, text in self if not name.startswith(_ROWS)}
        typed = {name: as_number(text) if name in _NUMBERS else text for name, text in texts.items()}
        values = {name: text for name, text in typed.items() if text != "" and name not in unused}
        if needed not in values:
            raise WrongFields({needed: Message("is needed by this rule")})
        rows = [row for row in _rows_of(self.urgent_class, self.urgent_above, self.urgent_hours) if any(row)]
        if not all(code for code, _, _ in rows):
            raise WrongFields({"urgent": Message("has a row without a class; choose one or empty the row")})
        urgent = [
            {"class": code, "above": _from_percent(as_number(above)), "hours": hours} for code, above, hours in rows
        ]
        groups = [
            {"group": name, "classes": codes, "thresholds": [{"at": at, "miss_cost": cost} for at, cost in thresholds]}
            for name, codes, thresholds in self._groups()
        ]
        return validate_form(PolicyIn, **{"adjudicate_below": None} | values, urgent=urgent, reporting_groups=groups)

    def _groups(self) -> list[tuple[str, list[str], list[tuple[float, str]]]]:
        rows = _rows_of(self.group_name, self.group_classes, self.group_thresholds)
        groups = [GroupRow(*row).parts() for row in rows if any(map(str.strip, row))]
        if self.rule == "specimen_value" and not any(
            len(group[2]) or self.specimen_goal == "share" for group in groups
        ):
            fault = Message("needs a group for this rule, with a threshold if cells are chosen for the decision")
            raise WrongFields({"reporting_groups": fault})
        return groups

    @classmethod
    def of(cls, policy: PolicyOut) -> "PolicyForm":
        """Fill the form from a version of the policy, without a reason."""
        names = [name for name in cls.model_fields if name != "reason" and not name.startswith(_ROWS)]
        return cls(**{name: _format_form_value(getattr(policy, name)) for name in names})


def _format_form_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


@dataclass(frozen=True)
class ClassRow:
    """A class in the form of the classes' page, as typed."""

    code: str
    place: str
    name: str
    group: str
    key: str

    @classmethod
    def of(cls, place: int, info: ClassOut) -> "ClassRow":
        """Fill the row of a class, in the language of the page."""
        return cls(info.code, str(place), class_name(info.name), class_name(info.group), info.shortcut)

    @classmethod
    def typed(cls, form: FormData) -> "list[ClassRow]":
        """The rows of a form that was refused."""
        return [cls(*row) for row in _typed_rows(form, "code", "place", "name", "group", "key")]

    def setting(self, info: ClassOut | None) -> ClassSetting:
        """What is set: nothing where the text is that of the release, which pages translate; no empty name."""
        released = self if info is None else ClassRow.of(0, info)
        typed = (self.name.strip(), self.group.strip(), self.key.strip().lower())
        before = (released.name, released.group, released.key.lower())
        name, group, key = (
            None if now == was and info is not None else now for now, was in zip(typed, before, strict=True)
        )
        return ClassSetting(self.code, name or None, group, key)


class ClassesForm(BaseModel):
    """The form of the classes' page: texts as typed, each field in the order of the rows."""

    model_config = ConfigDict(extra="forbid")

    version: int = Field(ge=0, le=2**31 - 1)
    code: _Texts = []
    place: _Texts = []
    name: _Texts = []
    group: _Texts = []
    key: _Texts = []

    def rows(self) -> list[ClassRow]:
        """One row for each class."""
        return [ClassRow(*row) for row in _rows_of(self.code, self.place, self.name, self.group, self.key)]

    def settings(self, released: Sequence[ClassOut]) -> list[ClassSetting]:
        """Settings of a release's classes in their new order; what is wrong stands by field and code."""
        rows, by_code = self.rows(), {info.code: info for info in released}
        faults: dict[str, str] = {
            f"place-{row.code}": Message("must be a whole number from 1 to {n}", n=len(rows))
            for row in rows
            if not (row.place.strip().isdecimal() and 1 <= int(row.place) <= len(rows))
        }
        settings = [row.setting(by_code.get(row.code)) for row in rows]
        faults |= find_setting_faults(settings, released, class_name)
        if faults:
            raise WrongFields(faults)
        return [settings[at] for at in move_rows([int(row.place) for row in rows])]


def move_rows(places: Sequence[int]) -> list[int]:
    """Order of rows by the places that are typed, from 1: a row that moves stands there, and the others make room.

    >>> move_rows([1, 4, 3, 4]), move_rows([1, 2, 1, 4]), move_rows([2, 1])
    ([0, 2, 3, 1], [2, 0, 1, 3], [1, 0])
    """
    steps = [place - at for at, place in enumerate(places, 1)]
    return sorted(range(len(places)), key=lambda at: (places[at], (steps[at] > 0) - (steps[at] < 0), at))


class TargetsForm(BaseModel):
    """The report page's form of targets: shares in per cent, as people type them."""

    model_config = ConfigDict(extra="forbid")

    disagreement_gap: str = ""
    leading_gap: str = ""
    caught: str = ""
    agreement: str = ""
    hours: str = ""
    reason: str = ""

    def targets(self) -> TargetsIn:
        """The new targets; an empty field takes its default."""
        typed = {name: as_number(text) for name, text in self.model_dump(exclude={"reason"}).items()}
        values = {name: text if name == "hours" else _from_percent(text) for name, text in typed.items() if text}
        return validate_form(TargetsIn, **values, reason=self.reason)


def _from_percent(text: str) -> float | str:
    """Convert a percentage to a share; other text is returned unchanged for the model to reject."""
    try:
        return float(Decimal(text) / 100)
    except InvalidOperation:
        return text


def _as_plain(number: float) -> str:
    """A number with all its digits, as people type it.

    >>> _as_plain(10.0), _as_plain(0.00001), _as_percent(0.07), _as_percent(0.0123456789)
    ('10', '0.00001', '7', '1.23456789')
    """
    return format(Decimal(repr(number)).normalize(), "f")


def _as_percent(share: float) -> str:
    return format((Decimal(repr(share)) * 100).normalize(), "f")


def share_of(name: str, typed: str) -> float | None:
    """A place that was typed in per cent, as a share."""
    try:
        percent = float(as_number(typed)) if typed.strip() else None
    except ValueError:
        percent = -1.0
    if percent is not None and not 0 <= percent <= 100:
        raise WrongFields({name: Message("must be a number from 0 to 100")})
    return None if percent is None else percent / 100
