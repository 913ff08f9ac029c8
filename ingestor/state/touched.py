"""Shards that changed by date alone: their bytes have the digest that they had when they were read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from ingestor.records import Shard


class Touched:
    """A part of the ledger's writing half, over the same connection, in the same thread."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def suspects(self, listing: Sequence[Shard], salt: bytes) -> list[tuple[Shard, str]]:
        """Shards of which only dates may have changed since they were read to their end, in the same way;
        each with the digest that would prove it.
        """
        found = []
        for shard in listing:
            row = self._file.execute(
                "SELECT digest FROM shards WHERE name = ? AND current AND fingerprint <> ?"
                " AND fingerprint LIKE '%:' || ? AND digest LIKE ? || ':%'",
                (shard.name, fingerprint(shard, salt), salt.hex(), str(shard.size)),
            ).fetchone()
            if row:
                found.append((shard, row[0]))
        return found

    def accept(self, shards: Iterable[Shard], salt: bytes) -> None:
        """Take these for what was read, from now on."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "UPDATE shards SET fingerprint = ? WHERE name = ? AND current",
                [(fingerprint(shard, salt), shard.name) for shard in shards],
            )


def fingerprint(shard: Shard, salt: bytes) -> str:
    """Of the shard and of the way it is read: either change makes it new."""
    return f"{shard.fingerprint}:{salt.hex()}"
