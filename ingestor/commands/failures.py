"""What was refused, where and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ingestor.config.settings import Settings
from ingestor.state.failures import OpenFailure, read_failures
from ingestor.state.file import existing_state


def failures(settings: Settings) -> Iterator[OpenFailure]:
    """The open failures, by shard and place.

    Raises:
        NothingThereError: there is no state file.
    """
    return read_failures(existing_state(Path(settings.state)))


def as_json(found: Iterable[OpenFailure]) -> Iterator[str]:
    for failure in found:
        yield json.dumps(asdict(failure) | {"time": moment(failure).isoformat(timespec="seconds")})


def as_text(found: Iterable[OpenFailure]) -> Iterator[str]:
    total = 0
    for failure in found:
        total += 1
        where = failure.shard if failure.place is None else f"{failure.shard}:{failure.place}"
        since = moment(failure).astimezone().isoformat(" ", "seconds")
        document = f" (document {failure.document})" if failure.document is not None else ""
        yield f"{where}: {failure.kind}: {failure.detail}{document}, {since}"
    advice = "mend the shards and run again, or try them as they are with --retry"
    yield f"{total:,} open; {advice}" if total else "none open"


def moment(failure: OpenFailure) -> datetime:
    return datetime.fromtimestamp(failure.time, UTC)
