"""What both clients share: requests, answers, errors, and when to send a request again."""

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from secondread.client.models import Fault, JobOut, ProblemDocument

Model = TypeVar("Model", bound=BaseModel)
#: Of a parameter of a path: identifiers are given as they came, or as UUID.
Id = str | uuid.UUID | int
Value = str | int | float | bool | None
_PREFIX = "urn:secondread:problem:"
_SHOWN = 200
_WAIT, _LONGEST_WAIT = 0.5, 30.0
#: Statuses after which nothing was stored and another try is welcome.
_AGAIN = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


class ApiError(Exception):
    """The service refused a request.

    Args:
        status: of the answer.
        code: of the problem, which never changes (``lease-lost``); empty where somebody else answered, as a proxy does.
        title: for people.
        detail: what was wrong and what to do.
        faults: values that are not acceptable, each with its place.
    """

    def __init__(self, status: int, code: str, title: str, detail: str, faults: tuple[Fault, ...] = ()) -> None:
        said = "".join(f"; {'.'.join(map(str, fault.where))}: {fault.what}" for fault in faults)
        super().__init__(f"{status} {code or title}: {detail}{said}")
        self.status, self.code, self.title, self.detail, self.faults = status, code, title, detail, faults


@dataclass(frozen=True)
class Request:
    """What is sent, as often as it takes; ``stores`` needs an Idempotency-Key, which is then the same for every try."""

    method: str
    path: str
    query: Mapping[str, Value] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: BaseModel | None = None
    data: Mapping[str, str | None] | None = None
    # by field: a file, or several by their names
    files: Mapping[str, bytes | Mapping[str, bytes] | None] | None = None
    content: bytes | None = None
    kind: str | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again when nobody knows what became of it."""
        return self.method in {"GET", "POST"}


def new_key() -> str:
    """An Idempotency-Key."""
    return uuid.uuid4().hex


def options(request: Request, api_key: str | None) -> dict[str, object]:
    """A request as httpx2 takes it."""
    headers = {name: value for name, value in request.headers.items() if value is not None}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    if request.kind is not None:
        headers["Content-Type"] = request.kind
    taken: dict[str, object] = {"headers": headers, "params": {k: v for k, v in request.query.items() if v is not None}}
    if request.body is not None:
        headers["Content-Type"] = "application/json"
        taken["content"] = request.body.model_dump_json(exclude_unset=True).encode()
    elif request.content is not None:
        taken["content"] = request.content
    if request.files is not None:
        several = {name: data if isinstance(data, Mapping) else {name: data} for name, data in request.files.items()}
        taken["files"] = [
            (n, (file, data)) for n, files in several.items() for file, data in files.items() if data is not None
        ]
        taken["data"] = {name: value for name, value in (request.data or {}).items() if value is not None}
    return taken


def pause(request: Request, answer: httpx2.Response | None, attempt: int, tries: int) -> float | None:
    """Seconds to wait before the next try, None where there is none.

    Args:
        request: that was sent.
        answer: to it; None where the connection broke.
        attempt: how many tries there were.
        tries: how many there may be.
    """
    again = request.may_repeat if answer is None else answer.status_code in _AGAIN
    if not again or attempt >= tries:
        return None
    asked = "" if answer is None else answer.headers.get("Retry-After", "")
    if asked.isdigit():
        return min(float(asked), _LONGEST_WAIT)
    return min(_WAIT * 2.0 ** (attempt - 1), _LONGEST_WAIT) * random.uniform(0.5, 1)  # noqa: S311


def checked(answer: httpx2.Response) -> httpx2.Response:
    """The answer to a request that the service took.

    Raises:
        ApiError: it refused, or something else answered, such as a proxy that leads to its sign-in page.
    """
    if answer.is_success:
        return answer
    try:
        problem = ProblemDocument.model_validate_json(answer.content)
    except ValidationError:
        phrase = answer.reason_phrase or str(answer.status_code)
        raise ApiError(answer.status_code, "", phrase, answer.text[:_SHOWN]) from None
    code = problem.type.removeprefix(_PREFIX)
    raise ApiError(answer.status_code, code, problem.title, problem.detail, tuple(problem.errors or ()))


def parsed(model: type[Model], answer: httpx2.Response) -> Model:
    """The answer's document.

    Raises:
        ApiError: it is another one.
    """
    try:
        return model.model_validate_json(answer.content)
    except ValidationError:
        detail = f"not the document of the service: {answer.text[:_SHOWN]}"
        raise ApiError(answer.status_code, "", f"no {model.__name__}", detail) from None


def parsed_or_job(model: type[Model], answer: httpx2.Response) -> Model | JobOut:
    """The answer's document, or the job that goes on after the answer."""
    return parsed(JobOut, answer) if answer.status_code == HTTPStatus.ACCEPTED else parsed(model, answer)


def texts(metadata: Mapping[str, str] | None) -> str | None:
    """Metadata of a case as its form has them."""
    return None if metadata is None else json.dumps(dict(metadata), ensure_ascii=False)
