"""The payload of each chunk: what is kept of the document, the chunk's text, and where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingestor import framing
from ingestor.preparing.chunk import Chunk
from ingestor.records import Document


class PayloadTooLargeError(Exception):
    """A payload of `size` bytes is more than a request can hold."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Payloads:
    """Frames payloads.

    Args:
        form: `json` or `protobuf`, as the sink wants them.
        max_bytes: what a request can hold.
        trim: leave out metadata that makes a payload larger, the largest field first.
    """

    def __init__(self, form: str, max_bytes: int, *, trim: bool) -> None:
        self._frame: Callable[[dict[str, Any]], bytes] = (
            framing.protobuf_payload if form == "protobuf" else framing.json_payload
        )
        self._max_bytes = max_bytes
        self._trim = trim

    def frame(
        self, document: Document, chunks: Sequence[Chunk], hash_: bytes
    ) -> tuple[list[bytes], tuple[str, ...]]:
        """A payload for each chunk, and the fields that were left out.

        Raises:
            PayloadTooLargeError: they do not fit; not even without metadata, if that may be left out.
        """
        kept, left_out = dict(document.payload), list[str]()
        sizes: dict[str, int] | None = None
        while True:
            try:
                return self._framed(document.id, kept, chunks, hash_), tuple(left_out)
            except PayloadTooLargeError:
                if not self._trim or not kept:
                    raise
            if sizes is None:
                sizes = {name: len(self._frame({name: value})) for name, value in kept.items()}
            largest = max(kept, key=sizes.__getitem__)
            del kept[largest]
            left_out.append(largest)

    def _framed(
        self, document: str, metadata: dict[str, Any], chunks: Sequence[Chunk], hash_: bytes
    ) -> list[bytes]:
        own = {"document": document, "chunks": len(chunks), "hash": hash_.hex()}
        framed = []
        for i, chunk in enumerate(chunks):
            payload = self._frame({**metadata, **own, "text": chunk.text, "chunk": i})
            if len(payload) > self._max_bytes:
                raise PayloadTooLargeError(len(payload))
            framed.append(payload)
        return framed
