"""The sink processes as the event loop sees them: started, asked and stopped here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from ingestor import worker as worker_process
from ingestor.buffers import BufferLayout
from ingestor.errors import IngestorError
from ingestor.records import Applied, Int64s, UInt8s, UpsertRequest
from ingestor.sink import Refusal, Target, worker
from ingestor.sink.folder import directories_of, directory_of
from ingestor.sink.waits import Waits, nowhere

P = ParamSpec("P")
T = TypeVar("T")
Rows = npt.NDArray[np.intp]
CLOSING_S = 30
"""A sink that has not let go of its collection after so many seconds is killed; what was flushed is safe."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request under way: (rows of it, the answer to come) for each process that has a part in it."""

    documents: Int64s
    refused: tuple[Refusal, ...]
    parts: list[tuple[Rows | None, int, asyncio.Future[list[Refusal] | IngestorError]]]

    def done(self) -> bool:
        """Whether the answer is there."""
        return all(future.done() for _, _, future in self.parts)


class SinkPool:
    """N executors of one process each: rows can be routed, and a process works in order of asking.

    Attributes:
        differences: where the collection is not what the configuration asks for.
        waits: what the processes wait for, and have waited for.
    """

    def __init__(self, target: Target, pools: Sequence[ProcessPoolExecutor], waits: Waits) -> None:
        self.waits = waits
        self._target = target
        self._pools = pools
        self._under_way = [0] * len(pools)
        self.differences: list[str] = []

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self._pools)

    @classmethod
    async def open(
        cls,
        target: Target,
        *,
        identity: Mapping[str, Any],
        processes: int,
        show: Callable[[str], None] = nowhere,
        recreate: bool = False,
        adopt: bool = False,
    ) -> SinkPool:
        """Start the processes, make or check the collection, and open it.

        Args:
            target: the collection.
            identity: `vector`, `record` and `state`; kept with the collection.
            processes: how many; a collection in the embedded engine keeps the number that it was made with.
            show: is given what the processes wait for, in words.
            recreate: drop the collection first.
            adopt: take over a collection of another state file.

        Raises:
            IdentityMismatchError: the collection holds something else; nothing was written.
            LockedError: another process has it open.
            SinkError, ConfigError, ResourceError: it cannot be used.
        """
        if not target.url and not recreate:
            processes = directories_of(target) or processes
        waits = Waits(show)
        pools = [worker_process.spawn(1, worker.start, (waits.open(),)) for _ in range(processes)]
        pool = cls(target, pools, waits)
        try:
            pool.differences = await pool._ask(
                0, worker.ensure_collection, target, processes, dict(identity), recreate, adopt
            )
            for index in range(processes):
                await pool._ask(index, worker.open_sink, target, index)
        except BaseException:
            pool.kill()  # nothing was written, and what they wait for may never come
            await pool.close()
            raise
        return pool

    async def attach(self, buffers: BufferLayout) -> None:
        """Let the processes see the slots that requests name; before the first upsert.

        Raises:
            ResourceError: they are not there (any more).
        """
        await self._ask_all(partial(worker.attach, buffers))

    def submit(self, request: UpsertRequest) -> Asked:
        """Ask for a request's points to be written, now; `applied` waits for the answer."""
        rows: Rows | None = None
        if len(request.refused):
            rows = np.setdiff1d(np.arange(len(request.points)), request.refused)
        detail = "the vector is not finite, or all zero"
        refused = tuple((row, "non_finite", detail) for row in request.refused.tolist())
        parts = []
        for index, part in self._route(request.points.ids, rows):
            points = request.points if part is None else request.points.take(part)
            self._under_way[index] += 1
            parts.append((part, index, self._submit(index, worker.upsert, request.slot, part, points)))
        return Asked(request.points.documents, refused, parts)

    async def applied(self, asked: Asked) -> Applied:
        """Wait for a submitted request's answer."""
        failures = list(asked.refused)
        for rows, index, future in asked.parts:
            for row, kind, detail in await self._answer(index, future):
                failures.append((row if rows is None else int(rows[row]), kind, detail))
            self._under_way[index] -= 1
        return Applied(asked.documents, tuple(sorted(failures)))

    async def upsert(self, request: UpsertRequest) -> Applied:
        """Write a request's points; they are applied when it returns, and durable after the next `flush`."""
        return await self.applied(self.submit(request))

    async def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]."""
        parts = [(index, ids if rows is None else ids[rows]) for index, rows in self._route(ids, None)]
        asked = [(index, self._submit(index, worker.delete, part)) for index, part in parts]
        for index, future in asked:
            await self._answer(index, future)

    async def flush(self) -> None:
        """Make durable all that was applied before; a server does so before it answers."""
        if not self._target.url:
            await self._ask_all(worker.flush)

    async def optimize(self) -> None:
        """Let the embedded engine build its search index, which takes seconds; a server does so by itself."""
        if not self._target.url:
            await self._ask_all(worker.optimize)

    async def count(self) -> int:
        """Points in the collection, exactly."""
        if self._target.url:
            return await self._ask(0, worker.count)
        return sum(await self._ask_all(worker.count))

    async def close(self) -> None:
        """Let go of the collection and end the processes; silent about errors: what counts was flushed."""
        try:
            async with asyncio.timeout(CLOSING_S):
                await self._ask_all(worker.close_sink)
        except (IngestorError, TimeoutError):
            self.kill()
        for pool in self._pools:
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        self.waits.close()

    def kill(self) -> None:
        """End the processes at once."""
        for pool in self._pools:
            worker_process.kill(pool)

    def _route(self, ids: UInt8s, rows: Rows | None) -> Iterator[tuple[int, Rows | None]]:
        """Which process writes which rows: the directory's owner, or whichever has the least to do."""
        if len(ids) == 0 or (rows is not None and len(rows) == 0):
            return
        if self._target.url or self.processes == 1:
            yield min(range(self.processes), key=self._under_way.__getitem__), rows
            return
        owners = directory_of(ids, self.processes)
        for index in range(self.processes):
            own = np.flatnonzero(owners == index)
            own = own if rows is None else np.intersect1d(own, rows, assume_unique=True)
            if len(own):
                yield index, own

    def _submit(
        self, index: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T | IngestorError]:
        call = partial(worker.answer, function, *args, **kwargs)
        return worker_process.submit(self._pools[index], call)

    async def _answer(self, index: int, future: asyncio.Future[T | IngestorError]) -> T:
        name = f"{self._target}: the process that writes to it"
        answer = await worker_process.answer(self._pools[index], future, name)
        if isinstance(answer, IngestorError):
            raise answer
        return answer

    async def _ask(self, index: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._answer(index, self._submit(index, function, *args, **kwargs))

    async def _ask_all(self, function: Callable[[], T]) -> list[T]:
        asked = [self._submit(index, function) for index in range(self.processes)]
        return [await self._answer(index, future) for index, future in enumerate(asked)]
