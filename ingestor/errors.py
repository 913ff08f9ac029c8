"""Everything that can go wrong and that the caller may tell apart.

Each error carries a message for people: what happened, where, and what to do. `cli` turns it into one line
and the exit code named here; nothing else prints.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LACKS = {
    errno.EMFILE: "too many open files; raise the limit (ulimit -n, LimitNOFILE= in a systemd unit)",
    errno.ENFILE: "the system has too many open files",
    errno.ENOSPC: "no room on the disk; make some and run again",
    errno.EDQUOT: "the disk quota is used up; make room and run again",
    errno.ENOMEM: "out of memory",
}
"""What the machine has too little of, in words."""


class IngestorError(Exception):
    """A run, or a command, could not do its work."""

    exit_code = 1


class ConfigError(IngestorError):
    """The configuration, an argument or an environment variable cannot be used."""

    exit_code = 2


class ModelError(ConfigError):
    """The model is not there, or it has a part that this encoder does not understand."""


class NothingThereError(IngestorError):
    """There is no collection or no state file yet; a run makes them."""


class IdentityMismatchError(IngestorError):
    """The collection holds vectors of another model or belongs to another state file; nothing was written."""

    exit_code = 4


class LockedError(IngestorError):
    """Another process holds the state file, the collection or the engine's folder."""

    exit_code = 5


class VerificationError(IngestorError):
    """The collection is not what the state says it is."""

    exit_code = 6


class ResourceError(IngestorError):
    """The machine has too little of something: shared memory, disk, open files."""


def reason(error: OSError) -> str:
    """Why the operating system refused something, and what to do where the machine lacks something."""
    return LACKS.get(error.errno or 0, error.strerror or str(error))


def full_reason(error: OSError) -> str:
    """The same with the file's name, where there is one."""
    return f"{error.filename}: {reason(error)}" if error.filename else reason(error)


def one_line(error: BaseException, most: int | None = None) -> str:
    """What a library says of its own error, in one line of at most so many characters."""
    return " ".join(str(error).split())[:most] or type(error).__name__


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of writing to an open file say which file it is, as one of opening it does."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


class SourceError(IngestorError):
    """A shard could not be read to its end. Ends the shard, never the run.

    Args:
        kind: one of the names in the report, `truncated_input` or `unsafe_xml` for instance.
        detail: what was found, and at which byte or record.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail


class TransientSourceError(SourceError):
    """The same request may succeed a little later.

    Args:
        retry_after_s: what the server asks to wait; None where it says nothing.
    """

    def __init__(self, kind: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(kind, detail)
        self.retry_after_s = retry_after_s


class StoppedError(SourceError):
    """A shard's reading was called off by a stop, which says nothing about the shard."""

    def __init__(self) -> None:
        super().__init__("stopped", "called off before it was read")


class SinkError(IngestorError):
    """The collection refused a request, or the engine failed."""


class TransientSinkError(SinkError):
    """The same request may succeed a little later."""


class EncoderError(IngestorError):
    """The encoder failed, or gave vectors that cannot be used."""


class WorkerDiedError(IngestorError):
    """A worker process ended by itself: killed, out of memory, or crashed in native code."""


class DrainTimeoutError(IngestorError):
    """A stopped run could not write in time what it had in hand; nothing is lost but time."""


def installing(extra: str) -> str:
    """How to install what an extra brings, with the package or in a clone of it."""
    return f"pip install 'ingestor[{extra}]' (in a clone: .venv/bin/pip install -e '.[{extra}]')"
