"""Problem documents (RFC 9457): the error tree, its handlers, and sentences for invalid input.

::

    Problem                     status, stable type, title; detail says what to do
    ├── BadRequest              400  bad-request
    │   └── KeyMissing          400  idempotency-key-missing
    ├── Unauthenticated         401  unauthenticated
    ├── Forbidden               403  forbidden
    │   ├── BlindReadPending    403  blind-read-pending
    │   ├── OtherAccount        403  other-account
    │   └── CrossSite           403  cross-site-request
    ├── NotFound                404  not-found
    ├── Conflict                409  conflict
    │   ├── AlreadyLabelled     409  already-labelled
    │   ├── Superseded          409  superseded
    │   ├── LeaseLost           409  lease-lost
    │   ├── LabelFinal          409  label-final
    │   ├── TooManyLeases       409  too-many-leases
    │   └── OtherImage          409  external-id-taken
    ├── PreconditionFailed      412  precondition-failed
    ├── TooLarge                413  too-large
    ├── UnsupportedImage        415  unsupported-image
    ├── Invalid                 422  invalid
    │   ├── BrokenImage         422  broken-image
    │   └── KeyReused           422  idempotency-key-reused
    ├── PreconditionRequired    428  precondition-required
    ├── Overloaded              429  overloaded           Retry-After
    │   └── RateLimited         429  rate-limited         Retry-After
    ├── Unavailable             503  unavailable          Retry-After
    │   └── NoRelease           503  no-release           Retry-After
    └── StorageFull             507  storage-full
"""

import errno
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from pydantic_core import ErrorDetails
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.http.observability import log_defect
from app.http.routing import walk_routes
from ml.messages import Message, joined, messages

#: By the type of pydantic's error; in braces what its context says.
_WORDS = messages(
    {
        "missing": "is missing",
        "extra_forbidden": "is not known here",
        "string_too_short": "is empty",
        "string_too_long": "is longer than {max_length:,} characters",
        "string_type": "must be text",
        "too_long": "has more than {max_length:,} entries",
        "uuid_parsing": "is no identifier",
        "uuid_type": "is no identifier",
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


def in_words(fault: ErrorDetails) -> str:
    """One of pydantic's errors as the end of a sentence about the value.

    >>> in_words({"type": "int_parsing", "msg": "Input should be a valid integer, unable to parse string"})
    'must be a whole number'
    >>> in_words({"type": "literal_error", "msg": "", "ctx": {"expected": "'ipw' or 'none'"}})
    'must be ipw or none'
    """
    values = {**fault.get("ctx", {})}
    if fault["type"] == "value_error" and isinstance(values.get("error"), ValueError):
        return str(values["error"])
    if "expected" in values:
        values["expected"] = str(values["expected"]).replace("'", "")
    try:
        return Message(_WORDS[fault["type"]], **values)
    except (KeyError, ValueError):  # unknown, or of a version of the library that says it otherwise
        return fault["msg"]


def sentence_of(fault: ErrorDetails) -> str:
    """The same with the name of the value.

    >>> sentence_of({"type": "missing", "loc": ("query", "site"), "msg": "Field required"})
    'site is missing'
    """
    place = fault["loc"]
    return joined(" ", [printable(str(place[-1])), in_words(fault)]) if place else in_words(fault)


def sentence_on_page(fault: ErrorDetails) -> str:
    """The same for a person at a browser, who types no part of an address.

    >>> sentence_on_page({"type": "uuid_parsing", "loc": ("path", "case_id"), "msg": "Input should be a valid UUID"})
    'there is nothing at this address: it may be cut off or mistyped'
    """
    if fault["loc"][:1] == ("path",):
        return Message("{nothing_here}: it may be cut off or mistyped", nothing_here=NOTHING_HERE)
    return sentence_of(fault)


# of PostgreSQL: a lock did not come, two waited for each other
_LOCKED = {"55P03", "40P01"}


def others_were_busy(exc: DBAPIError) -> bool:
    """Whether others had what somebody waited for, who may wait again."""
    return getattr(exc.orig, "sqlstate", None) in _LOCKED or "database is locked" in str(exc.orig)


def took_too_long(exc: DBAPIError) -> bool:
    """Whether PostgreSQL ended a statement for its time, of which waiting for rows, one after the other, is a part."""
    return getattr(exc.orig, "sqlstate", None) == "57014"


def may_be_tried_again(exc: DBAPIError) -> bool:
    """Whether the database was away, locked or full, or has ended the connection.

    PostgreSQL ends it where a thread was kept from the processor for too long within a transaction.
    """
    return isinstance(exc, OperationalError) or exc.connection_invalidated


PROBLEM_JSON = "application/problem+json"
TYPE_PREFIX = "urn:secondread:problem:"


class Fault(BaseModel):
    """A value that is not acceptable: its place in the request, and what is wrong with it."""

    where: list[str | int]
    what: str


class ProblemDocument(BaseModel):
    """RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


class Problem(Exception):
    """An error that a caller may see.

    Args:
        detail: what was wrong and what to do; must not repeat the caller's input.
    """

    status = 500
    code = "internal"
    title = "Internal error"
    retry_after: int | None = None

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class BadRequest(Problem):
    """The request cannot be understood."""

    status, code, title = 400, "bad-request", "Bad request"


class KeyMissing(BadRequest):
    """A POST that stores something came without an Idempotency-Key."""

    code, title = "idempotency-key-missing", "Idempotency-Key missing"


class Unauthenticated(Problem):
    """Nobody known is calling."""

    status, code, title = 401, "unauthenticated", "Not signed in"


class Forbidden(Problem):
    """The caller may not do this."""

    status, code, title = 403, "forbidden", "Not allowed"


class BlindReadPending(Forbidden):
    """An annotator asks for what would unblind a read that is yet to be made."""

    code, title = "blind-read-pending", "Blind read pending"


class OtherAccount(Forbidden):
    """A form comes from a page that was made for somebody else, who used the same browser."""

    code, title = "other-account", "Somebody else is signed in"


class CrossSite(Forbidden):
    """A browser sent a form from another site."""

    code, title = "cross-site-request", "Cross-site request"


class NotFound(Problem):
    """There is no such thing, or the caller may not know of it."""

    status, code, title = 404, "not-found", "Not found"


class Conflict(Problem):
    """The request contradicts what is stored."""

    status, code, title = 409, "conflict", "Conflict"


class AlreadyLabelled(Conflict):
    """An annotator labels a case twice."""

    code, title = "already-labelled", "Already labelled"


class Superseded(Conflict):
    """The label is no longer the last of its chain."""

    code, title = "superseded", "Label superseded"


class LeaseLost(Conflict):
    """The lease ended, and somebody else has the read or it is closed."""

    code, title = "lease-lost", "Lease lost"


class LabelFinal(Conflict):
    """The time for blind corrections of an answer is over, or there is no answer."""

    code, title = "label-final", "Label final"


class TooManyLeases(Conflict):
    """An annotator leases more cases than they read just now and next."""

    code, title = "too-many-leases", "Too many leases"


class PreconditionFailed(Problem):
    """What the caller wants to change is not what it saw."""

    status, code, title = 412, "precondition-failed", "Changed meanwhile"


class PreconditionRequired(Problem):
    """A change came without If-Match."""

    status, code, title = 428, "precondition-required", "If-Match missing"


class OtherImage(Conflict):
    """An external id is taken by another image."""

    code, title = "external-id-taken", "External id belongs to another image"


class TooLarge(Problem):
    """The body or the picture is too large."""

    status, code, title = 413, "too-large", "Too large"


class UnsupportedImage(Problem):
    """Not an image format that is read here."""

    status, code, title = 415, "unsupported-image", "Unsupported image"


class Invalid(Problem):
    """A value is not acceptable."""

    status, code, title = 422, "invalid", "Invalid request"


class BrokenImage(Invalid):
    """An image of a known format that cannot be decoded or used."""

    code, title = "broken-image", "Unusable image"


class KeyReused(Invalid):
    """An Idempotency-Key was used before for another request."""

    code, title = "idempotency-key-reused", "Idempotency-Key used for another request"


class Overloaded(Problem):
    """Too many requests wait.

    Args:
        detail: what was wrong.
        retry_after: seconds until there will be room; None: a moment.
    """

    status, code, title, retry_after = 429, "overloaded", "Too many requests", 2

    def __init__(self, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after or self.retry_after


class RateLimited(Overloaded):
    """One caller sends more requests than the settings allow."""

    code, title, retry_after = "rate-limited", "Too many requests from this caller", 60


class Unavailable(Problem):
    """A part of the service cannot answer just now."""

    status, code, title, retry_after = 503, "unavailable", "Unavailable", 5


class NoRelease(Unavailable):
    """No release is served yet."""

    code, title = "no-release", "No release"


class StorageFull(Problem):
    """Too little space is left for uploads."""

    status, code, title = 507, "storage-full", "Storage full"


#: Errors that any route under /v1 may answer.
COMMON: tuple[type[Problem], ...] = (Unauthenticated, Forbidden, Invalid, Overloaded, RateLimited, Unavailable)


def responses(*problems: type[Problem]) -> dict[int | str, dict[str, Any]]:
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


def _fault(place: Sequence[str | int], what: str) -> Fault:
    return Fault(where=[printable(part) if isinstance(part, str) else part for part in place], what=printable(what))


def answer_to(request: Request, problem: Problem, errors: list[Fault] | None = None) -> Response:
    """A problem as a page where a person asked for one, else as a document."""
    render: PageRenderer | None = request.app.state.problem_page
    page = None if render is None else render(request, problem)
    return problem_response(problem, errors) if page is None else page


def _on_validation(request: Request, exc: RequestValidationError) -> Response:
    """Say where and what, never repeat the input."""
    errors = [_fault(error["loc"], error["msg"]) for error in exc.errors()]
    render: PageRenderer | None = request.app.state.problem_page
    sentences = list(dict.fromkeys(map(sentence_on_page, exc.errors())))[:3]
    page = None if render is None else render(request, Invalid(joined("; ", sentences)))
    return page or problem_response(Invalid("one or more values are not acceptable; see errors"), errors)


_PHRASES: dict[int, type[Problem]] = {p.status: p for p in (BadRequest, NotFound, TooLarge, Invalid, Unauthenticated)}


class FrameworkProblem(Problem):
    """An HTTP error of the framework without a class here, by its status.

    Args:
        status: of HTTP.
    """

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status, self.title = status, status.phrase
        self.code = status.phrase.lower().replace(" ", "-")


def _on_http(request: Request, exc: HTTPException) -> Response:
    status = HTTPStatus(exc.status_code)
    kind, said = _PHRASES.get(status), NOTHING_HERE if status == HTTPStatus.NOT_FOUND else status.phrase
    response = answer_to(request, FrameworkProblem(status) if kind is None else kind(said))
    response.headers.update(exc.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(_allowed(request))
    return response


def _allowed(request: Request) -> list[str]:
    """Methods of every route of a request's path; the framework names those of the first one only."""
    scope = dict(request.scope) | {"method": "GET"}
    met = (route.methods or () for route in walk_routes(request.app) if route.matches(scope)[0] is not Match.NONE)
    return sorted(set().union(*met))


def _on_database(request: Request, exc: DBAPIError) -> Response:
    """A database that is away, locked or full, or a collision, is a reason to try again; the rest is a defect."""
    if isinstance(exc, IntegrityError):
        return answer_to(request, Unavailable("another request stored the same at this moment; send yours again"))
    if may_be_tried_again(exc):
        return answer_to(request, Unavailable("the database cannot answer just now; try again"))
    raise exc


def _on_pool(request: Request, _: PoolTimeout) -> Response:
    """Every connection of this process is in use."""
    return answer_to(request, Unavailable("too much is asked of the database at once; try again"))


def _on_system(request: Request, exc: OSError) -> Response:
    """A disk that takes no more is no defect; anything else is."""
    if exc.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
        raise exc
    return answer_to(request, StorageFull("the disk is full, or takes no writes"))


def on_defect(request: Request, exc: Exception) -> Response:
    """A defect of the service: the caller learns nothing of it but where the server's log tells more."""
    return answer_to(
        request, Problem(Message("the service failed and stored nothing of it; reference {exc}", exc=log_defect(exc)))
    )


#: Draws a problem as a page where a person asked for one, else returns None.
PageRenderer = Callable[[Request, Problem], Response | None]


_Error = TypeVar("_Error", bound=Exception)


def install(app: FastAPI, problem_page: PageRenderer | None = None) -> None:
    """Answer every error of the tree, of validation and of the framework as a problem document, or as a page."""

    def answer(kind: type[_Error], handler: Callable[[Request, _Error], Response]) -> None:
        app.add_exception_handler(kind, cast(Callable[[Request, Exception], Response], handler))

    app.state.problem_page = problem_page
    answer(Problem, answer_to)
    answer(RequestValidationError, _on_validation)
    answer(HTTPException, _on_http)
    answer(DBAPIError, _on_database)
    answer(PoolTimeout, _on_pool)
    answer(OSError, _on_system)
    answer(Exception, on_defect)
