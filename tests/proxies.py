"""A TCP proxy that cuts its connections, as load balancers and bad networks do."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Stands between clients and a port of this machine; a context manager.

    Args:
        port: where the server listens.

    Attributes:
        port: where the proxy listens.
        cuts: how many connections it has cut so far.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._lock = threading.Lock()
        self._left: list[int] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, name="accept")]

    def cut_after(self, *nbytes: int) -> None:
        """Cut all connections once so many bytes more have come from clients, again and again."""
        with self._lock:
            self._left += nbytes

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self._cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # it is being started again
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, source is client))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if counted and self._is_enough(len(piece)):
                    sink.sendall(piece[: len(piece) // 2])  # in the middle of a message
                    self._cut()
                    return
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_enough(self, nbytes: int) -> bool:
        with self._lock:
            if not self._left:
                return False
            self._left[0] -= nbytes
            if self._left[0] > 0:
                return False
            del self._left[0]
            self.cuts += 1
            return True

    def _cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                end.shutdown(socket.SHUT_RDWR)
            end.close()
