"""Whether a state file's last run brought the collection in step with the source."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingestor.config.settings import Settings
from ingestor.errors import VerificationError
from ingestor.state.file import LEFT, existing_state, opened

STILL_CHANGING = ("truncated_input", "changed")
"""Warnings of shards that were read as far as they go, and are to be read again."""


def require_complete(settings: Settings) -> None:
    """Refuse a collection that is only a part of what it is to be, though its count is what the state says.

    Raises:
        VerificationError: says what is missing.
        NothingThereError: there is no state file.
    """
    with opened(existing_state(Path(settings.state))) as file:
        found = list(lacking(file, settings.failures.tolerate))
    if found:
        collection = settings.qdrant.collection
        raise VerificationError(f"collection {collection!r} is not complete: {'; '.join(found)}; run again")


def lacking(file: sqlite3.Connection, tolerate: int) -> Iterator[str]:
    """What keeps the last run from having been a complete one."""
    row = file.execute("SELECT status, report FROM runs ORDER BY id DESC LIMIT 1").fetchone()
    status, report = (row[0], json.loads(row[1] or "{}")) if row else ("none", {})
    if status != "complete":
        yield f"the last run did not end by itself ({status})"
        return
    if (failures := report["failures_open"]) > tolerate:
        yield f"{failures:,} failures are open, and failures.tolerate is {tolerate}"
    if withheld := report["documents"]["withheld"]:
        yield f"{withheld:,} deletions were withheld"
    if unread := unfinished(file, report):
        yield f"{len(unread):,} shards were not read to their end ({', '.join(unread[:3])})"


def unfinished(file: sqlite3.Connection, report: dict[str, Any]) -> list[str]:
    """Shards that `--limit` left, in other words that nothing in the report accounts for."""
    changing = [remark for remark in report["warnings"] if remark["kind"] in STILL_CHANGING]
    told = {remark["shard"] for remark in (*report["shard_errors"], *changing)}
    rows = file.execute(
        "SELECT DISTINCT name FROM shards WHERE current AND fingerprint IS NULL AND key <> ? ORDER BY name",
        (LEFT,),
    )
    return [name for (name,) in rows if name not in told]
