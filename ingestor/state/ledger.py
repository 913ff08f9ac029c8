"""What is stored, by whom and in which state: one SQLite file.

Each reading of a shard gets a key of its own in `shards`. Every record of it is a row of `records`, with the
number of chunks that the collection holds of it: n > 0 for the record that won its id, 0 for one that lost to
a later one, -1 for one that failed. When a reading is finished, the rows of earlier readings go. What they
held and this one does not is taken over by a loser (`pending`: to be read again), or it left the source: then
its row moves to the shard with key 0 until it is deleted from the collection or comes back.

Before a block's points may reach the collection, its new documents are noted in `intents`; what a killed run
leaves there is in doubt, and pending for the next run.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import numpy as np

from ingestor.records import Shard
from ingestor.state.failures import Failures
from ingestor.state.file import LEFT, NO_HASH, open_to_write, state_errors
from ingestor.state.intents import Intents
from ingestor.state.leaving import Leaving
from ingestor.state.lookup import totals
from ingestor.state.touched import Touched, fingerprint
from ingestor.state.writes import Writes

P = ParamSpec("P")
R = TypeVar("R")

INSERT_RECORDS = """
INSERT OR REPLACE INTO records
SELECT ?1, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    substr(?3, 16 * key + 1, 16), json_extract(value, '$[3]')
FROM json_each(?2)
"""
"""One statement for a block: with one for each row, the thread would wait for the interpreter's lock after
each, half of its time beside a busy loop. Ids have no NUL, which JSON in SQLite cannot hold (`Cleaner`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run has to read, and what it can pass over.

    Attributes:
        shards: to be read, with their keys.
        unchanged: shards that are passed over.
        held, lost, failed: documents in them that are stored, that lost their id to a later record, that
            failed.
    """

    shards: list[Shard]
    unchanged: int
    held: int
    lost: int
    failed: dict[str, int]


class Ledger:
    """The writing half. All methods run in `thread`, which owns the connection.

    Attributes:
        thread: one thread; `await loop.run_in_executor(ledger.thread, ledger.record, ...)`.
        leaving: what left, and what is in doubt.
        intents: what is about to be written.
        touched: what changed by date alone.
        failures: what was refused and is still to be mended.
        state_id: names this state file; kept in the collection, so that two state files never feed one
            collection.
    """

    def __init__(self, path: Path, file: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._path = path
        self._file = file
        self.thread = thread
        self.leaving = Leaving(file)
        self.intents = Intents(file, self.leaving)
        self.touched = Touched(file)
        self.failures = Failures(file)
        self._salt = b""
        self.state_id: str = self.meta("state_id")

    @classmethod
    def open(cls, path: Path, thread: ThreadPoolExecutor) -> Ledger:
        """Open or create the state file. Call it in `thread`.

        Raises:
            ConfigError: it is no state file, or one of another version.
            ResourceError: it cannot be written.
        """
        return cls(path, open_to_write(path), thread)

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one of the methods in the ledger's thread.

        Raises:
            ResourceError, ConfigError: the state file cannot be written or read any more.
        """
        loop = asyncio.get_running_loop()
        with state_errors(self._path):
            return await loop.run_in_executor(self.thread, lambda: work(*args, **kwargs))

    def close(self) -> None:
        self._file.close()

    def meta(self, name: str) -> Any:
        row = self._file.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row and row[0]

    def set_meta(self, name: str, value: str | bytes | None) -> None:
        """Remember something, durably; None forgets it."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM meta WHERE name = ?", (name,))
            if value is not None:
                self._file.execute("INSERT INTO meta VALUES (?, ?)", (name, value))

    def set_identity(self, vector: str) -> None:
        """The collection is there, made with this vector identity (JSON)."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("INSERT OR REPLACE INTO meta VALUES ('identity', ?)", (vector,))
            self._file.execute("DELETE FROM meta WHERE name = 'recreate'")

    def take_over(self, state_id: str) -> None:
        """Go by this name from now on."""
        self._file.execute("UPDATE meta SET value = ? WHERE name = 'state_id'", (state_id,))
        self.state_id = state_id

    def forget(self) -> None:
        """Forget all documents, and that the collection must be made anew: until `set_identity`.

        The name goes, too: a collection that stays, of the embedded engine or on another server, is not this
        state file's any more.
        """
        with self._file:
            self._file.execute("BEGIN")
            self._clear()
            self.take_over(str(uuid4()))
            self._file.execute("INSERT OR REPLACE INTO meta VALUES ('recreate', '1')")

    def disown(self) -> None:
        """Forget all documents, and of which collection they were; nothing is to be dropped."""
        with self._file:
            self._file.execute("BEGIN")
            self._clear()
            self._file.execute("DELETE FROM meta WHERE name IN ('identity', 'recreate')")

    def _clear(self) -> None:
        for table in ("records", "pending", "intents", "failures"):
            self._file.execute(f"DELETE FROM {table}")
        self._file.execute("DELETE FROM shards WHERE key <> ?", (LEFT,))
        self._file.execute("DELETE FROM meta WHERE name IN ('calibration', 'quality')")

    def plan(self, listing: Sequence[Shard], salt: bytes, *, full: bool = False, retry: bool = False) -> Plan:
        """Decide which shards to read; passed over is what is finished and unchanged, as is how it is read.

        Args:
            listing: all shards of the source, sorted by name.
            salt: stands for the way records are read and cut.
            full: read all of them.
            retry: read also those that open failures are in.
        """
        self._salt = salt
        to_read, passed = [], []
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute(
                "DELETE FROM shards WHERE fingerprint IS NULL AND key <> ?"
                " AND key NOT IN (SELECT shard FROM records)",
                (LEFT,),
            )
            self.intents.recover()
            self._file.execute("UPDATE shards SET position = NULL")
            for position, shard in enumerate(listing):
                wanted = fingerprint(shard, salt)
                self._file.execute("UPDATE shards SET position = ? WHERE name = ?", (position, shard.name))
                row = self._file.execute(
                    "SELECT key FROM shards WHERE name = ?1 AND current AND fingerprint = ?2"
                    " AND NOT (?3 AND EXISTS (SELECT 1 FROM failures WHERE shard = ?1))",
                    (shard.name, wanted, retry),
                ).fetchone()
                if row and not full:
                    passed.append(row[0])
                    continue
                self._file.execute("UPDATE shards SET current = 0 WHERE name = ?", (shard.name,))
                self.failures.age(shard.name)
                key = self._file.execute(
                    "INSERT INTO shards (name, position, current) VALUES (?, ?, 1) RETURNING key",
                    (shard.name, position),
                ).fetchone()[0]
                to_read.append(replace(shard, key=key, position=position))
        return Plan(to_read, len(passed), *self._count(passed))

    def _count(self, shards: Sequence[int]) -> tuple[int, int, dict[str, int]]:
        """Documents in these shards that are stored, that lost their id, and that failed, by kind."""
        keys = json.dumps(list(shards))
        held, lost = self._file.execute(
            "SELECT TOTAL(chunks > 0), TOTAL(chunks = 0) FROM records"
            " WHERE shard IN (SELECT value FROM json_each(?))",
            (keys,),
        ).fetchone()
        failed = self._file.execute(
            "SELECT f.kind, COUNT(*) FROM failures AS f JOIN shards AS s ON s.name = f.shard"
            " WHERE NOT f.rejected AND s.key IN (SELECT value FROM json_each(?)) GROUP BY f.kind",
            (keys,),
        ).fetchall()
        return int(held), int(lost), dict(failed)

    def record(self, writes: Writes) -> None:
        """Write a part of what is durable, all of it or nothing."""
        owners = writes.owners()
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "UPDATE records SET chunks = 0 WHERE key = ? AND id = ? AND chunks <> 0", owners
            )
            pending = self._file.execute("SELECT 1 FROM pending LIMIT 1").fetchone()
            for records in writes.records:
                self._file.execute(INSERT_RECORDS, records.packed())
                if pending:
                    settled = np.flatnonzero(records.chunks).tolist()
                    self._file.executemany(
                        "DELETE FROM pending WHERE id = ?", ((records.ids[row],) for row in settled)
                    )
            self.leaving.doubt(writes.doubtful)
            self.failures.add(writes.failures)
            self.intents.forget(writes.complete)

    def finish(self, shard: Shard, digest: str | None = None) -> int:
        """All of a shard is settled: what earlier readings of it held is sorted out, and it may be passed
        over from now on, or as long as its bytes have this digest.

        Returns:
            How many records that lost their ids have them now, with what is stored already.
        """
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            old = self._file.execute(
                "SELECT key FROM shards WHERE name = ? AND key <> ?", (shard.name, shard.key)
            ).fetchall()
            equal = self.leaving.drop([key for (key,) in old])
            self.leaving.doubt_early_owners(shard.key)
            self.failures.replace_earlier(shard)
            self._file.execute(
                "UPDATE shards SET fingerprint = ?, digest = ? WHERE key = ?",
                (fingerprint(shard, self._salt), digest, shard.key),
            )
        return equal

    def is_empty(self) -> bool:
        """No document is taken for stored."""
        return self._file.execute("SELECT 1 FROM records WHERE chunks > 0 LIMIT 1").fetchone() is None

    def totals(self) -> tuple[int, int, int]:
        """Documents and points in the collection, and open failures."""
        return totals(self._file)

    def expected_points(self) -> tuple[int, int]:
        """How many points the collection holds, at least and at most: some documents may be in doubt."""
        least, most = self._file.execute(
            "SELECT TOTAL(IIF(hash = ?, 0, chunks)), TOTAL(chunks) FROM records WHERE chunks > 0", (NO_HASH,)
        ).fetchone()
        doubtful = self._file.execute("SELECT TOTAL(chunks) FROM pending").fetchone()[0]
        return int(least), int(most + doubtful)

    def start_run(self) -> int:
        return int(
            self._file.execute(
                "INSERT INTO runs (started, status) VALUES (?, 'running') RETURNING id", (time.time(),)
            ).fetchone()[0]
        )

    def end_run(self, run: int, status: str, report: str) -> None:
        self._file.execute(
            "UPDATE runs SET ended = ?, status = ?, report = ? WHERE id = ?",
            (time.time(), status, report, run),
        )
        self._file.execute("PRAGMA optimize")
