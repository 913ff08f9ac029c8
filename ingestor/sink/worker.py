"""What runs in a sink process: plain functions over the one sink that the process holds. Never torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from ingestor import buffers
from ingestor import worker as worker_process
from ingestor.errors import IngestorError, SinkError
from ingestor.records import Points, UInt8s
from ingestor.sink import REQUEST_BYTES, TOO_LARGE, Refusal, Sink, Target, collection, sizes
from ingestor.sink.folder import folder_of
from ingestor.sink.patience import Wait
from ingestor.sink.place import check_place

P = ParamSpec("P")
T = TypeVar("T")

_open: list[Session] = []  # all that a sink process keeps between two calls: its sink,
_pipes: list[Connection] = []  # and where it says what it waits for


class Session:
    """A sink, and the slots that it reads, once there are any."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.attached: buffers.AttachedBuffers | None = None


def start(pipe: Connection) -> None:
    """What a sink process does first, beside what every worker process does."""
    worker_process.start()
    _pipes.append(pipe)


def tell(wait: Wait | None) -> None:
    """Say what this process waits for, and None when it goes on."""
    for pipe in _pipes:
        pipe.send(wait)


def answer(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | IngestorError:
    """Call a function; what goes wrong comes back as a value, for a traceback is no message."""
    try:
        return function(*args, **kwargs)
    except IngestorError as error:
        return error
    except Exception as error:  # the run ends with it: `SinkPool` raises every error that comes back
        return SinkError(f"a sink process failed: {type(error).__name__}: {error}")


def ensure_collection(
    target: Target, directories: int, identity: Mapping[str, Any], recreate: bool, adopt: bool
) -> list[str]:
    """Make or check the collection, in a process that has not opened it; see `collection.ensure`."""
    if not target.url:
        check_place(folder_of(target))
    with collection.store_of(target, directories) as store:
        return collection.ensure(store, target, identity, recreate=recreate, adopt=adopt)


def open_sink(target: Target, directory: int) -> None:
    """Open the collection, or one directory of it, for writing."""
    _open.append(Session(_sink_of(target, directory)))


def attach(layout: buffers.BufferLayout) -> None:
    """Map the slots that vectors are read from."""
    _open[0].attached = buffers.attach(layout)


def _sink_of(target: Target, directory: int) -> Sink:
    if target.url:
        from ingestor.sink.server import ServerSink

        return ServerSink(target, tell=tell)
    from ingestor.sink.embedded import EmbeddedSink

    return EmbeddedSink(target, directory)


def upsert(slot: int, rows: npt.NDArray[np.intp] | None, points: Points) -> list[Refusal]:
    """Write points whose vectors are these rows of a slot (None: the first ones), in the same order."""
    session = _open[0]
    if session.attached is None:
        raise SinkError("the sink was opened without buffers, so it cannot write points")
    vectors = session.attached.vectors(slot)
    vectors = vectors[: len(points)] if rows is None else vectors[rows]
    lengths = sizes(points.payloads, 4 * vectors.shape[1])
    fitting = np.flatnonzero(np.asarray(lengths) <= REQUEST_BYTES)
    if len(fitting) == len(points):
        return session.sink.upsert(vectors, points)
    detail = f"the point is larger than a request can hold, {REQUEST_BYTES >> 20} MiB; keep less metadata"
    refused = [(row, TOO_LARGE, detail) for row in set(range(len(points))) - set(fitting.tolist())]
    written = session.sink.upsert(vectors[fitting], points.take(fitting))
    return refused + [(int(fitting[row]), kind, detail) for row, kind, detail in written]


def delete(ids: UInt8s) -> None:
    """Delete points by id."""
    _open[0].sink.delete(ids)


def flush() -> None:
    """Make durable what this process wrote before."""
    _open[0].sink.flush()


def optimize() -> None:
    """Build this process's part of the search index."""
    _open[0].sink.optimize()


def count() -> int:
    """Points that this process is responsible for."""
    return _open[0].sink.count()


def close_sink() -> None:
    """Let go of everything; does nothing where nothing is open."""
    while _open:
        session = _open.pop()
        session.sink.close()
        if session.attached is not None:
            session.attached.close()
