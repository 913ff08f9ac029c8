"""A file behind a URL, on a server that cuts the connection now and then; in a process of its own."""

from __future__ import annotations

import multiprocessing
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STEP_BYTES = 1 << 20


@dataclass(frozen=True)
class Served:
    """What the server has done so far.

    Attributes:
        url: of the file.
        cuts: connections that were cut.
    """

    url: str
    cuts: Any


@contextmanager
def serve(path: Path, cut_at: list[int]) -> Iterator[Served]:
    """Serve a file; the connection is cut once at each of these bytes."""
    spawn = multiprocessing.get_context("spawn")
    port, cuts = spawn.Value("q", 0), spawn.Value("q", 0)
    ready = spawn.Event()
    process = spawn.Process(target=run, args=(path, cut_at, port, cuts, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(60):
            raise SystemExit("the server did not start")
        yield Served(f"http://127.0.0.1:{port.value}/{path.name}", cuts)
    finally:
        process.kill()
        process.join()


def run(path: Path, cut_at: list[int], port: Any, cuts: Any, ready: Any) -> None:
    """What the server's process does, until it is killed."""
    size = path.stat().st_size

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
            assert found is not None
            first, last = int(found[1]), min(int(found[2] or size), size - 1)
            self.send_response(206)
            self.send_header("ETag", f'"{size}"')
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.send(first, last + 1)

        def send(self, at: int, stop: int) -> None:
            with path.open("rb") as file:
                while at < stop:
                    ends = [place for place in (*cut_at, stop, at + STEP_BYTES) if place > at]
                    at += self.connection.sendfile(file, at, min(ends) - at)
                    if at in cut_at:
                        cut_at.remove(at)
                        cuts.value += 1
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.value = server.server_port
    ready.set()
    server.serve_forever()
