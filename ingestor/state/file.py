"""The state file itself: its layout, how it is opened, and what may be wrong with it."""

from __future__ import annotations

import errno
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ingestor.errors import LACKS, ConfigError, NothingThereError, ResourceError, reason

VERSION = 2
UPGRADES = {1: "ALTER TABLE shards ADD COLUMN digest TEXT; PRAGMA user_version = 2"}
"""From older versions to the next one."""
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""For the file or its log, and for the log's index."""
LEFT = 0
"""Key of the shard that holds what left the source."""
NO_HASH = bytes(16)
"""That of a document whose points were found incomplete; no record has it, so the next one is embedded."""

PRAGMAS = {
    "synchronous": "NORMAL",  # after a power failure the last documents are embedded again
    "cache_size": -16_384,  # KiB; the index by key is written to all over, and four times as much gains none
    "wal_autocheckpoint": 16_384,  # pages; such scattered pages are worth collecting
    "temp_store": "MEMORY",  # what undoes a statement: else three quarters of all that is written
}

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


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open or create a state file, and bring one of an older version up to date.

    Raises:
        ConfigError: it is no state file, or one of another version.
        ResourceError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"state {path}: {reason(error)}") from error
    with state_errors(path):
        file = sqlite3.connect(path, isolation_level=None, timeout=60)
        file.execute("PRAGMA journal_mode = WAL")
        for setting, value in PRAGMAS.items():
            file.execute(f"PRAGMA {setting} = {value}")
        version = file.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not file.execute("SELECT 1 FROM sqlite_master").fetchone():
            file.executescript("BEGIN;" + SCHEMA)
            file.execute("INSERT INTO meta VALUES ('state_id', ?)", (str(uuid.uuid4()),))
            file.execute("COMMIT")
            version = VERSION
        while upgrade := UPGRADES.get(version):
            file.executescript(f"BEGIN; {upgrade}; COMMIT")
            version += 1
    if version != VERSION:
        raise other_version(path, version)
    return file


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


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
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
    with opened(path) as file:
        version = file.execute("PRAGMA user_version").fetchone()[0]
        empty = not file.execute("SELECT 1 FROM sqlite_master").fetchone()
    if version not in (VERSION, *UPGRADES) and not (version == 0 and empty):
        raise other_version(path, version)


def other_version(path: Path, version: int) -> ConfigError:
    return ConfigError(
        f"state {path}: written by another version of the ingestor (schema {version}, not {VERSION})."
        " Use that version, or name a new state file and run with --recreate"
    )


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
