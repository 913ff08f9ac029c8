"""Runs beside a server that fails at random, cheap enough for hundreds of them.

The run is the real one from the shards to the state file, and so are server, channel and sink; but it runs in
the test's process, its sink in a thread there, and all runs share one prepare process: nothing is started for
a run. What the death of a run's own processes does is tested elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingestor import pipeline
from ingestor.config.settings import RunOptions, load
from ingestor.errors import IngestorError
from ingestor.sink import Target, worker
from ingestor.sink.patience import Patience, Wait
from ingestor.sink.pool import SinkPool
from ingestor.sink.server import ServerSink
from ingestor.sink.waits import Waits, nowhere
from ingestor.watching.progress import Progress
from ingestor.watching.report import Report
from tests.proxies import Proxy
from tests.running import Workplace, documents
from tests.servers import QdrantServer

COUNT = 200
REQUESTS = 24, 6
"""About so many upserts do the first and the second run make."""
TIMEOUT_S = 0.5
QUICK = Patience(first_pause_s=0.02, full_pause_s=0.1)
ATTEMPTS = 12
"""Runs until one completes; every fault can end one at most."""

LIMITED = {"code": "RESOURCE_EXHAUSTED", "metadata": {"retry-after": "1"}}
FULL = {"code": "RESOURCE_EXHAUSTED", "metadata": {"qdrant-insufficient-storage": "1"}}
WAL_FULL = {"code": "INTERNAL", "detail": "Service internal error: No space left on device"}
PASSING: list[dict[str, Any]] = [
    *({"code": code} for code in ("UNAVAILABLE", "ABORTED", "UNKNOWN", "INTERNAL", "FAILED_PRECONDITION")),
    *({"code": code, "after": True} for code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")),
    *({"status": status} for status in ("WaitTimeout", "Acknowledged")),
    {"code": "RESOURCE_EXHAUSTED"},  # too large, all of a sudden
    LIMITED,
    {**FULL, "times": 3},
    {**WAL_FULL, "times": 2},
    {"delay": 0.1},
    {"delay": 1.5 * TIMEOUT_S},
]
ENDING: list[dict[str, Any]] = [
    {"code": "NOT_FOUND"},
    {"code": "UNAUTHENTICATED"},
    {"code": "INTERNAL", "times": 4},
    {"code": "UNIMPLEMENTED"},
]


class SinksHere(SinkPool):
    """A pool whose one process is a thread."""

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
        executor: Any = ThreadPoolExecutor(1, "sink")
        pool = cls(target, [executor], Waits(show))
        try:
            ensure = worker.ensure_collection
            pool.differences = await pool._ask(0, ensure, target, 1, dict(identity), recreate, adopt)
            await pool._ask(0, open_sink, target)
        except BaseException:
            await pool.close()
            raise
        return pool

    def kill(self) -> None:
        """A thread ends by itself."""


waits: list[Wait] = []
"""All that sinks here have waited for."""


def open_sink(target: Target) -> None:
    def tell(wait: Wait | None) -> None:
        if wait is not None:
            waits.append(wait)

    worker._open.append(worker.Session(ServerSink(target, patience=QUICK, tell=tell)))


@contextmanager
def kept_running(server: QdrantServer) -> Iterator[None]:
    """Start the server again whenever it dies."""
    enough = threading.Event()

    def watch() -> None:
        while not enough.wait(0.02):
            if server.has_ended():
                server.start()

    thread = threading.Thread(target=watch, name="watch")
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def disturb(
    server: QdrantServer, proxy: Proxy, dice: random.Random, *, requests: int, deadly: bool
) -> list[dict[str, Any]]:
    """Let some things go wrong with the next run, of so many upserts, and say which."""
    chosen = [dice.choice(PASSING) for _ in range(dice.randint(1, 6))]
    if dice.random() < 0.3:
        chosen.append(dice.choice(ENDING))
    if deadly:
        chosen.append({"exit": True})
    if dice.random() < 0.3:
        chosen.append({"method": "Points/Delete", **dice.choice(PASSING[:10])})
    dice.shuffle(chosen)
    faults = [{"skip": dice.randrange(requests) if "method" not in one else 0, **one} for one in chosen]
    for fault in faults:
        server.fault(**fault)
    cuts = [dice.randrange(1_000, 8_000 * requests) for _ in range(dice.randint(0, 2))]
    proxy.cut_after(*cuts)
    return [*faults, *({"cut": nbytes} for nbytes in cuts)]


class Disturbed:
    """A workplace on a server, behind a proxy.

    Attributes:
        place: its shards are those of the first run; `edit` makes those of the second.
        ended: runs that ended early so far.
    """

    def __init__(self, folder: Path, proxy: Proxy) -> None:
        self.ended = 0
        self.place = Workplace(folder)
        self.place.configure(
            source={"paths": [str(self.place.shards)], "sync": "mirror", "metadata_fields": ["kind"]},
            chunk={"max_tokens": 24, "overlap_tokens": 4},
            qdrant={
                "path": None,
                "url": "http://127.0.0.1",
                "grpc_port": proxy.port,
                "timeout_s": TIMEOUT_S,
                "bulk": "off",
            },
            state=str(self.place.state),
        )
        self.place.write("a.jsonl", documents(COUNT // 2))
        self.place.write("b.jsonl", documents(COUNT // 2, start=COUNT // 2))

    def edit(self) -> None:
        """Some documents become shorter, some change, some leave, some are new."""
        first = documents(COUNT // 2)
        for number in range(30):
            first[number]["text"] = f"Short: {number}."
        for number in range(30, 45):
            first[number]["text"] += " And more."
        self.place.write("a.jsonl", first)
        self.place.write("b.jsonl", documents(COUNT // 2, start=COUNT // 2 + 20))

    async def run(self) -> Report:
        """Run until a run completes."""
        for _ in range(ATTEMPTS):
            settings = load(self.place.folder / "c.yaml", [], environ={})
            try:
                async with asyncio.timeout(120):
                    return await pipeline.run(
                        settings,
                        options=RunOptions(),
                        stop=asyncio.Event(),
                        progress=Progress(),
                        open_pool=SinksHere.open,
                    )
            except* IngestorError:
                self.ended += 1
        raise AssertionError("no run completes")
