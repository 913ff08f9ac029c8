"""One shard's bytes in, blocks of whole records out: unpack, decode, split."""

from __future__ import annotations

from codecs import IncrementalDecoder
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ingestor.errors import SourceError
from ingestor.records import Shard, ShardEnd
from ingestor.sources import FORMATS, parquet
from ingestor.sources.compression import Unpacker, packing_of
from ingestor.sources.cutting import Cut, Limits, Splitter, shard_end
from ingestor.sources.detect import HEAD_BYTES, decoder_of, encoding_of, format_of
from ingestor.sources.fields import Fields

LEAST_STEP_BYTES = 64 << 10


class Feed:
    """Cuts one shard, piece by piece; not for several threads at once.

    Args:
        shard: the shard.
        format: as asked; `auto` finds out.
        limits: of blocks and records.
        fields: what records have to have.
        open_file: opens the shard anew, for formats that are not read from front to back.

    Attributes:
        format: what the first bytes tell.
        reads_file: the first piece gives all blocks; no other is wanted.
        pushed: bytes of the file that were pushed.
    """

    def __init__(
        self,
        shard: Shard,
        format: str,  # noqa: A002
        limits: Limits,
        fields: Fields,
        open_file: Callable[[], BinaryIO],
    ) -> None:
        self.format = "text"
        self.reads_file = False
        self.pushed = 0
        self._asked = format
        self._shard = shard
        self._limits = limits
        self._fields = fields
        self._open_file = open_file
        self._unpacker: Unpacker | None = None
        self._packed = False
        self._head = b""
        self._decoder: IncrementalDecoder | None = None
        self._splitter: Splitter | None = None

    def push(self, piece: bytes) -> Iterator[Cut]:
        """Take the next piece of the file and give the blocks that are full.

        Raises:
            SourceError: the shard breaks off here; what came before is sound.
        """
        self.pushed += len(piece)
        if self._unpacker is None:
            packing = packing_of(piece)
            self._packed = packing is not None
            self._unpacker = Unpacker(packing, max(self._limits.block_bytes, LEAST_STEP_BYTES))
            if parquet.begins(piece) and format_of(piece, self._shard.name, self._asked) == "parquet":
                self.format, self.reads_file = "parquet", True
                with self._open_file() as file:
                    yield from parquet.read_file(file, self._shard, self._limits, self._fields)
                return
        for data in self._unpacker.push(piece):
            yield from self._decoded(data)

    def finish(self, broken: SourceError | None = None) -> tuple[list[Cut], ShardEnd]:
        """Give what is left at the end of the file, or where it broke off."""
        cuts: list[Cut] = []
        if self.reads_file:
            return cuts, shard_end(broken)
        try:
            if self._splitter is None:
                cuts += self._begin()
            if self._splitter and self._decoder and not broken:
                cuts += self._splitter.push(self._last_character())
            if self._unpacker and not broken:
                self._unpacker.finish()
        except SourceError as error:
            broken = broken or error
        if self._splitter is None:
            return [], shard_end(broken)
        rest, end = self._splitter.finish(packed=self._packed, broken=broken)
        return cuts + rest, end

    def _decoded(self, data: bytes) -> Iterator[Cut]:
        if self._splitter:
            yield from self._splitter.push(self._utf8(data))
            return
        self._head += data
        if len(self._head) >= HEAD_BYTES:
            yield from self._begin()

    def _begin(self) -> Iterator[Cut]:
        """Decide on encoding and format by the first bytes, and go on with them."""
        encoding, mark_bytes = encoding_of(self._head)
        self._decoder = decoder_of(encoding)
        head, self._head = self._utf8(self._head[mark_bytes:]), b""
        found = format_of(head[:HEAD_BYTES], self._shard.name, self._asked)
        self.format = found
        self._splitter = FORMATS[found].splitter(self._shard.name, self._limits, self._fields)
        yield from self._splitter.push(head)

    def _utf8(self, data: bytes, *, final: bool = False) -> bytes:
        if self._decoder is None:
            return data
        try:
            return self._decoder.decode(data, final).encode("utf-8", "surrogatepass")
        except UnicodeError as error:  # not all codecs say more
            name, why = getattr(error, "encoding", "such text"), getattr(error, "reason", error)
            raise SourceError("corrupt_input", f"no {name}: {why}") from error

    def _last_character(self) -> bytes:
        try:
            return self._utf8(b"", final=True)
        except SourceError:
            return b"\xff"  # half a character at the end: its record is refused as what it is, no UTF-8
