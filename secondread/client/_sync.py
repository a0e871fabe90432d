"""Sending requests of the client that waits."""

import time
from types import TracebackType
from typing import Any, Self

import httpx2

from secondread.client._core import Model, Request, checked, options, parsed, parsed_or_job, pause
from secondread.client._operations import Operations
from secondread.client.models import JobOut


class Client(Operations):
    """A connection to one service; as a context manager it is closed at the end.

    Args:
        address: of the service, ``http://127.0.0.1:8000``.
        api_key: as ``secondread key add`` prints it; None for what is open to everybody.
        timeout: seconds that an answer may take.
        tries: how often a request is sent at most, while the connection breaks or the service is busy.
        transport: of httpx2, where requests take another way.
    """

    def __init__(
        self,
        address: str,
        api_key: str | None = None,
        *,
        timeout: float = 60,
        tries: int = 4,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._http = httpx2.Client(base_url=address, timeout=timeout, transport=transport, trust_env=False)
        self._api_key, self._tries = api_key, tries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, request: Request) -> httpx2.Response:
        """Send a request until it is answered.

        Raises:
            ApiError: it was refused.
            httpx2.TransportError: the service was not reached.
        """
        taken: dict[str, Any] = options(request, self._api_key)
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self._http.request(request.method, request.path, **taken)
            except httpx2.TransportError:
                wait = pause(request, None, attempt, self._tries)
                if wait is None:
                    raise
            else:
                wait = pause(request, answer, attempt, self._tries)
                if wait is None:
                    return checked(answer)
            time.sleep(wait)

    def _model(self, model: type[Model], request: Request) -> Model:
        return parsed(model, self._send(request))

    def _model_or_none(self, model: type[Model], request: Request) -> Model | None:
        answer = self._send(request)
        return parsed(model, answer) if answer.content else None

    def _model_or_job(self, model: type[Model], request: Request) -> Model | JobOut:
        return parsed_or_job(model, self._send(request))

    def _bytes(self, request: Request) -> bytes:
        return self._send(request).content
