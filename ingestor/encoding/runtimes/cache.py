"""What was made of a model, kept in a folder: made once, whole or not at all, by one run at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ingestor.errors import LockedError, ResourceError, reason
from ingestor.lock import Lock
from ingestor.telemetry import logger

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
        make: writes files into the folder that it is given; when it has ended, nothing writes there any more.
        give_up: ends the waiting for another run that makes the same.

    Raises:
        LockedError: another run is at it, and did not end.
        ResourceError: the folder cannot be written.
    """
    said = json.dumps(about, sort_keys=True)
    place = folder / f"{kind}-{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"
    if place.exists():
        return place
    with await _held(place.with_suffix(".lock"), give_up):
        new = place.with_suffix(".new")
        try:
            if not place.exists():
                shutil.rmtree(new, ignore_errors=True)
                await asyncio.to_thread(_sweep, folder)
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


async def _held(path: Path, give_up: Callable[[], bool]) -> Lock:
    """The lock; a cancellation ends the waiting for it."""
    cancelled = threading.Event()

    def acquire() -> Lock:
        try:
            return Lock.acquire(path)
        except LockedError as error:
            logger().info("models", waiting=str(error))
        return Lock.acquire(path, WAIT_S, lambda: cancelled.is_set() or give_up())

    try:
        return await asyncio.to_thread(acquire)
    finally:
        cancelled.set()


def _sweep(folder: Path) -> None:
    """Remove what runs that were killed have left half made."""
    for left in folder.glob("*.new"):
        with suppress(LockedError), Lock.acquire(left.with_suffix(".lock")):
            shutil.rmtree(left, ignore_errors=True)


def _make_durable(folder: Path) -> None:
    """After a power failure a renamed folder must not hold empty files."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
