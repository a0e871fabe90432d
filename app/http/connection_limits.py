"""Connection limits before authentication: header time and size, number of connections."""

import asyncio
from collections import Counter
from ipaddress import ip_address, ip_network
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.limiter import HEADER_SECONDS, IN_ALL, MAX_HEADERS, PER_ADDRESS

#: Seconds for which a body may still come, unread, once the request has been answered.
LINGER_SECONDS = 10.0


class BoundedConnection(HttpToolsProtocol):
    """A connection of uvicorn's that is ended when it costs too much; those of one process are counted together."""

    #: addresses or networks of proxies that may have any number
    trusted: ClassVar[tuple[str, ...]] = ()
    open_connections: ClassVar[Counter[str]] = Counter()
    #: those that ask for nothing now, the one that has done so for the longest time first
    idle: ClassVar[dict["BoundedConnection", None]] = {}
    _timer: asyncio.TimerHandle | None = None
    _address = ""
    _before_headers, _reading_headers, _received = 0, True, True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and refuse one too many of an address."""
        super().connection_made(transport)
        self._address = "" if self.client is None else self.client[0]
        self.open_connections[self._address] += 1
        self._end_after(HEADER_SECONDS)
        self.idle[self] = None
        if self.open_connections.total() > IN_ALL:
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            oldest.transport.abort()
        if self.open_connections[self._address] > PER_ADDRESS and not self._is_trusted():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._end_after(None)
        self.idle.pop(self, None)
        self.open_connections[self._address] -= 1
        if not self.open_connections[self._address]:
            del self.open_connections[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, unless the headers do not end."""
        if self._reading_headers:
            self._before_headers += len(data)
        super().data_received(data)
        if self._reading_headers and self._before_headers > MAX_HEADERS:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Expect the headers of a request."""
        super().on_message_begin()
        self._before_headers, self._reading_headers, self._received = 0, True, False
        if self.cycle is None or self.cycle.response_complete:
            self._end_after(HEADER_SECONDS)

    def on_headers_complete(self) -> None:
        """Serve the request; its body has deadlines of its own."""
        self._reading_headers = False
        self._end_after(None)
        self.idle.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        self._received = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait no longer than a moment for the rest of a body that nobody reads."""
        if not self._received:
            self._end_after(LINGER_SECONDS)
        if not self.pipeline:
            self.idle[self] = None
        super().on_response_complete()

    def _is_trusted(self) -> bool:
        try:
            address = ip_address(self._address)
        except ValueError:
            return False
        return any(address in ip_network(proxy) for proxy in self.trusted)

    def _end_after(self, seconds: float | None) -> None:
        """End the connection in some seconds, instead of at any time set before; None for never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
