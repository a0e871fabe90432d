"""Problem documents (RFC 9457): the error tree, its handlers, and sentences for invalid input."""

import errno
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic_core import ErrorDetails
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.http.descriptions import DescribedModel
from app.http.observability import log_defect
from app.http.routing import walk_routes
from ml.messages import Message, joined, messages

#: By the type of pydantic's error; in braces what its context says.
_WORDS = messages(
    {
        "missing": "is missing",
        "extra_forbidden": "is not a known field",
        "string_too_short": "is empty",
        "string_too_long": "is longer than {max_length:,} characters",
        "string_type": "must be text",
        "too_long": "has more than {max_length:,} entries",
        "uuid_parsing": "is not a valid identifier",
        "uuid_type": "is not a valid identifier",
        "int_parsing": "must be a whole number",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "int_parsing_size": "is too large",
        "float_parsing": "must be a number",
        "float_type": "must be a number",
        "finite_number": "must be a number",
        "bool_parsing": "must be yes or no",
        "date_from_datetime_parsing": "must be a date such as 2026-11-23",
        "date_parsing": "must be a date such as 2026-11-23",
        "literal_error": "must be {expected}",
        "enum": "must be {expected}",
        "greater_than": "must be more than {gt:g}",
        "greater_than_equal": "must be at least {ge:g}",
        "less_than": "must be less than {lt:g}",
        "less_than_equal": "must be at most {le:g}",
        "dict_type": "must be a JSON object of texts",
    }
)
#: What an address that nothing is at is answered.
NOTHING_HERE = Message("there is nothing at this address")


def printable(text: str) -> str:
    """A name as UTF-8 can carry it: a lone surrogate in a key would break the answer."""
    return text.encode("utf-8", "replace").decode()


def describe_fault(fault: ErrorDetails) -> str:
    """Describe one of pydantic's errors as the end of a sentence about the value.

    >>> describe_fault({"type": "int_parsing", "msg": "Input should be a valid integer, unable to parse string"})
    'must be a whole number'
    >>> describe_fault({"type": "literal_error", "msg": "", "ctx": {"expected": "'ipw' or 'none'"}})
    'must be ipw or none'
    """
    values = {**fault.get("ctx", {})}
    if fault.get("type") == "value_error" and isinstance(values.get("error"), ValueError):
        return str(values["error"])
    if "expected" in values:
        values["expected"] = str(values["expected"]).replace("'", "")
    try:
        return Message(_WORDS[fault["type"]], **values)
    except (KeyError, ValueError):  # unknown, without a type, or of another version of the library
        return fault["msg"]


def describe_named_fault(fault: ErrorDetails) -> str:
    """Describe an error with the name of its value.

    >>> describe_named_fault({"type": "missing", "loc": ("query", "site"), "msg": "Field required"})
    'site is missing'
    """
    place = fault["loc"]
    return joined(" ", [printable(str(place[-1])), describe_fault(fault)]) if place else describe_fault(fault)


def describe_fault_on_page(fault: ErrorDetails) -> str:
    """Describe an error for a person at a browser, without parts of the address.

    >>> fault = {"type": "uuid_parsing", "loc": ("path", "case_id"), "msg": "Input should be a valid UUID"}
    >>> describe_fault_on_page(fault)
    'there is nothing at this address; check it for typing errors'
    """
    if fault["loc"][:1] == ("path",):
        return Message("{nothing_here}; check it for typing errors", nothing_here=NOTHING_HERE)
    return describe_named_fault(fault)


# of PostgreSQL: a lock did not come, two waited for each other
_LOCKED = {"55P03", "40P01"}


def is_lock_conflict(exc: DBAPIError) -> bool:
    """Whether the error is a lock conflict, so that the caller may wait again."""
    return getattr(exc.orig, "sqlstate", None) in _LOCKED or "database is locked" in str(exc.orig)


def is_retryable_error(exc: DBAPIError) -> bool:
    """Whether the database was away, locked or full, or has ended the connection."""
    # PostgreSQL ends it where a thread was kept from the processor for too long within a transaction.
    return isinstance(exc, OperationalError) or exc.connection_invalidated


PROBLEM_JSON = "application/problem+json"
TYPE_PREFIX = "urn:secondread:problem:"


class Fault(DescribedModel):
    """A value that is not acceptable: its place in the request, and what is wrong with it."""

    where: list[str | int]
    what: str


class ProblemDocument(DescribedModel):
    """RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


class Problem(Exception):
    """An error that a caller may see."""

    status = 500
    code = "internal"
    title = "Internal error"
    retry_after: int | None = None

    def __init__(self, detail: str, /, **values: object) -> None:
        self.detail = Message(detail, **values) if values else detail
        #: By the field of a form what is wrong with it; an empty name for the form as a whole.
        self.faults: dict[str, str] = {"": self.detail}
        super().__init__(self.detail)


class BadRequest(Problem):
    """The request cannot be understood."""

    status, code, title = 400, "bad-request", "Bad request"


class Unauthenticated(Problem):
    """Nobody known is calling."""

    status, code, title = 401, "unauthenticated", "Not signed in"


class Forbidden(Problem):
    """The caller may not do this."""

    status, code, title = 403, "forbidden", "Not allowed"


class NotFound(Problem):
    """There is no such thing, or the caller may not know of it."""

    status, code, title = 404, "not-found", "Not found"


class Conflict(Problem):
    """The request contradicts what is stored."""

    status, code, title = 409, "conflict", "Conflict"


class PreconditionFailed(Problem):
    """What the caller wants to change is not what it saw."""

    status, code, title = 412, "precondition-failed", "Changed in the meantime"


class PreconditionRequired(Problem):
    """A change came without If-Match."""

    status, code, title = 428, "precondition-required", "If-Match missing"


class TooLarge(Problem):
    """The body or the picture is too large."""

    status, code, title = 413, "too-large", "Too large"


class InvalidValue(Problem):
    """A value is not acceptable."""

    status, code, title = 422, "invalid", "Invalid request"


class ServiceOverloaded(Problem):
    """Too many requests wait."""

    status, code, title, retry_after = 429, "overloaded", "Too many requests", 2

    def __init__(self, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after or self.retry_after


class RateLimited(ServiceOverloaded):
    """One caller sends more requests than the settings allow."""

    code, title, retry_after = "rate-limited", "Too many requests from this caller", 60


class ServiceUnavailable(Problem):
    """A part of the service cannot answer just now."""

    status, code, title, retry_after = 503, "unavailable", "Unavailable", 5


class NoRelease(ServiceUnavailable):
    """No release is served yet."""

    code, title = "no-release", "No release"


class StorageFull(Problem):
    """Too little space is left for uploads."""

    status, code, title = 507, "storage-full", "Storage full"


#: Errors that any route under /v1 may answer.
COMMON: tuple[type[Problem], ...] = (
    Unauthenticated,
    Forbidden,
    InvalidValue,
    ServiceOverloaded,
    RateLimited,
    ServiceUnavailable,
)


def list_problem_responses(*problems: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of a route's errors, the common ones included."""
    entries: dict[int | str, dict[str, Any]] = {}
    for problem in dict.fromkeys((*COMMON, *problems)):
        entry = entries.setdefault(problem.status, {"model": ProblemDocument, "description": ""})
        entry["description"] = ", ".join(part for part in (entry["description"], problem.code) if part)
        entry["content"] = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
        if problem.retry_after is not None:
            entry["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return entries


def problem_response(problem: Problem, errors: list[Fault] | None = None) -> JSONResponse:
    """Answer a problem."""
    document = ProblemDocument(
        type=TYPE_PREFIX + problem.code,
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        errors=errors,
    ).model_dump(mode="json", exclude={"errors"} if errors is None else None)
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(document, problem.status, headers, PROBLEM_JSON)


def _make_fault(place: Sequence[str | int], what: str) -> Fault:
    return Fault(where=[printable(part) if isinstance(part, str) else part for part in place], what=printable(what))


def answer_problem(request: Request, problem: Problem, errors: list[Fault] | None = None) -> Response:
    """A problem as a page where a person asked for one, else as a document."""
    render: PageRenderer | None = request.app.state.problem_page
    page = None if render is None else render(request, problem)
    return problem_response(problem, errors) if page is None else page


def _on_validation(request: Request, exc: RequestValidationError) -> Response:
    """Answer a validation error by place and reason, without repeating the input."""
    faults = [error | {"msg": error["msg"].removeprefix("Value error, ")} for error in exc.errors()]
    errors = [_make_fault(error["loc"], error["msg"]) for error in faults]
    render: PageRenderer | None = request.app.state.problem_page
    problem = InvalidValue(joined("; ", list(dict.fromkeys(map(describe_fault_on_page, faults)))[:3]))
    problem.faults = {printable(str(error["loc"][-1])): describe_fault(error) for error in reversed(faults)}
    page = None if render is None else render(request, problem)
    return page or problem_response(InvalidValue("one or more values are invalid; see errors"), errors)


_PHRASES: dict[int, type[Problem]] = {
    p.status: p for p in (BadRequest, NotFound, TooLarge, InvalidValue, Unauthenticated)
}


class FrameworkProblem(Problem):
    """An HTTP error of the framework without a class here, by its status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status, self.title = status, status.phrase
        self.code = status.phrase.lower().replace(" ", "-")


def _on_http(request: Request, exc: HTTPException) -> Response:
    status = HTTPStatus(exc.status_code)
    kind, detail = _PHRASES.get(status), NOTHING_HERE if status == HTTPStatus.NOT_FOUND else status.phrase
    response = answer_problem(request, FrameworkProblem(status) if kind is None else kind(detail))
    response.headers.update(exc.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(_list_allowed_methods(request))
    return response


def _list_allowed_methods(request: Request) -> list[str]:
    """Methods of every route of a request's path; the framework names those of the first one only."""
    scope = dict(request.scope) | {"method": "GET"}
    met = (route.methods or () for route in walk_routes(request.app) if route.matches(scope)[0] is not Match.NONE)
    return sorted(set().union(*met))


def _on_database(request: Request, exc: DBAPIError) -> Response:
    """A database that is away, locked or full, or a collision, is a reason to try again; the rest is a defect."""
    if isinstance(exc, IntegrityError):
        return answer_problem(request, ServiceUnavailable("another request stored the same data; send yours again"))
    if is_retryable_error(exc):
        return answer_problem(request, ServiceUnavailable("the database is unavailable; try again"))
    raise exc


def _on_pool(request: Request, _: PoolTimeout) -> Response:
    return answer_problem(request, ServiceUnavailable("the database is overloaded; try again"))


def _on_system(request: Request, exc: OSError) -> Response:
    """Answer a full or read-only disk; re-raise anything else."""
    if exc.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
        raise exc
    return answer_problem(request, StorageFull("the disk is full or read-only"))


def on_defect(request: Request, exc: Exception) -> Response:
    """Answer an unexpected error with a reference to the server's log only."""
    return answer_problem(
        request, Problem("the service failed and stored nothing; reference {exc}", exc=log_defect(exc))
    )


#: Draws a problem as a page where a person asked for one, else returns None.
PageRenderer = Callable[[Request, Problem], Response | None]


_Error = TypeVar("_Error", bound=Exception)


def install_error_handlers(app: FastAPI, problem_page: PageRenderer | None = None) -> None:
    """Answer every error of the tree, of validation and of the framework as a problem document, or as a page."""

    def answer(kind: type[_Error], handler: Callable[[Request, _Error], Response]) -> None:
        app.add_exception_handler(kind, cast(Callable[[Request, Exception], Response], handler))

    app.state.problem_page = problem_page
    answer(Problem, answer_problem)
    answer(RequestValidationError, _on_validation)
    answer(HTTPException, _on_http)
    answer(DBAPIError, _on_database)
    answer(PoolTimeout, _on_pool)
    answer(OSError, _on_system)
    answer(Exception, on_defect)
