"""The state file's layout, and its reading half: what is known of a record, and the totals."""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ingestor.errors import LACKS, ConfigError, NothingThereError, ResourceError

VERSION = 2
UPGRADES = {1: "ALTER TABLE shards ADD COLUMN digest TEXT; PRAGMA user_version = 2"}
"""From older versions to the next one."""
TELLING_TOKENS = 50_000
"""A run over fewer is mostly its beginning."""
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""For the file or its log, and for the log's index."""
LEFT = 0
"""Key of the shard that holds what left the source."""
NO_HASH = bytes(16)
"""That of a document whose points were found incomplete; no record has it, so the next one is embedded."""

SCHEMA = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE shards (
    key INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    fingerprint TEXT,               -- set when the reading is finished
    position INTEGER,               -- in this run's listing; NULL: not listed
    current INTEGER NOT NULL,       -- the newest reading of its name
    digest TEXT                     -- of the file's bytes, where they are known
);
CREATE INDEX shards_name ON shards (name);
CREATE TABLE records (
    shard INTEGER NOT NULL,
    place INTEGER NOT NULL,
    key INTEGER NOT NULL,           -- hash of the id
    id TEXT NOT NULL,
    hash BLOB NOT NULL,
    chunks INTEGER NOT NULL,
    PRIMARY KEY (shard, place)
) WITHOUT ROWID;
CREATE INDEX records_key ON records (key);
CREATE TABLE pending (key INTEGER, id TEXT PRIMARY KEY, chunks INTEGER) WITHOUT ROWID;
CREATE TABLE intents (block INTEGER PRIMARY KEY, shard INTEGER NOT NULL, documents BLOB NOT NULL);
CREATE TABLE failures (
    shard TEXT, place INTEGER, reading INTEGER, kind TEXT, detail TEXT, document TEXT, offset INTEGER,
    rejected INTEGER, time REAL, PRIMARY KEY (shard, place)
) WITHOUT ROWID;
CREATE TABLE runs (id INTEGER PRIMARY KEY, started REAL, ended REAL, status TEXT, report TEXT);
INSERT INTO shards VALUES ({LEFT}, '', NULL, NULL, 0, NULL);
PRAGMA user_version = {VERSION};
"""


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


def existing_state(path: Path) -> Path:
    """The path of a state file that is there.

    Raises:
        NothingThereError: it is not.
    """
    if not path.exists():
        raise NothingThereError(
            f"state {path}: not there yet; nothing was ingested with this configuration; run it first"
        )
    return path


def open_to_read(path: Path) -> sqlite3.Connection:
    """Connect to an existing state file; every statement is a transaction of its own."""
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=60)


def totals(file: sqlite3.Connection) -> tuple[int, int, int]:
    row = file.execute("SELECT COUNT(*), COALESCE(SUM(chunks), 0) FROM records WHERE chunks > 0").fetchone()
    return row[0], row[1], file.execute("SELECT COUNT(*) FROM failures").fetchone()[0]


def read_meta(path: Path, name: str) -> Any:
    """One thing that the state file remembers; None where it does not."""
    with _opened(path) as file:
        row = file.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return row and row[0]


def read_status(path: Path) -> dict[str, Any]:
    """What `status` shows, from the state file alone.

    Raises:
        NothingThereError: there is no state file yet.
        ConfigError: it is none, or cannot be read.
    """
    existing_state(path)
    with _opened(path) as file:
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


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """An existing state file.

    Raises:
        ConfigError, ResourceError: it is none, or cannot be read.
    """
    with state_errors(path), closing(open_to_read(path)) as file:
        yield file


def check_version(path: Path) -> None:
    """Refuse a state file of another version.

    Raises:
        ConfigError: it is one, or no state file at all.
        ResourceError: it cannot be read.
    """
    with _opened(path) as file:
        version = file.execute("PRAGMA user_version").fetchone()[0]
        empty = not file.execute("SELECT 1 FROM sqlite_master").fetchone()
    if version not in (VERSION, *UPGRADES) and not (version == 0 and empty):
        raise other_version(path, version)


def other_version(path: Path, version: int) -> ConfigError:
    return ConfigError(
        f"state {path}: written by another version of the ingestor (schema {version}, not {VERSION})."
        " Use that version, or name a new state file and run with --recreate"
    )


def read_finished(path: Path) -> dict[str, str]:
    """Fingerprints of the shards that were read to their end, by name; none without a state file."""
    if not path.exists():
        return {}
    query = "SELECT name, fingerprint FROM shards WHERE current AND fingerprint IS NOT NULL"
    with _opened(path) as file:
        return dict(file.execute(query).fetchall())


def read_speed(path: Path) -> float | None:
    """Tokens a second of the last run that embedded enough to tell; None without one."""
    if not path.exists():
        return None
    query = "SELECT report FROM runs WHERE report IS NOT NULL ORDER BY id DESC LIMIT 50"
    with _opened(path) as file:
        reports = [json.loads(report) for (report,) in file.execute(query)]
    for report in reports:
        tokens, seconds = report["tokens"]["embedded"], report["seconds"]
        if tokens >= TELLING_TOKENS and seconds > 0:
            return float(tokens / seconds)
    return None


@contextmanager
def state_errors(path: Path) -> Iterator[None]:
    """Say what is wrong with the state file, in place of SQLite.

    Raises:
        ConfigError, ResourceError: it is none, or it cannot be read or written.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise state_error(path, error) from error


def state_error(path: Path, error: sqlite3.DatabaseError) -> ConfigError | ResourceError:
    if getattr(error, "sqlite_errorcode", None) in NO_ROOM:
        return ResourceError(f"state {path}: {LACKS[errno.ENOSPC]}")
    if isinstance(error, sqlite3.OperationalError):
        return ResourceError(f"state {path}: {error}")
    return ConfigError(
        f"state {path}: not a state file of the ingestor ({error}); name another one under `state`"
    )
