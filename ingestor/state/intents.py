"""What is about to be written: noted before any point of it can change in the collection."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable

import numpy as np
import orjson

from ingestor.records import Census, Verdict
from ingestor.state.leaving import Leaving

RECORDED = "SELECT 1 FROM records WHERE shard = ? AND key = ? AND id = ? AND chunks <> 0 AND place >= ?"


class Intents:
    """A part of the ledger's writing half, over the same connection, in the same thread."""

    def __init__(self, file: sqlite3.Connection, leaving: Leaving) -> None:
        self._file = file
        self._leaving = leaving

    def note(self, census: Census) -> None:
        """Note a block's documents that are new, and those that fail now and are stored as they were."""
        lost = (census.verdicts == Verdict.FAILED) & (census.stored > 0)
        rows = np.flatnonzero((census.verdicts == Verdict.NEW) | lost).tolist()
        if rows:
            ids, most = census.ids, np.maximum(census.chunks, census.stored)[rows].tolist()
            keys, places = census.keys[rows].tolist(), census.places[rows].tolist()
            documents = orjson.dumps((keys, [ids[row] for row in rows], most, places))
            self._file.execute(
                "INSERT OR REPLACE INTO intents VALUES (?, ?, ?)", (census.block, census.shard.key, documents)
            )

    def forget(self, blocks: Iterable[int]) -> None:
        """Nothing of these blocks is under way any more."""
        self._file.executemany("DELETE FROM intents WHERE block = ?", ((block,) for block in blocks))

    def recover(self) -> None:
        """What an interrupted run had under way is in doubt: some of its points may have been written.

        A record that was recorded is not, but an earlier one of the same id says nothing about it.
        """
        intents = self._file.execute("SELECT shard, documents FROM intents").fetchall()
        for shard, packed in intents:
            keys, ids, most, *places = orjson.loads(packed)
            at = places[0] if places else [math.inf] * len(ids)  # written by an earlier version: all of them
            self._leaving.doubt(
                [
                    (key, id_, chunks)
                    for key, id_, chunks, place in zip(keys, ids, most, at, strict=True)
                    if not self._file.execute(RECORDED, (shard, key, id_, place)).fetchone()
                ]
            )
        self._file.execute("DELETE FROM intents")
