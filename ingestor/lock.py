"""The operating system's lock on a file; it ends with the process that holds it, however that one ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ingestor.errors import LACKS, ConfigError, LockedError, ResourceError, reason

RETRY_S = 0.2
A_RUN_CAN_WAIT = " (a run can wait for that: --lock-wait SECONDS)"


class Lock:
    """A held lock; the file stays when it is released, for removing it would race with the next holder."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    @classmethod
    def acquire(
        cls,
        path: Path,
        wait_s: float = 0.0,
        give_up: Callable[[], bool] = lambda: False,
        advice: str = "",
    ) -> Lock:
        """Take the lock, waiting up to `wait_s` seconds and no longer than until `give_up` says so.

        Worker processes do not inherit it: the handle closes on exec. `advice` ends the message where another
        process holds it.

        Raises:
            LockedError: another process holds it.
            ConfigError, ResourceError: the file cannot be made, or not be locked.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise refused(path, "made", error) from error
        try:
            wait_for(handle, path, time.monotonic() + wait_s, give_up, advice)
        except OSError as error:
            os.close(handle)
            raise refused(path, "locked", error) from error
        except BaseException:
            os.close(handle)
            raise
        with suppress(OSError):  # a full disk: others learn that it is held, not by whom
            os.truncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        return cls(path, handle)

    def release(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def refused(path: Path, what: str, error: OSError) -> ConfigError | ResourceError:
    kind = ResourceError if error.errno in LACKS else ConfigError
    return kind(
        f"{path}: the lock file cannot be {what}: {reason(error)}; name a folder that can be"
        " written to (`state`, qdrant.path)"
    )


def wait_for(handle: int, path: Path, until: float, give_up: Callable[[], bool], advice: str) -> None:
    """Lock the file. It is polled, for a blocking lock has no deadline and cannot be called off.

    Raises:
        LockedError: another process held it until then.
    """
    while not try_lock(handle):
        if time.monotonic() >= until or give_up():
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            raise LockedError(f"{path}: held by process {holder}; try again when it has ended{advice}")
        time.sleep(RETRY_S)


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
