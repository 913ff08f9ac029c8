"""What left the source, and what is in doubt: who takes over, what is read again, what is to be deleted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from ingestor.records import Shard
from ingestor.state.file import LEFT


class Leaving:
    """A part of the ledger's writing half, over the same connection, in the same thread."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def doubt(self, documents: Sequence[tuple[int, str, int]]) -> None:
        """Which record the points of these documents are of is unknown; they are to be read again."""
        self._file.executemany(
            "INSERT INTO pending SELECT ?1, ?2, MAX(?3, COALESCE(MAX(chunks), 0)) FROM records"
            " WHERE key = ?1 AND id = ?2"
            " ON CONFLICT (id) DO UPDATE SET chunks = MAX(chunks, excluded.chunks)",
            documents,
        )
        self._file.executemany(
            "UPDATE records SET chunks = 0 WHERE key = ? AND id = ?", (document[:2] for document in documents)
        )

    def claim(self, documents: Sequence[tuple[int, str, int]]) -> None:
        """The collection has at least so many chunks of these documents, whoever wrote them: key, id, chunks.
        They are to be read, and what is too much is to go.
        """
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "INSERT INTO pending VALUES (?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET chunks = MAX(chunks, excluded.chunks)",
                documents,
            )

    def forget_strangers(self) -> int:
        """Forget claims to documents that no shard holds, and leave their points; how many there were."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            return self._file.execute(
                "DELETE FROM pending WHERE NOT EXISTS"
                " (SELECT 1 FROM records AS r WHERE r.key = pending.key AND r.id = pending.id)"
            ).rowcount

    def doubt_early_owners(self, shard: int) -> None:
        """What gave way to a later record that is gone now may come after the one that owns the id."""
        early = self._file.execute(
            "SELECT lost.key, lost.id, owner.chunks, lost.hash = owner.hash, owner.shard, owner.place,"
            " MAX(lost.place) FROM records AS lost"
            " JOIN shards AS s ON s.key = lost.shard"
            " JOIN records AS owner"
            " ON owner.key = lost.key AND owner.id = lost.id AND owner.chunks <> 0"
            " JOIN shards AS t ON t.key = owner.shard"
            " WHERE lost.shard = ? AND lost.chunks = 0"
            " AND t.current AND (t.position, owner.place) < (s.position, lost.place)"
            " GROUP BY lost.id",
            (shard,),
        ).fetchall()
        for key, id_, chunks, equal, *owner, place in early:
            if equal and chunks > 0:
                self._own(0, *owner)
                self._own(chunks, shard, place)
            else:
                self.doubt([(key, id_, chunks)])

    def _own(self, chunks: int, shard: int, place: int) -> None:
        """Say how many chunks the collection holds of a record."""
        self._file.execute(
            "UPDATE records SET chunks = ? WHERE shard = ? AND place = ?", (chunks, shard, place)
        )

    def drop(self, shards: Sequence[int]) -> int:
        """Remove readings; what only they held is taken over by a loser elsewhere, or has left.

        Returns:
            How many losers are what is stored already, so that they need not be read again.
        """
        keys = json.dumps(list(shards))
        held = self._file.execute(
            "SELECT key, id, hash, chunks FROM records"
            " WHERE chunks > 0 AND shard IN (SELECT value FROM json_each(?))",
            (keys,),
        ).fetchall()
        self._file.execute("DELETE FROM records WHERE shard IN (SELECT value FROM json_each(?))", (keys,))
        self._file.execute("DELETE FROM shards WHERE key IN (SELECT value FROM json_each(?))", (keys,))
        left, equal = [], 0
        for key, id_, hash_, chunks in held:
            others = self._file.execute(
                "SELECT r.chunks, r.hash, s.current, r.shard, r.place FROM records AS r"
                " JOIN shards AS s ON s.key = r.shard WHERE r.key = ? AND r.id = ?"
                " ORDER BY s.position, r.place",
                (key, id_),
            ).fetchall()
            if any(other[0] > 0 for other in others):
                continue
            if not others:
                left.append((key, id_, hash_, chunks))
            elif others[-1][:3] == (0, hash_, 1):  # the last one wins, and certainly exists
                self._own(chunks, *others[-1][3:])
                equal += 1
            else:
                self.doubt([(key, id_, chunks)])
        self._add_left(left)
        return equal

    def _add_left(self, documents: Sequence[tuple[int, str, bytes, int]]) -> None:
        self._file.executemany(
            "INSERT INTO records SELECT ?, COALESCE(MAX(place), 0) + 1, ?, ?, ?, ?"
            " FROM records WHERE shard = ?",
            ((LEFT, *document, LEFT) for document in documents),
        )

    def count_gone(self) -> int:
        """Documents in the collection that only shards hold which are not listed any more."""
        row = self._file.execute(
            "SELECT COUNT(*) FROM records AS r JOIN shards AS s ON s.key = r.shard"
            " WHERE s.position IS NULL AND s.key <> ? AND r.chunks > 0",
            (LEFT,),
        ).fetchone()
        return int(row[0])

    def drop_gone(self) -> int:
        """After a complete listing: what shards held that are gone has left the source; see `drop`."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            gone = self._file.execute(
                "SELECT key FROM shards WHERE position IS NULL AND key <> ?", (LEFT,)
            ).fetchall()
            return self.drop([key for (key,) in gone])

    def pending_count(self) -> int:
        return int(self._file.execute("SELECT COUNT(*) FROM pending").fetchone()[0])

    def read_again(self, listing: Sequence[Shard]) -> list[Shard]:
        """Finished shards that hold records of pending documents, to be read again for those alone."""
        rows = self._file.execute(
            "SELECT DISTINCT s.name, s.key FROM pending AS p"
            " JOIN records AS r ON r.key = p.key AND r.id = p.id JOIN shards AS s ON s.key = r.shard"
            " WHERE s.current AND s.fingerprint IS NOT NULL AND s.position IS NOT NULL"
        ).fetchall()
        keys = dict(rows)
        return [
            replace(shard, key=keys[shard.name], position=position, again=True)
            for position, shard in enumerate(listing)
            if shard.name in keys
        ]

    def count_left(self) -> int:
        """Documents that left the source and are still in the collection."""
        self._file.execute("DELETE FROM records WHERE shard = ? AND chunks = 0", (LEFT,))
        row = self._file.execute("SELECT COUNT(*) FROM records WHERE shard = ?", (LEFT,)).fetchone()
        return int(row[0])

    def left(self, most: int) -> list[tuple[int, str, int]]:
        """Some of them, to be deleted: place, id, chunks. They are in doubt from here on, for a run that is
        killed may have deleted some of their points when they come back.
        """
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            rows = self._file.execute(
                "SELECT place, id, chunks, key FROM records WHERE shard = ? AND chunks > 0 LIMIT ?",
                (LEFT, most),
            ).fetchall()
            self.doubt([(key, id_, chunks) for _, id_, chunks, key in rows])
        return [row[:3] for row in rows]

    def forget_left(self, places: Sequence[int]) -> None:
        """Their points are gone."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "DELETE FROM pending WHERE id IN (SELECT id FROM records WHERE shard = ? AND place = ?)",
                ((LEFT, place) for place in places),
            )
            self._file.executemany(
                "DELETE FROM records WHERE shard = ? AND place = ?", ((LEFT, place) for place in places)
            )

    def orphans(self, most: int) -> list[tuple[str, int]]:
        """Documents in doubt that no shard holds any more: id, most chunks."""
        return self._file.execute(
            "SELECT id, chunks FROM pending AS p WHERE NOT EXISTS"
            " (SELECT 1 FROM records AS r WHERE r.key = p.key AND r.id = p.id AND r.shard <> ?) LIMIT ?",
            (LEFT, most),
        ).fetchall()

    def forget_orphans(self, documents: Sequence[str]) -> None:
        """Their points are gone."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "DELETE FROM records WHERE shard = ? AND place IN (SELECT r.place FROM pending AS p"
                " JOIN records AS r ON r.key = p.key AND r.id = p.id AND r.shard = ? WHERE p.id = ?)",
                ((LEFT, LEFT, id_) for id_ in documents),
            )
            self._file.executemany("DELETE FROM pending WHERE id = ?", ((id_,) for id_ in documents))
