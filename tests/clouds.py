"""As much of Google's and Azure's stores as reading takes: their clients speak to these servers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "box"
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class Cloud:
    """One bucket.

    Attributes:
        objects: content and version, by name.
        replaced: another content that takes the place of an object when its first range has been read.
        reads: name and range of each content asked for.
    """

    def __init__(self, handler: type[CloudHandler]) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.replaced: dict[str, bytes] = {}
        self.reads: list[tuple[str, str]] = []
        bound = type("Bound", (handler,), {"cloud": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), name="cloud", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def put(self, **objects: bytes) -> None:
        for name, content in objects.items():
            self.objects[name] = (content, self.objects.get(name, (b"", 0))[1] + 1)

    def below(self, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
        """Objects and common prefixes, as the stores list them."""
        names, prefixes = [], set[str]()
        for name in sorted(self.objects):
            if name.startswith(prefix):
                head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                prefixes.add(prefix + head + delimiter) if found else names.append(name)
        return names, sorted(prefixes)


@contextmanager
def play(handler: type[CloudHandler]) -> Iterator[Cloud]:
    cloud = Cloud(handler)
    try:
        yield cloud
    finally:
        cloud.server.shutdown()
        cloud.server.server_close()


class CloudHandler(BaseHTTPRequestHandler):
    """What both have in common."""

    cloud: Cloud
    protocol_version = "HTTP/1.1"

    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def content(self, name: str, version: int, headers: dict[str, str]) -> None:
        """Answer with the range that is asked for of one version."""
        held, there = self.cloud.objects[name]
        asked = self.headers.get("x-ms-range") or self.headers.get("Range") or "bytes=0-"
        self.cloud.reads.append((name, asked))
        assert version == there
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", asked).groups()
        part = held[int(first) : int(last or len(held)) + 1]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(held)}"
        self.answer(206, part, headers)
        if name in self.cloud.replaced:
            self.cloud.put(**{name: self.cloud.replaced.pop(name)})

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing."""


class Google(CloudHandler):
    """The JSON API."""

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), self.query()
        _, _, name = path.partition(f"/storage/v1/b/{BUCKET}/o/")
        if path == f"/storage/v1/b/{BUCKET}/o":
            names, prefixes = self.cloud.below(query.get("prefix", ""), query.get("delimiter", ""))
            self.json({"items": [self.described(each) for each in names], "prefixes": prefixes})
        elif name not in self.cloud.objects:
            self.answer(404)
        elif query.get("alt") != "media":
            self.json(self.described(name))
        elif int(query["generation"]) != self.cloud.objects[name][1]:
            self.answer(404)
        else:
            self.content(name, int(query["generation"]), {})

    def described(self, name: str) -> dict[str, str]:
        content, version = self.cloud.objects[name]
        return {"name": name, "bucket": BUCKET, "size": str(len(content)), "generation": str(version)}

    def json(self, answer: dict[str, Any]) -> None:
        self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


class Azure(CloudHandler):
    """The Blob service's REST API."""

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), self.query()
        _, _, name = path.partition(f"/{BUCKET}/")
        if query.get("comp") == "list":
            self.list(query.get("prefix", ""), query.get("delimiter", ""))
        elif name not in self.cloud.objects:
            self.answer(404, headers={"x-ms-error-code": "BlobNotFound"})
        elif self.command == "HEAD":
            self.answer(200, headers=self.described(name))
        elif self.headers.get("If-Match", self.etag(name)) != self.etag(name):
            self.answer(412, headers={"x-ms-error-code": "ConditionNotMet"})
        else:
            self.content(name, self.cloud.objects[name][1], self.described(name, length=False))

    do_HEAD = do_GET  # noqa: N815

    def etag(self, name: str) -> str:
        return f'"0x{self.cloud.objects[name][1]}"'

    def described(self, name: str, *, length: bool = True) -> dict[str, str]:
        size = {"Content-Length": str(len(self.cloud.objects[name][0]))} if length else {}
        return {"ETag": self.etag(name), "Last-Modified": DATE, "x-ms-blob-type": "BlockBlob", **size}

    def list(self, prefix: str, delimiter: str) -> None:
        names, prefixes = self.cloud.below(prefix, delimiter)
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{DATE}</Last-Modified>"
            f"<Etag>{self.etag(name).strip(chr(34))}</Etag><BlobType>BlockBlob</BlobType>"
            f"<Content-Length>{len(self.cloud.objects[name][0])}</Content-Length></Properties></Blob>"
            for name in names
        )
        folders = "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in prefixes)
        found = f"<Blobs>{blobs}{folders}</Blobs><NextMarker/>"
        head = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="{BUCKET}">'
        self.answer(200, f"{head}{found}</EnumerationResults>".encode(), {"Content-Type": "application/xml"})
