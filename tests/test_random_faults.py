"""Whatever a server does, and when: in the end it holds what an undisturbed run leaves; see `disturbed`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestor import worker as worker_process
from ingestor.running import engine
from tests.disturbed import COUNT, REQUESTS, Disturbed, disturb, kept_running, waits
from tests.proxies import Proxy
from tests.running import DIMENSION, same_points
from tests.servers import QdrantServer
from tests.sinks import served, stored

DEADLY = 8
"""In one of so many runs the server itself is killed, and started again."""


@pytest.fixture(autouse=True, scope="module")
def one_prepare_process() -> Iterator[None]:
    """One for all runs, in place of one each."""
    pool = worker_process.spawn(1)

    async def shared(*_: Any) -> Any:
        return pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "open_workers", shared)
        patch.setattr("ingestor.sink.POINTS_PER_REQUEST", 16)  # many requests, several under way
        yield
    worker_process.kill(pool)
    pool.shutdown()


@pytest.fixture
async def undisturbed(tmp_path: Path, qdrant_server: QdrantServer) -> list[dict]:
    """What the collection holds after the first and after the second run."""
    with Proxy(qdrant_server.port) as proxy:
        return [found async for found in runs(Disturbed(tmp_path / "undisturbed", proxy), qdrant_server)]


async def runs(disturbed: Disturbed, server: QdrantServer) -> AsyncIterator[dict]:
    """All that the collection holds after each of the two runs."""
    target = served(server, dimension=DIMENSION)
    for edited in (False, True):
        if edited:
            disturbed.edit()
        report = await disturbed.run()
        server.mend()  # also waits for what it still has in hand
        assert report.status == "complete"
        yield stored(target)
        again = await disturbed.run()
        assert (again.documents.unchanged, again.documents.indexed) == (again.documents.read, 0)


async def check(seed: int, folder: Path, server: QdrantServer, undisturbed: list[dict]) -> None:
    server.reset()
    dice, waited, number = random.Random(seed), len(waits), 0
    with Proxy(server.port) as proxy, kept_running(server):
        disturbed = Disturbed(folder, proxy)
        faults = disturb(server, proxy, dice, requests=REQUESTS[0], deadly=seed % DEADLY == 0)
        async for found in runs(disturbed, server):
            assert same_points(undisturbed[number], found), (seed, number, faults)
            number += 1
            if number < len(undisturbed):
                faults += disturb(server, proxy, dice, requests=REQUESTS[1], deadly=False)
    kinds = dict(Counter(wait.kind for wait in waits[waited:]))
    print(
        f"seed {seed}: {len(faults)} faults, {disturbed.ended} runs ended early, {proxy.cuts} cuts, {kinds}"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_random_faults(
    tmp_path: Path, qdrant_server: QdrantServer, undisturbed: list[dict], pytestconfig: pytest.Config
) -> None:
    """`--faults N` for more of them."""
    assert len(undisturbed[0]) > COUNT
    assert undisturbed[0].keys() != undisturbed[1].keys()
    for seed in range(pytestconfig.getoption("faults")):
        await check(seed, tmp_path / str(seed), qdrant_server, undisturbed)
    assert waits
    print(len(undisturbed[0]), len(undisturbed[1]), qdrant_server.calls())
