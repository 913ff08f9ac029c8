"""A large shard behind a URL whose server cuts the connection three times: speed, and memory early and late.

    python benchmarks/remote.py [--gigabytes 1] [--folder FOLDER]

The shard is made up: JSON Lines of about 4 KB, of which a text of some sentences is kept, zstd-packed; its
size is counted unpacked. It is read twice from a server of its own on this machine: by a whole `--dry-run`,
whose count of documents is checked, and by the reading stage alone, whose blocks are dropped; and once more
by a `--dry-run` from the disk, for what a run keeps besides. Memory is the proportional set size of a run's
main process and all its descendants, sampled five times a second: the most in 10 to 40 % of the run's time,
and in its last 30 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics

import psutil
import zstandard
from memory import held
from parts.meter import emit
from parts.web import serve

from ingestor.sources import Fields
from ingestor.sources.listing import list_shards
from ingestor.sources.read import read_blocks
from ingestor.sources.remote import Remote

FILLERS = 4096
FILLER_CHARS = 3_600
TEXT_CHARS = 300
CUTS = (0.2, 0.5, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the shard, unpacked")
    parser.add_argument("--folder", type=Path, help="where the shard is kept, for another time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestor-remote-") as name:
        folder = args.folder or Path(name)
        shard, size, documents = made(folder, int(args.gigabytes * 1e9))
        packed = shard.stat().st_size
        with serve(shard, places(packed)) as served:
            figures = whole_run(Path(name), served.url, documents)
            cuts = served.cuts.value
        from_disk = whole_run(Path(name), str(shard), documents)
        with serve(shard, places(packed)) as served:
            blocks, reading_s = asyncio.run(read(served.url))
    if blocks != size:
        raise SystemExit(f"{blocks:,} of {size:,} bytes were read")
    emit(
        "remote",
        documents=documents,
        unpacked_mb=round(size / 1e6, 1),
        packed_mb=round(packed / 1e6, 1),
        cuts=cuts,
        dry_run_mb_per_s=round(size / 1e6 / figures.pop("seconds"), 1),
        dry_run_from_disk_mb_per_s=round(size / 1e6 / from_disk.pop("seconds"), 1),
        reading_mb_per_s=round(size / 1e6 / reading_s, 1),
        reading_packed_mb_per_s=round(packed / 1e6 / reading_s, 1),
        **figures,
        **{f"from_disk_{name}": value for name, value in from_disk.items()},
    )


def places(packed: int) -> list[int]:
    """Where the connection is cut."""
    return [int(packed * share) for share in CUTS]


def made(folder: Path, size: int) -> tuple[Path, int, int]:
    """The shard, its unpacked bytes, and its documents."""
    path, notes = folder / f"made-{size}.jsonl.zst", folder / f"made-{size}.json"
    if not notes.exists():
        dice, words = random.Random(1), " ".join(topics.values()).split()
        fillers = [" ".join(dice.choices(words, k=FILLER_CHARS // 5)) for _ in range(FILLERS)]
        written = documents = 0
        with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
            while written < size:
                filler = dice.choice(fillers)
                start = dice.randrange(FILLER_CHARS // 2)
                row = {"id": documents, "text": filler[start : start + TEXT_CHARS], "page": filler}
                written += packed.write(json.dumps(row).encode() + b"\n")
                documents += 1
        notes.write_text(json.dumps([written, documents]))
    return path, *json.loads(notes.read_text())


def whole_run(folder: Path, shard: str, documents: int) -> dict[str, float]:
    """Seconds and memory of a dry run."""
    config, report = folder / "c.yaml", folder / "r.json"
    settings = {
        "source": {"paths": [shard]},
        "encoder": {"model": "hash:384", "device": "cpu"},
        "qdrant": {"path": str(folder / "qdrant")},
        "state": str(folder / "state.sqlite3"),
    }
    config.write_text(json.dumps(settings))
    options = ["--dry-run", "--no-progress", "--report", str(report)]
    command = [sys.executable, "-m", "ingestor", "--config", str(config), *options]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    samples: list[int] = []
    while run.poll() is None:
        samples.append(held(psutil.Process(run.pid)))
        time.sleep(0.2)
    if run.returncode:
        raise SystemExit(f"the run ended with {run.returncode}")
    found = json.loads(report.read_text())
    if found["documents"]["would_index"] != documents:
        raise SystemExit(f"{found['documents']} of {documents:,} documents")
    early = max(samples[len(samples) // 10 : len(samples) * 4 // 10]) / 1e6
    late = max(samples[len(samples) * 7 // 10 :]) / 1e6
    return {"seconds": found["seconds"], "early_mb": round(early, 1), "late_mb": round(late, 1)}


async def read(url: str) -> tuple[int, float]:
    """Unpacked bytes that the reading stage gave, and the seconds that it took."""
    begun = time.perf_counter()
    size = 0
    with Remote() as remote, ThreadPoolExecutor(4, "unpack") as unpack:
        listing = await asyncio.to_thread(list_shards, [url], None, remote)
        blocks = read_blocks(
            listing.shards,
            format="auto",
            fields=Fields(("text",), "id", "collection", ()),
            block_bytes=1 << 20,
            max_line_bytes=64 << 20,
            unpack=unpack,
            stop=asyncio.Event(),
            remote=remote,
        )
        async for block in blocks:
            size += len(block.data)
            if block.end and not block.end.finished:
                raise SystemExit(f"the shard broke off: {block.end}")
    return size, time.perf_counter() - begun


if __name__ == "__main__":
    main()
