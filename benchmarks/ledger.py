"""How many documents a second the ledger records, beside a loop that is busy with something else.

    python benchmarks/ledger.py [--documents N]

The real `settle` and `Ledger`, fed as a GPU run feeds them, and sinks that hold nothing.
A second task keeps the loop busy half of the time. Prints the rate and the state file's bytes a document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ingestor.records import DOCUMENTS_PER_BLOCK, Applied, Census, Shard, ShardEnd, Verdict
from ingestor.running.dry_run import Nowhere
from ingestor.settle import settle
from ingestor.state.identity import document_key
from ingestor.state.ledger import Ledger
from ingestor.watching.tally import Tally

BLOCK = 2_000
SHARD = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    documents = parser.parse_args().documents
    with tempfile.TemporaryDirectory(prefix="ingestor-ledger-") as name, ThreadPoolExecutor(1) as thread:
        path = Path(name, "state.sqlite3")
        ledger = thread.submit(Ledger.open, path, thread).result()
        listing = [Shard(0, f"part-{i:05}.jsonl", "", 0, "f") for i in range(-(-documents // SHARD))]
        plan = thread.submit(ledger.plan, listing, b"").result()
        censuses = list(made(plan.shards, documents))
        seconds, share = asyncio.run(recorded(ledger, censuses))
        assert thread.submit(ledger.totals).result()[0] == documents
        thread.submit(ledger.close).result()
        size = path.stat().st_size
    found = {"benchmark": "ledger", "documents": documents, "documents_per_s": round(documents / seconds)}
    print(
        json.dumps(
            {**found, "loop_busy_with_other_work": share, "bytes_a_document": round(size / documents, 1)}
        )
    )


def made(shards: list[Shard], documents: int) -> list[Census]:
    """Censuses of new documents with one chunk each."""
    censuses = []
    for start in range(0, documents, BLOCK):
        stop = min(start + BLOCK, documents)
        ids, n = [f"document-{i:08}" for i in range(start, stop)], stop - start
        last = stop % SHARD == 0 or stop == documents
        censuses.append(
            Census(
                block=start // BLOCK,
                shard=shards[start // SHARD],
                ids=ids,
                keys=np.array([document_key(id_) for id_ in ids], np.int64),
                places=np.arange(start, stop),
                hashes=np.frombuffer(np.random.default_rng(start).bytes(16 * n), np.uint8).reshape(-1, 16),
                verdicts=np.full(n, Verdict.NEW, np.uint8),
                chunks=np.ones(n, np.int32),
                stored=np.zeros(n, np.int32),
                known=np.zeros(n, np.bool_),
                end=ShardEnd(finished=True) if last else None,
            )
        )
    return censuses


async def recorded(ledger: Ledger, censuses: list[Census]) -> tuple[float, float]:
    """Seconds until all is recorded, and the other task's share of them."""
    loop = asyncio.get_running_loop()
    busy = 0.0

    async def events() -> AsyncIterator[Census | Applied]:
        for census in censuses:
            await loop.run_in_executor(ledger.thread, ledger.intents.note, census)
            yield census
            yield Applied(census.block * DOCUMENTS_PER_BLOCK + np.arange(len(census.ids)))

    async def other() -> None:
        nonlocal busy
        while True:
            since = time.perf_counter()
            while time.perf_counter() - since < 0.001:
                pass
            busy += time.perf_counter() - since
            await asyncio.sleep(0.001)

    since = time.perf_counter()
    task = asyncio.ensure_future(other())
    unsettled = await settle(events(), sinks=Nowhere(), ledger=ledger, tally=Tally(), window=64)
    seconds = time.perf_counter() - since
    task.cancel()
    assert not unsettled
    return seconds, round(busy / seconds, 2)


if __name__ == "__main__":
    main()
