"""The state file's reading half: what is known of a record, and the totals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ingestor.state.file import existing_state, open_to_read, opened, state_errors

TELLING_TOKENS = 50_000
"""A run over fewer is mostly its beginning."""


class Row(NamedTuple):
    """A record as the ledger knows it.

    Attributes:
        shard: key of the reading it is from.
        place: in the shard.
        hash: of the record.
        chunks: what the collection holds of it; see the module.
        position: the shard's place in this run's listing; None if it is not listed any more.
        current: the row is from the newest reading of its shard, so it is certain that the record exists.
    """

    shard: int
    place: int
    hash: bytes
    chunks: int
    position: int | None
    current: bool


class LedgerReader:
    """The reading half, for prepare processes: each look-up is a transaction of its own, so that the writer's
    log can be cut.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        with state_errors(self._path):
            self._file = open_to_read(self._path)

    def rows(self, keys: Iterable[int]) -> dict[str, list[Row]]:
        """All records with these keys, by document id."""
        found: dict[str, list[Row]] = {}
        query = (
            "SELECT r.id, r.shard, r.place, r.hash, r.chunks, s.position, s.current FROM json_each(?) AS j"
            " CROSS JOIN records AS r ON r.key = j.value JOIN shards AS s ON s.key = r.shard"
        )
        with state_errors(self._path):
            for id_, *row in self._file.execute(query, (json.dumps(list(keys)),)):
                found.setdefault(id_, []).append(Row(*row))
        return found

    def pending(self, keys: Iterable[int]) -> dict[str, int]:
        """Those of these documents whose points are in doubt: id and the most chunks there can be."""
        query = "SELECT p.id, p.chunks FROM pending AS p WHERE p.key IN (SELECT value FROM json_each(?))"
        with state_errors(self._path):
            return dict(self._file.execute(query, (json.dumps(list(keys)),)).fetchall())

    def close(self) -> None:
        self._file.close()


def totals(file: sqlite3.Connection) -> tuple[int, int, int]:
    row = file.execute("SELECT COUNT(*), COALESCE(SUM(chunks), 0) FROM records WHERE chunks > 0").fetchone()
    return row[0], row[1], file.execute("SELECT COUNT(*) FROM failures").fetchone()[0]


def read_meta(path: Path, name: str) -> Any:
    """One thing that the state file remembers; None where it does not."""
    with opened(path) as file:
        row = file.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return row and row[0]


def read_status(path: Path) -> dict[str, Any]:
    """What `status` shows, from the state file alone.

    Raises:
        NothingThereError: there is no state file yet.
        ConfigError: it is none, or cannot be read.
    """
    existing_state(path)
    with opened(path) as file:
        documents, points, failures = totals(file)
        meta = dict(file.execute("SELECT name, value FROM meta").fetchall())
        run = file.execute(
            "SELECT started, ended, status, report FROM runs ORDER BY id DESC LIMIT 1"
        ).fetchone()
    last = run and {"started": run[0], "ended": run[1], "status": run[2], "warnings": _warnings(run[3])}
    return {
        "documents": documents,
        "points": points,
        "failures": failures,
        "state_id": meta.get("state_id"),
        "model": meta.get("model"),
        "identity": json.loads(meta.get("identity", "null")),
        "last_run": last,
    }


def _warnings(report: str | None) -> list[dict[str, str]]:
    """Those of a run, from its report; none while it goes on."""
    found: list[dict[str, str]] = json.loads(report or "{}").get("warnings", [])
    return found


def read_finished(path: Path) -> dict[str, str]:
    """Fingerprints of the shards that were read to their end, by name; none without a state file."""
    if not path.exists():
        return {}
    query = "SELECT name, fingerprint FROM shards WHERE current AND fingerprint IS NOT NULL"
    with opened(path) as file:
        return dict(file.execute(query).fetchall())


def read_speed(path: Path) -> float | None:
    """Tokens a second of the last run that embedded enough to tell; None without one."""
    if not path.exists():
        return None
    query = "SELECT report FROM runs WHERE report IS NOT NULL ORDER BY id DESC LIMIT 50"
    with opened(path) as file:
        reports = [json.loads(report) for (report,) in file.execute(query)]
    for report in reports:
        tokens, seconds = report["tokens"]["embedded"], report["seconds"]
        if tokens >= TELLING_TOKENS and seconds > 0:
            return float(tokens / seconds)
    return None
