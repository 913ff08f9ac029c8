"""What the collection should hold, as the state file knows it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from ingestor.state.file import NO_HASH, existing_state, open_to_read
from ingestor.state.identity import document_key
from ingestor.state.lookup import LedgerReader, totals


class Holding(NamedTuple):
    """A document that the collection holds: its number of chunks, and the hash of its record."""

    chunks: int
    hash: bytes


class Holdings:
    """Reads the state file for those who look at the whole collection; works beside a run, too.

    Raises:
        NothingThereError: there is no state file.
    """

    def __init__(self, path: Path) -> None:
        existing_state(path)
        self._rows = LedgerReader(str(path))
        self._file = open_to_read(path)

    def totals(self) -> tuple[int, int]:
        """Documents and points, without those in doubt."""
        documents, points, _ = totals(self._file)
        return documents, points

    def of(self, documents: Collection[str]) -> dict[str, Holding]:
        """Those of these documents that are taken for stored."""
        found = self._rows.rows(map(document_key, documents))
        return {
            id_: Holding(row.chunks, row.hash)
            for id_, rows in found.items()
            for row in rows
            if row.chunks > 0 and id_ in documents
        }

    def all(self) -> Iterator[tuple[str, int]]:
        """Every document that is taken for stored, with its number of chunks; in no order."""
        yield from self._file.execute("SELECT id, chunks FROM records WHERE chunks > 0")

    def doubtful(self, documents: Iterable[str]) -> set[str]:
        """Those of these documents that an interrupted run had under way, or that this moment's run has; and
        those that were incomplete when the state file was made again.
        """
        asked = set(documents)
        pending = self._file.execute(
            "SELECT id FROM pending WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(asked)),)
        )
        found = {id_ for (id_,) in pending}
        for (packed,) in self._file.execute("SELECT documents FROM intents"):
            found |= asked.intersection(orjson.loads(packed)[1])
        return found | {id_ for id_, holding in self.of(asked).items() if holding.hash == NO_HASH}

    def last_run(self) -> int:
        """Number of the newest run."""
        return int(self._file.execute("SELECT COALESCE(MAX(id), 0) FROM runs").fetchone()[0])

    def state_id(self) -> str:
        """The state file's name of itself."""
        row = self._file.execute("SELECT value FROM meta WHERE name = 'state_id'").fetchone()
        return str(row[0])

    def close(self) -> None:
        self._rows.close()
        self._file.close()
