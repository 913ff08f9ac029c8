"""What was made of a model, kept in a folder: made once, whole or not at all, by one run at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from ingestor.errors import ResourceError, reason
from ingestor.lock import Lock

ABOUT = "about.json"
WAIT_S = 1800.0
"""For another run that makes the same; a large model takes minutes."""


async def keep(
    folder: Path,
    kind: str,
    about: Mapping[str, Any],
    make: Callable[[Path], Awaitable[None]],
    *,
    give_up: Callable[[], bool],
) -> Path:
    """The folder in which `make` has left its files; they are made where they are not there yet.

    Args:
        folder: of all that is kept.
        kind: begins the name.
        about: all that decides what is made; kept beside it.
        make: writes files into the folder that it is given.
        give_up: ends the waiting for another run that makes the same.

    Raises:
        LockedError: another run is at it, and did not end.
        ResourceError: the folder cannot be written.
    """
    said = json.dumps(about, sort_keys=True)
    place = folder / f"{kind}-{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"
    if place.exists():
        return place
    with await asyncio.to_thread(Lock.acquire, place.with_suffix(".lock"), WAIT_S, give_up):
        new = place.with_suffix(".new")
        try:
            if not place.exists():
                shutil.rmtree(new, ignore_errors=True)  # of a run that was killed
                new.mkdir()
                await make(new)
                (new / ABOUT).write_text(said)
                _make_durable(new)
                new.rename(place)
        except OSError as error:
            raise ResourceError(f"{error.filename or new}: {reason(error)}") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return place


def _make_durable(folder: Path) -> None:
    """After a power failure a renamed folder must not hold empty files."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
