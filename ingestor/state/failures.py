"""What was refused and is still to be mended: records, documents, and shards as a whole."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestor.records import Failure, Shard
from ingestor.state.file import LEFT, existing_state, opened
from ingestor.state.identity import document_key

WHOLE = 0
"""Place of what is wrong with a shard as a whole; records have places from 1. Further errors go below it."""

EARLIER, LISTED = -1, -2
"""In place of the key of a reading, or of a listing, that another will replace."""

SUPERSEDED = """
SELECT f.shard, f.place FROM failures AS f JOIN shards AS s ON s.name = f.shard AND s.current
WHERE f.document IS NOT NULL AND EXISTS (
    SELECT 1 FROM records AS r JOIN shards AS t ON t.key = r.shard
    WHERE r.key = document_key(f.document) AND r.id = f.document AND r.chunks > 0
    AND (t.position, r.place) > (s.position, f.place)
)
"""


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """Something that was refused.

    Attributes:
        shard: its name.
        place: line, page or row, from 1; None for the shard as a whole.
        offset: in the unpacked shard, in bytes, where it helps.
        document: its id, where that is known.
        kind: one of the names in the report.
        detail: what is wrong, in words.
        time: when it was first refused so, in seconds since 1970.
    """

    shard: str
    place: int | None
    offset: int | None
    document: str | None
    kind: str
    detail: str
    time: float


class Failures:
    """A part of the ledger's writing half, over the same connection, in the same thread."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file
        file.create_function("document_key", 1, document_key, deterministic=True)

    def add(self, failures: Sequence[tuple[Failure, int]]) -> None:
        """Keep failures, each with the key of the reading that it was met in; one that was there already
        keeps its time.
        """
        now = time.time()
        self._file.executemany(
            "INSERT OR REPLACE INTO failures VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, COALESCE("
            "(SELECT time FROM failures WHERE shard = ?1 AND place = ?2 AND kind = ?4), ?9))",
            (
                (f.shard, f.place, reading, f.kind, f.detail, f.document, f.offset, f.rejected, now)
                for f, reading in failures
            ),
        )

    def age(self, shard: str) -> None:
        """A shard is to be read again: its failures are of an earlier reading, whose key may come anew."""
        self._file.execute("UPDATE failures SET reading = ? WHERE shard = ?", (EARLIER, shard))

    def break_off(self, shard: Shard, errors: Sequence[tuple[str, str]]) -> None:
        """A reading has ended early: what it met counts, and the errors (kind, detail) that ended it."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self.replace_earlier(shard)
            self.add([(_whole(shard.name, number, *error), shard.key) for number, error in enumerate(errors)])

    def replace_earlier(self, shard: Shard) -> None:
        """What earlier readings of a shard met counts no longer."""
        self._file.execute("DELETE FROM failures WHERE shard = ? AND reading <> ?", (shard.name, shard.key))

    def set_listing(self, errors: Sequence[tuple[str, str, str]]) -> None:
        """Keep what the listing could not look into (place, kind, detail), in place of what it once could
        not.
        """
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("UPDATE failures SET reading = ? WHERE reading = ?", (LISTED, LEFT))
            self.add([(_whole(place, 0, kind, detail), LEFT) for place, kind, detail in errors])
            self._file.execute("DELETE FROM failures WHERE reading = ?", (LISTED,))

    def drop_gone(self) -> None:
        """After a complete listing: what is not listed has nothing to be mended."""
        self._file.execute(
            "DELETE FROM failures WHERE reading <> ? AND shard NOT IN"
            " (SELECT name FROM shards WHERE position IS NOT NULL)",
            (LEFT,),
        )

    def settle(self) -> None:
        """What a later record with the same id has replaced needs no mending any more."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            superseded = self._file.execute(SUPERSEDED).fetchall()
            self._file.executemany("DELETE FROM failures WHERE shard = ? AND place = ?", superseded)
            self._file.executemany(  # such a record has lost its id, and counts as a duplicate
                "UPDATE records SET chunks = 0 WHERE chunks < 0 AND place = ?2"
                " AND shard IN (SELECT key FROM shards WHERE name = ?1)",
                superseded,
            )

    def count(self) -> int:
        """How many are open."""
        return int(self._file.execute("SELECT COUNT(*) FROM failures").fetchone()[0])


def _whole(shard: str, number: int, kind: str, detail: str) -> Failure:
    return Failure(shard, WHOLE - number, kind, detail)


def read_failures(state: Path) -> Iterator[OpenFailure]:
    """The open failures of a state file, by shard and place.

    Raises:
        NothingThereError: there is no state file.
        ConfigError, ResourceError: it cannot be read.
    """
    rows = 'SELECT shard, place, "offset", document, kind, detail, time FROM failures ORDER BY shard, place'
    with opened(existing_state(state)) as file:
        for shard, place, *rest in file.execute(rows):
            yield OpenFailure(shard, place if place > WHOLE else None, *rest)
