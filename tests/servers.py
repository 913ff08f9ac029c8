"""Starting, disturbing and stopping the gRPC test server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import grpc

SCRIPT = Path(__file__).with_name("qdrant_server.py")


class QdrantServer:
    """`qdrant_server.py` as a child process; a context manager. `start` again after a fault ended it."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self._path = path
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return "http://127.0.0.1:6333"  # as people write it; nothing is asked there

    def start(self) -> None:
        """Start it, on the same port as before."""
        self.stop()
        self._path.mkdir(exist_ok=True)
        command = [sys.executable, SCRIPT, "--path", self._path, "--port", str(self.port), *self._arguments]
        with (self._path / "stderr").open("a") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """End it, unless it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process is not None
        self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fault(self, method: str = "Points/Upsert", **what: Any) -> None:
        """Ask for something to go wrong; see `qdrant_server.py`."""
        self._control("Fault", json.dumps({"method": method, **what}).encode())

    def script(self, *answers: dict[str, Any], updates: int = 0) -> None:
        """What the next looks at a collection show, after so many updates; see `qdrant_server.py`."""
        self._control("Status", json.dumps({"updates": updates, "answers": answers}).encode())

    def calls(self, method: str = "Points/Upsert") -> int:
        """How often a method was called."""
        return int(json.loads(self._control("Calls", b"")).get(method, 0))

    def has_ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self._process is not None and self._process.poll() is not None

    def drop(self, collection: str) -> None:
        """Remove a collection, as somebody else would."""
        from qdrant_client import grpc as qdrant

        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            collections = qdrant.CollectionsStub(channel)
            collections.Delete(qdrant.DeleteCollection(collection_name=collection), timeout=10)

    def mend(self) -> None:
        """Let nothing go wrong any more, and wait for what it has in hand."""
        self._control("Mend", b"")

    def reset(self) -> None:
        """Make it as new; starts it where it has ended."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        self._control("Reset", b"")

    def _control(self, name: str, request: bytes) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            answer: bytes = channel.unary_unary(f"/control/{name}", None, None)(request, timeout=10)
            return answer
