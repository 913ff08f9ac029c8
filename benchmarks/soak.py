"""What a long run holds: memory, open files and shared memory of all processes, and the state file's bytes.

    python benchmarks/soak.py [--documents N]

One run in this process, with vectors from a hash and a sink that drops them. Sampled twice a second; what is
compared is the most there was until 50,000 documents, and after.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from parts.dropping import Dropping

WARM_UP = 50_000
LIMIT_MB = 50
SHARD = 100_000
WORDS = [f"word{number}" for number in range(2000)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    documents = parser.parse_args().documents
    with tempfile.TemporaryDirectory(prefix="ingestor-soak-") as name:
        folder = Path(name)
        write_shards(folder / "shards", documents)
        seconds, samples = ingest(folder)
        state_bytes = (folder / "state.sqlite3").stat().st_size
    warm = [sample for sample in samples if sample.documents <= WARM_UP]
    later = [sample for sample in samples if sample.documents > WARM_UP]
    before, after = (max(sample.nbytes for sample in some) / 1e6 for some in (warm, later))
    print(
        json.dumps(
            {
                "benchmark": "soak",
                "documents": documents,
                "documents_per_s": round(documents / seconds),
                "samples": len(samples),
                "warm_mb": round(before, 1),
                "peak_mb": round(after, 1),
                "grows_mb": round(after - before, 1),
                "limit_mb": LIMIT_MB,
                "open_files": most_and_least(later, "files"),
                "shared_mb": most_and_least(later, "shared"),
                "state_bytes_a_document": round(state_bytes / documents, 1),
            }
        )
    )


class Sample(NamedTuple):
    """All processes of the run, at one moment."""

    documents: int
    nbytes: int
    files: int
    shared: float


def most_and_least(samples: list[Sample], name: str) -> str:
    values = [getattr(sample, name) for sample in samples]
    return f"{min(values)} to {max(values)}"


def write_shards(folder: Path, documents: int) -> None:
    """JSON Lines of some 170 bytes a document, no two alike."""
    folder.mkdir()
    for start in range(0, documents, SHARD):
        with (folder / f"{start:09}.jsonl").open("w") as file:
            for number in range(start, min(start + SHARD, documents)):
                words = " ".join(WORDS[number * factor % 1999] for factor in range(3, 20))
                file.write(json.dumps({"id": f"document-{number}", "text": f"{number}: {words}"}) + "\n")


def ingest(folder: Path) -> tuple[float, list[Sample]]:
    """Seconds of the run, and what was seen of it."""
    from ingestor import pipeline
    from ingestor.config.settings import RunOptions, Settings
    from ingestor.watching.progress import Progress

    settings = Settings.model_validate(
        {
            "source": {"paths": [str(folder / "shards")]},
            "encoder": {"model": "hash:384", "device": "cpu"},
            "qdrant": {"path": str(folder / "qdrant"), "collection": "soak"},
            "state": str(folder / "state.sqlite3"),
        }
    )
    progress, samples, over = Progress(), list[Sample](), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            samples.append(look(progress.tally.indexed))

    watcher = threading.Thread(target=watch)
    watcher.start()
    since = time.perf_counter()
    try:
        run = pipeline.run(
            settings,
            options=RunOptions(),
            stop=asyncio.Event(),
            progress=progress,
            open_pool=Dropping().open,
        )
        report = asyncio.run(run)
    finally:
        seconds = time.perf_counter() - since
        over.set()
        watcher.join()
    assert report.status == "complete"
    return seconds, samples


def look(documents: int) -> Sample:
    nbytes = files = 0
    shared: dict[str, int] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            nbytes += held(process.pid)
            files += process.num_fds()
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if "/dev/shm/ingestor-" in line:
                    span, *_, path = line.split()
                    start, end = (int(address, 16) for address in span.split("-"))
                    shared[path] = max(shared.get(path, 0), end - start)
    return Sample(documents, nbytes, files, round(sum(shared.values()) / 1e6, 1))


def held(pid: int) -> int:
    """Bytes of a process that no file stands behind: pages of files are the system's to keep or to drop."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return 1024 * (found["Pss_Anon"] + found["Pss_Shmem"] + found["SwapPss"])


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
