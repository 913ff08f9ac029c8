"""What a prepare process does with a block: parse, hash, drop what is stored already, chunk, frame.

Nothing here imports torch or transformers, and what crosses between processes is arrays and bytes.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ingestor import sources
from ingestor.encoding.model import ModelSpec
from ingestor.preparing.chunk import Chunk, Chunker
from ingestor.preparing.payloads import Payloads, PayloadTooLargeError
from ingestor.preparing.tokenizer import load_tokenizer
from ingestor.records import (
    DOCUMENTS_PER_BLOCK,
    Census,
    ChunkBlock,
    Document,
    Failure,
    Int64s,
    Points,
    RawBlock,
    Shard,
    Verdict,
)
from ingestor.state.identity import as_ids, document_key, point_ids, record_hash
from ingestor.state.lookup import LedgerReader, Row


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """All that a prepare process needs to know; the same for a whole run.

    Attributes:
        fields: which fields of a record are id, text and metadata.
        spec: the model, for its tokenizer and prompt.
        max_tokens, overlap_tokens, max_chars: see `Chunker`.
        salt: stands for this way to read and cut; part of every record's hash.
        ledger: path of the state file.
        full: take stored documents for new.
        framing: `json` or `protobuf`, the form of payloads.
        max_payload_bytes: a larger payload fails its document, or with `trim` loses its largest fields.
        keep_losers: chunk records that lose to a later one, too (for people who want to look).
    """

    fields: sources.Fields
    spec: ModelSpec
    max_tokens: int
    overlap_tokens: int
    max_chars: int
    salt: bytes
    ledger: str
    full: bool = False
    framing: str = "json"
    max_payload_bytes: int = 7 << 20
    trim: bool = False
    keep_losers: bool = False


@dataclass(slots=True)
class _Judged:
    """A document of the block and what is to become of it."""

    document: Document
    key: int
    hash: bytes
    verdict: Verdict
    stored: int
    known: bool
    chunks: list[Chunk]
    wanted: bool  # its chunks are to be made


class Preparer:
    """What a prepare process keeps between blocks."""

    def __init__(self, options: PrepareOptions) -> None:
        self._options = options
        self._ledger = LedgerReader(options.ledger)
        self._payloads = Payloads(options.framing, options.max_payload_bytes, trim=options.trim)
        tokenizer = load_tokenizer(options.spec)
        self._chunker = Chunker(
            tokenizer,
            prompt=options.spec.prompt,
            max_tokens=options.max_tokens,
            overlap_tokens=options.overlap_tokens,
            max_chars=options.max_chars,
        )

    def prepare(self, block: RawBlock, limit: int | None) -> tuple[Census, ChunkBlock]:
        with _garbage_kept():
            return self._prepare(block, limit)

    def _prepare(self, block: RawBlock, limit: int | None) -> tuple[Census, ChunkBlock]:
        documents: list[Document] = []
        failures: list[Failure] = list(block.failures)
        skipped: Counter[str] = Counter()
        for found in sources.documents(block, self._options.fields):
            if isinstance(found, Document):
                documents.append(found)
                if len(documents) == limit:
                    break
            elif isinstance(found, Failure):
                failures.append(found)
            else:
                skipped[found.kind] += 1
        judged = self._judge(block, documents)
        judged = self._chunk(block, judged, failures, skipped)
        warnings: list[tuple[str, str]] = []
        payloads = self._frame(block, judged, failures, warnings)
        chunks = self._chunks(block, judged, payloads)
        return self._census(block, judged, failures, skipped, warnings, chunks), chunks

    def _judge(self, block: RawBlock, documents: Sequence[Document]) -> list[_Judged]:
        """Hold each document against the ledger and against later ones in the block."""
        keys = [document_key(document.id) for document in documents]
        rows = self._ledger.rows(keys)
        pending = self._ledger.pending(keys)
        last = {document.id: i for i, document in enumerate(documents)}
        judged = []
        for i, (document, key) in enumerate(zip(documents, keys, strict=True)):
            hash_ = record_hash(document.text, document.payload, self._options.salt)
            known = rows.get(document.id, [])
            verdict = Verdict.DUPLICATE
            if last[document.id] == i:
                verdict = judge(block.shard, document.place, hash_, known)
                if verdict == Verdict.UNCHANGED and (self._options.full or document.id in pending):
                    verdict = Verdict.NEW
            stored = max([pending.get(document.id, 0), *(row.chunks for row in known)])
            if block.shard.again and not (verdict == Verdict.NEW and document.id in pending):
                continue
            wanted = verdict == Verdict.NEW or (verdict == Verdict.DUPLICATE and self._options.keep_losers)
            judged.append(_Judged(document, key, hash_, verdict, stored, bool(known), [], wanted))
        return judged

    def _chunk(
        self, block: RawBlock, judged: list[_Judged], failures: list[Failure], skipped: Counter[str]
    ) -> list[_Judged]:
        """Chunk what is wanted; a document with nothing to embed is no document."""
        wanted = [item for item in judged if item.wanted]
        texts = [sources.prose(block.format, item.document.text) for item in wanted]
        empty = set()
        for item, chunks in zip(wanted, self._chunker.chunks(texts), strict=True):
            item.chunks = chunks
            if not chunks and block.shard.again:  # it took an id over, and has nothing to show for it
                item.verdict, item.wanted = Verdict.FAILED, False
                failure = _failure(block, item.document, "empty_text", "no visible character")
                failures.append(replace(failure, rejected=False))
            elif not chunks:
                empty.add(id(item))
                if block.format == "mediawiki":
                    skipped["empty_text"] += 1
                else:
                    failures.append(_failure(block, item.document, "empty_text", "no visible character"))
        return [item for item in judged if id(item) not in empty]

    def _frame(
        self,
        block: RawBlock,
        judged: list[_Judged],
        failures: list[Failure],
        warnings: list[tuple[str, str]],
    ) -> list[bytes]:
        """The payloads of all chunks; a document whose payload is too large fails."""
        payloads: list[bytes] = []
        for item in judged:
            if not item.wanted:
                continue
            try:
                framed, left_out = self._payloads.frame(item.document, item.chunks, item.hash)
            except PayloadTooLargeError as error:
                most = self._options.max_payload_bytes
                detail = f"a payload of {error.size:,} bytes; {most:,} fit into a request"
                failure = _failure(block, item.document, "payload_too_large", detail)
                item.wanted = False
                if item.verdict == Verdict.NEW:
                    item.verdict = Verdict.FAILED
                    failures.append(replace(failure, rejected=False))
                continue
            if left_out:
                warnings.append(("trimmed", f"{item.document.id}: stored without {', '.join(left_out)}"))
            payloads += framed
        return payloads

    def _chunks(self, block: RawBlock, judged: list[_Judged], payloads: list[bytes]) -> ChunkBlock:
        made = [(i, item) for i, item in enumerate(judged) if item.wanted]
        tokens, offsets = self._chunker.join([chunk for _, item in made for chunk in item.chunks])
        counts = [len(item.chunks) for _, item in made]
        serials = np.array([i for i, _ in made], np.int64) + block.number * DOCUMENTS_PER_BLOCK
        packed = b"".join([point_ids(item.document.id, range(len(item.chunks))) for _, item in made])
        points = Points(np.repeat(serials, counts), as_ids(packed), payloads)
        return ChunkBlock(block.number, block.shard.name, tokens, offsets, points)

    def _census(
        self,
        block: RawBlock,
        judged: list[_Judged],
        failures: list[Failure],
        skipped: Counter[str],
        warnings: list[tuple[str, str]],
        made: ChunkBlock,
    ) -> Census:
        verdicts = np.array([item.verdict for item in judged], np.uint8)
        places = made.points.documents - block.number * DOCUMENTS_PER_BLOCK  # in `judged`, of each chunk
        new = verdicts[places] == Verdict.NEW
        strange = self._chunker.mostly_unknown(made.tokens, made.offsets)
        return Census(
            block=block.number,
            shard=block.shard,
            ids=[item.document.id for item in judged],
            keys=np.array([item.key for item in judged], np.int64),
            places=np.array([item.document.place for item in judged], np.int64),
            hashes=as_ids(b"".join(item.hash for item in judged)),
            verdicts=verdicts,
            chunks=np.array([_chunk_count(item) for item in judged], np.int32),
            stored=np.array([item.stored for item in judged], np.int32),
            known=np.array([item.known for item in judged], np.bool_),
            failures=tuple(failures),
            skipped=dict(skipped),
            warnings=(*warnings, *_unknown_tokens(judged, places[strange & new])),
            replaced_characters=sum(item.document.replaced for item in judged),
            tokens=int(np.diff(made.offsets)[new].sum()),
            taken=block.taken,
            end=block.end,
        )


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """No search for cycles meanwhile: a block makes thousands of objects that all live until its end, and
    walking over them again and again takes longer than making them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def judge(shard: Shard, place: int, hash_: bytes, rows: Sequence[Row]) -> Verdict:
    """What becomes of a record, given every record with its id that the ledger knows.

    It loses to a record in a later shard, also where that shard is still to be read in this run: should the
    other be gone, the ledger has this shard read again. In its own shard it loses to a later record of this
    reading. Rows of earlier readings say little there, since lines move: they count only where this very
    record has lost before.
    """
    lost_before = any(row.hash == hash_ and row.chunks == 0 for row in rows)
    for row in rows:
        if row.position is None or row.position < shard.position:
            continue
        if row.position > shard.position:
            return Verdict.DUPLICATE
        if row.place > place and (row.current or (lost_before and row.hash != hash_)):
            return Verdict.DUPLICATE
    return Verdict.UNCHANGED if any(row.chunks > 0 and row.hash == hash_ for row in rows) else Verdict.NEW


def _chunk_count(item: _Judged) -> int:
    if item.verdict == Verdict.NEW:
        return len(item.chunks)
    return item.stored if item.verdict == Verdict.UNCHANGED else 0


def _failure(block: RawBlock, document: Document, kind: str, detail: str) -> Failure:
    return Failure(block.shard.name, document.place, kind, detail, document=document.id)


def _unknown_tokens(judged: Sequence[_Judged], places: Int64s) -> Iterator[tuple[str, str]]:
    """Warnings of documents, given the place of each that has such a chunk, once for each chunk."""
    for place, strange in zip(*np.unique(places, return_counts=True), strict=True):
        item = judged[place]
        share = f"{strange} of {len(item.chunks)} chunks"
        detail = f"{item.document.id}: {share} are mostly words that the model does not know"
        yield "unknown_tokens", detail
