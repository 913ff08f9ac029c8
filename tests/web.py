"""An HTTP server that does what servers do on bad days, for tests and benchmarks."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP_BYTES = 64 << 10
LOOK = "bytes=0-0"


@dataclass
class Page:
    """One object, and how it is served.

    Attributes:
        content: its bytes.
        etag: sent with every answer; empty for none.
        modified: the Last-Modified header; empty for none.
        ranges: whether a range is given where it is asked for.
        sized: whether the length is said.
        cuts: the connection is cut when these bytes are reached, once for each.
        hang_at: nothing more is sent from this byte on.
        hang_before: nothing is sent at all.
        first: statuses and headers that are the answer to the first requests.
        kind: the Content-Type header.
        then: takes its place when the connection is cut.
        users: who may read it, as the Authorization header has them; empty for everybody.
    """

    content: bytes
    etag: str = ""
    modified: str = ""
    ranges: bool = True
    sized: bool = True
    cuts: list[int] = field(default_factory=list)
    hang_at: int | None = None
    hang_before: bool = False
    first: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    then: Page | None = None
    kind: str = "application/octet-stream"
    users: tuple[str, ...] = ()


def page(content: bytes, **conduct: Any) -> Page:
    """An object with an etag of its content."""
    return Page(content, **{"etag": f'"{hashlib.md5(content).hexdigest()}"', **conduct})


class WebServer:
    """Serves pages, by path.

    Attributes:
        pages: may be changed at any time.
        requests: path with query, and the range asked for, of each request so far.
        sent: bytes of content sent so far.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        self.hanging = threading.Event()  # somebody is waiting in vain
        self._released = threading.Event()
        handler = type("Bound", (Handler,), {"web": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="web", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def ranges(self, path: str) -> list[str]:
        """The ranges that were asked for of one page."""
        return [asked for wanted, asked in self.requests if wanted.partition("?")[0] == path]

    def hang(self) -> None:
        """Hold the request up until the server ends."""
        self.hanging.set()
        self._released.wait()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serve(**pages: Page) -> Iterator[WebServer]:
    """A server with some pages, by name."""
    server = WebServer()
    server.pages.update({f"/{name}": each for name, each in pages.items()})
    try:
        yield server
    finally:
        server.close()


class Handler(BaseHTTPRequestHandler):
    """Answers GET as its page says."""

    web: WebServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.web.requests.append((self.path, asked))
        served = self.web.pages.get(self.path.partition("?")[0])
        if served is None:
            self._answer(404)
        elif served.users and self.headers.get("Authorization") not in served.users:
            self._answer(401)
        elif served.hang_before:
            self.web.hang()
        elif served.first:
            self._answer(*served.first.pop(0))
        else:
            self._serve(served, asked)

    def _serve(self, served: Page, asked: str) -> None:
        size, headers = len(served.content), {"Content-Type": served.kind}
        headers |= {"ETag": served.etag} if served.etag else {}
        headers |= {"Last-Modified": served.modified} if served.modified else {}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if served.ranges else None
        start, stop = (int(found[1]), min(int(found[2] or size) + 1, size)) if found else (0, size)
        if found and start >= size:
            self._answer(416, headers | {"Content-Range": f"bytes */{size}"})
            return
        if found:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        if served.sized:
            headers["Content-Length"] = str(stop - start)
        else:
            headers["Transfer-Encoding"] = "chunked"
        self._head(206 if found else 200, headers)
        if asked == LOOK:  # what is to happen happens when it is read
            served = replace(served, cuts=[], hang_at=None)
        self._send(served, start, stop)

    def _send(self, served: Page, at: int, stop: int) -> None:
        while at < stop:
            if at in served.cuts:
                served.cuts.remove(at)
                if served.then:
                    self.web.pages[self.path] = served.then
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if at == served.hang_at:
                self.web.hang()
                return
            places = [*served.cuts, stop if served.hang_at is None else served.hang_at, stop, at + STEP_BYTES]
            end = min(place for place in places if place > at)
            data = served.content[at:end]
            self.wfile.write(data if served.sized else b"%x\r\n%s\r\n" % (len(data), data))
            self.web.sent += len(data)
            at = end
        if not served.sized:
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Length": "0", **(headers or {})})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, OSError):  # who asked has hung up
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing."""
