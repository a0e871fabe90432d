"""A proxy of TCP that resets a connection before or after what it was asked to look for has passed it."""

import random
import socket
import struct
import threading
from collections import Counter
from typing import Self

_RESET = struct.pack("ii", 1, 0)
_BYTES = 65536


class CuttingProxy:
    """Passes connections on; as a context manager it ends with all of them."""

    def __init__(self, port: int, marker: bytes, seed: int) -> None:
        self._target, self._marker, self._rng = port, marker, random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.share, self.cuts = 0.0, Counter[str]()
        self._lock, self._open = threading.Lock(), set[socket.socket]()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        with self._lock:
            for opened in self._open:
                self._reset(opened)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with self._lock:
                self._open |= {client, server}
            silent = threading.Event()
            threading.Thread(target=self._ask, args=(client, server, silent), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client, silent), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        """Pass on what the client sends, until the connection is cut before something, or its answer is to be."""
        try:
            while data := client.recv(_BYTES):
                how = self._choose() if self._marker in data else ""
                if how == "before":
                    break
                if how == "after":
                    silent.set()
                server.sendall(data)  # the answer's thread resets both where nothing is to come back
        except OSError:
            pass
        self._end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, silent: threading.Event) -> None:
        """Pass on what the server answers, but for what the client must not learn."""
        try:
            while data := server.recv(_BYTES):
                if silent.is_set():
                    break
                client.sendall(data)
        except OSError:
            pass
        self._end(client, server)

    def _end(self, *both: socket.socket) -> None:
        for opened in both:
            self._reset(opened)
        with self._lock:
            self._open -= set(both)

    def _choose(self) -> str:
        with self._lock:
            if self._rng.random() >= self.share:
                return ""
            how = self._rng.choice(("before", "after"))
            self.cuts[how] += 1
            return how

    @staticmethod
    def _reset(opened: socket.socket) -> None:
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            opened.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        opened.close()
