"""Making the state file again from what the collection says of itself."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ingestor.commands.common import alone
from ingestor.commands.comparing import FIELDS
from ingestor.commands.vectors import check_model
from ingestor.config.settings import Settings
from ingestor.encoding.calibration import Calibration, recall
from ingestor.errors import IdentityMismatchError
from ingestor.lock import Lock
from ingestor.running import wiring
from ingestor.running.generations import own
from ingestor.sink import Stored, open_reader
from ingestor.state.file import LEFT, NO_HASH, state_errors
from ingestor.state.identity import as_ids, document_key, origin_of
from ingestor.state.ledger import Ledger
from ingestor.state.writes import PART_ROWS, Records, Writes

SCRATCH = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE points (key INTEGER, id TEXT, chunk INTEGER, chunks INTEGER, hash BLOB);
"""
DOCUMENTS = """
SELECT key, id, MIN(hash), MAX(chunk) + 1,
    COUNT(*) = MAX(chunk) + 1 AND MAX(chunk) + 1 = MAX(chunks) AND MIN(chunks) = MAX(chunks)
    AND MIN(hash) = MAX(hash) AND MIN(hash) <> zeroblob(16)
FROM points GROUP BY key, id
"""
"""Each document: its hash, the most chunks there can be, and whether they are all there, of one version. No
chunk is met twice, for its number is part of the point's id."""


@dataclass(slots=True)
class Rebuilt:
    """What a state file was made of.

    Attributes:
        documents: of the collection; `incomplete` of them lack chunks, or have some of another version.
        points: of these documents; `foreign` ones were not written by this program.
        kept: where the state file from before lies now; None where there was none.
        lost: the 8-bit model that the collection was written with, where nothing knows it any more.
    """

    documents: int = 0
    incomplete: int = 0
    points: int = 0
    foreign: int = 0
    kept: str | None = None
    lost: str | None = None


def rebuild_state(settings: Settings) -> Rebuilt:
    """Make the state file again, and put the one from before aside.

    The documents are kept like those that left the source: a reading of the shards finds them again. Those
    that are incomplete have no hash, so that the next run that reads them embeds them.

    Raises:
        NothingThereError: there is no collection.
        LockedError: a run has the state file or the embedded collection.
        IdentityMismatchError: the collection is of another model, or not of this program.
    """
    settings = own(settings)
    state, rebuilt = Path(settings.state), Rebuilt()
    spec = wiring.spec_of(settings)
    target = wiring.target_of(settings, spec)
    with ExitStack() as stack:
        stack.enter_context(alone(settings))
        reader = stack.enter_context(closing(open_reader(target)))
        stack.enter_context(Lock.acquire(wiring.state_lock(settings)))
        check_model(reader, spec, settings)
        identity = reader.identity()
        if identity is None:
            raise IdentityMismatchError(
                f"{target}: it was not written by this program; there is no state of it"
            )
        scratch = tempfile.TemporaryDirectory(prefix=f".{state.name}.", dir=state.parent)
        folder = Path(stack.enter_context(scratch))
        with state_errors(state):
            documents = gathered(reader.scan(FIELDS), folder / "points", rebuilt)
            calibration = recall(wiring.kept_models(settings), identity.get("calibration", ""))
            write_state(folder / "state", documents, identity, spec.name, calibration)
        rebuilt.lost = None if calibration else identity.get("calibration")
        rebuilt.kept = replace(state, folder / "state")
    return rebuilt


def gathered(
    pages: Iterable[Sequence[Stored]], scratch: Path, rebuilt: Rebuilt
) -> Iterator[tuple[int, str, bytes, int]]:
    """The documents of all points: key, id, hash and chunks, by key. Holds a page; the rest is on disk."""
    with closing(sqlite3.connect(scratch, isolation_level=None)) as file:
        file.executescript(SCRATCH)
        file.execute("BEGIN")
        for page in pages:
            file.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows(page, rebuilt))
        file.execute("COMMIT")
        for key, id_, hash_, chunks, complete in file.execute(DOCUMENTS):
            rebuilt.documents += 1
            rebuilt.incomplete += not complete
            yield key, id_, hash_ if complete else NO_HASH, chunks


def rows(page: Sequence[Stored], rebuilt: Rebuilt) -> Iterator[tuple[int, str, int, int, bytes]]:
    """Rows of the scratch table, for the points that are of this program."""
    for point in page:
        if name := origin_of(point.id, point.payload):
            rebuilt.points += 1
            yield document_key(name[0]), *name, *version(point.payload)
        else:
            rebuilt.foreign += 1


def version(payload: dict[str, Any]) -> tuple[int, bytes]:
    """The number of chunks and the hash that a point says its document has; what cannot be is 0 or none."""
    chunks, hash_ = payload.get("chunks"), payload.get("hash")
    try:
        known = bytes.fromhex(hash_) if isinstance(hash_, str) else b""
    except ValueError:
        known = b""
    return chunks if isinstance(chunks, int) and chunks > 0 else 0, known if len(known) == 16 else NO_HASH


def write_state(
    path: Path,
    documents: Iterable[tuple[int, str, bytes, int]],
    identity: dict[str, Any],
    model: str,
    calibration: Calibration | None,
) -> None:
    """Make a state file that knows these documents, and no shards; the name that the settings give the model;
    and what an 8-bit model was fitted to.
    """
    with ThreadPoolExecutor(1) as thread, closing(Ledger.open(path, thread)) as ledger:
        ledger.take_over(identity["state"])
        ledger.set_identity(orjson.dumps(identity["vector"]).decode())
        ledger.set_meta("model", model)
        if calibration:
            ledger.set_meta("calibration", calibration.to_bytes())
        place = 1
        for part in parts(documents):
            ledger.record(Writes(records=[records(part, place)]))
            place += len(part)


def parts(documents: Iterable[tuple[int, str, bytes, int]]) -> Iterator[list[tuple[int, str, bytes, int]]]:
    """Some at a time."""
    left = iter(documents)
    while part := list(islice(left, PART_ROWS)):
        yield part


def records(part: Sequence[tuple[int, str, bytes, int]], place: int) -> Records:
    """Documents as what left the source, from this place on."""
    keys, ids, hashes, chunks = zip(*part, strict=True)
    counts = np.array(chunks, np.int32)
    return Records(
        LEFT,
        np.arange(place, place + len(part)),
        np.array(keys, np.int64),
        list(ids),
        as_ids(b"".join(hashes)),
        counts,
        counts,
        np.zeros(len(part), np.bool_),
    )


def replace(state: Path, new: Path) -> str | None:
    """Put the new state file in place; the one from before is moved aside, and its name returned."""
    kept = None
    if state.exists():
        kept = f"{state}.bak-{time.strftime('%Y%m%dT%H%M%S')}"
        for suffix in ("-wal", "-shm", ""):
            if (beside := Path(f"{state}{suffix}")).exists():
                beside.rename(f"{kept}{suffix}")
    with new.open("rb") as file:
        os.fsync(file.fileno())
    new.rename(state)
    return kept
