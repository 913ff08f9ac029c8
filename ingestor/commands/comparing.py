"""Comparing a collection with what the state file says of it: every id and hash, some vectors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

import numpy as np

from ingestor.errors import IngestorError
from ingestor.records import Float32s
from ingestor.sink import IndexState, Reader, Stored
from ingestor.state.holdings import Holding, Holdings
from ingestor.state.identity import origin_of, point_id

Embed = Callable[[Sequence[str]], Float32s]
"""The vector of each text, float32[n, dimension]."""

FIELDS = ("document", "chunk", "chunks", "hash")
COSINE = 0.999
"""Vectors of the same text by the same model are at least so close, whatever the precision."""
NAMED = 5
LOOKED_UP = 256  # documents whose points are asked for at once


class Kind(Enum):
    """What a point of the collection is to the state file."""

    KNOWN = "known"
    DIFFERING = "differing"  # its document has another hash or number of chunks there
    ORPHAN = "orphan"  # of this program, but of no document there
    FOREIGN = "foreign"  # not of this program


@dataclass(slots=True)
class Found:
    """Points of one kind: how many, and what the first of them belong to."""

    points: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, document: str, points: int = 1) -> None:
        self.points += points
        if len(self.first) < NAMED and document not in self.first:
            self.first.append(document)


@dataclass(slots=True)
class Comparison:
    """How a collection and its state file compare.

    Attributes:
        points: in the collection, by exact count.
        scanned: points that were met when all of them were read.
        documents, expected: documents and points that the state file takes for stored.
        missing, missing_documents: points that are not there, and the documents that they are of.
        orphans: points of documents or chunks that the state file does not know.
        differing: points whose payload says another hash or number of chunks.
        doubtful: points of documents that an interrupted run had under way.
        foreign: points that this program did not write.
        sampled: points whose vector was compared; `strayed` those that differ, `cosine` the least found.
        index: how the search index is doing.
        disturbed: a run was writing meanwhile.
    """

    points: int = 0
    scanned: int = 0
    documents: int = 0
    expected: int = 0
    missing: Found = field(default_factory=Found)
    missing_documents: int = 0
    orphans: Found = field(default_factory=Found)
    differing: Found = field(default_factory=Found)
    doubtful: Found = field(default_factory=Found)
    foreign: int = 0
    sampled: int = 0
    strayed: Found = field(default_factory=Found)
    cosine: float | None = None
    index: IndexState = field(default_factory=lambda: IndexState("none"))
    disturbed: bool = False

    @property
    def same(self) -> bool:
        """Whether the collection is what the state file says it is."""
        wrong = (self.missing, self.orphans, self.differing, self.strayed)
        well = self.points == self.scanned and self.index.name != "red"
        return well and not any(found.points for found in wrong)


def verify_collection(
    reader: Reader, holdings: Holdings, *, sample: int = 0, embed: Embed | None = None
) -> Comparison:
    """Compare all points with the state file, and the vectors of some with those that their texts have.

    Holds a page of points at a time, and `sample` ids.

    Args:
        sample: points whose vector is compared; drawn anew each time.
        embed: makes the vectors; None compares none.
    """
    comparison, drawn, run = Comparison(), _Draw(sample if embed else 0), holdings.last_run()
    comparison.documents, comparison.expected = holdings.totals()
    known = 0
    for page in reader.scan(FIELDS):
        for point, kind in _judged(page, holdings, comparison):
            if kind is Kind.KNOWN and point.id is not None:
                known += 1
                drawn.offer(point.id)
    if known < comparison.expected:
        _find_missing(reader, holdings, comparison)
    comparison.points, comparison.index = reader.count(), reader.index_state()
    if embed and drawn.ids:
        _compare_vectors(reader, drawn.ids, embed, comparison)
    comparison.disturbed = holdings.last_run() != run
    return comparison


def judge(point: Stored, holding: Holding | None) -> Kind:
    """What a point is, given what the state file says of its document."""
    name = origin_of(point.id, point.payload)
    if name is None:
        return Kind.FOREIGN
    if holding is None or name[1] >= holding.chunks:
        return Kind.ORPHAN
    said = point.payload.get("hash"), point.payload.get("chunks")
    return Kind.KNOWN if said == (holding.hash.hex(), holding.chunks) else Kind.DIFFERING


def _judged(
    page: Sequence[Stored], holdings: Holdings, comparison: Comparison
) -> Iterator[tuple[Stored, Kind]]:
    """Each point with its kind; what is not as it should be is counted."""
    documents = {str(point.payload.get("document")) for point in page}
    known = holdings.of(documents)
    kinds = [judge(point, known.get(str(point.payload.get("document")))) for point in page]
    odd = {
        point.payload["document"]
        for point, kind in zip(page, kinds, strict=True)
        if kind in (Kind.ORPHAN, Kind.DIFFERING)
    }
    doubtful = holdings.doubtful(odd) if odd else set()
    comparison.scanned += len(page)
    for point, kind in zip(page, kinds, strict=True):
        document = str(point.payload.get("document"))
        if kind is Kind.FOREIGN:
            comparison.foreign += 1
        elif kind is not Kind.KNOWN:
            odd_ones = comparison.orphans if kind is Kind.ORPHAN else comparison.differing
            (comparison.doubtful if document in doubtful else odd_ones).add(document)
        yield point, kind


def _find_missing(reader: Reader, holdings: Holdings, comparison: Comparison) -> None:
    """Ask for all points that should be there, the documents of the state file one after the other."""
    documents = holdings.all()
    while batch := list(islice(documents, LOOKED_UP)):
        wanted = {point_id(id_, chunk): id_ for id_, chunks in batch for chunk in range(chunks)}
        there = {point.id: point for ids in _parts(list(wanted)) for point in reader.retrieve(ids, FIELDS)}
        for point in there.values():
            if point.id and judge(point, None) is Kind.FOREIGN:  # ours, and its payload was changed
                comparison.foreign -= 1
                comparison.differing.add(wanted[point.id])
        lacking = [id_ for point, id_ in wanted.items() if point not in there]
        doubtful = holdings.doubtful(lacking) if lacking else set()
        for id_ in lacking:
            if id_ not in doubtful:
                comparison.missing.add(id_)
        comparison.missing_documents += len(set(lacking) - doubtful)


def _parts(ids: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(ids), LOOKED_UP):
        yield ids[start : start + LOOKED_UP]


def _compare_vectors(reader: Reader, ids: Sequence[bytes], embed: Embed, comparison: Comparison) -> None:
    """Embed the texts of some points again."""
    points = [point for part in _parts(ids) for point in reader.retrieve(part, vectors=True)]
    made = embed([str(point.payload.get("text", "")) for point in points])
    for point, vector in zip(points, made, strict=True):
        if point.vector is None:
            raise IngestorError("the collection gave a point without its vector")
        cosine = cosine_of(point.vector, vector)
        comparison.sampled += 1
        comparison.cosine = min(cosine, 1.0 if comparison.cosine is None else comparison.cosine)
        if cosine < COSINE:
            comparison.strayed.add(str(point.payload.get("document")))


def cosine_of(left: Float32s, right: Float32s) -> float:
    """Of the angle between two vectors; -1 where there is none."""
    lengths = float(np.linalg.norm(left)) * float(np.linalg.norm(right))
    cosine = float(np.dot(left.astype(np.float64), right.astype(np.float64))) / lengths if lengths else -1.0
    return cosine if np.isfinite(cosine) else -1.0


class _Draw:
    """Some ids of a stream of unknown length, each with the same chance."""

    def __init__(self, most: int) -> None:
        self.ids: list[bytes] = []
        self._most = most
        self._seen = 0

    def offer(self, id_: bytes) -> None:
        self._seen += 1
        if len(self.ids) < self._most:
            self.ids.append(id_)
        elif self._most and (place := random.randrange(self._seen)) < self._most:
            self.ids[place] = id_
