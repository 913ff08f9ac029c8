"""Peak memory of a run over large documents, against a run over an empty shard; all processes together.

    python benchmarks/memory.py [SHARD ...]

Without shards, one is made: documents of up to 300,000 characters, 25 MB in all. Memory is the proportional
set size of the main process and all its descendants, sampled 20 times a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

import psutil

MODEL = "hash:384"
LIMIT_MB = 150


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", nargs="*", type=Path)
    given = parser.parse_args().shards
    with tempfile.TemporaryDirectory(prefix="ingestor-memory-") as name:
        folder = Path(name)
        empty = folder / "empty.jsonl"
        empty.write_bytes(b"")
        shards = [path.resolve() for path in given] or [made(folder / "made.jsonl")]
        low, _ = peak(folder / "1", [empty])
        high, documents = peak(folder / "2", shards)
    found = {"benchmark": "memory", "model": MODEL, "documents": documents, "empty_mb": low, "peak_mb": high}
    print(json.dumps({**found, "more_mb": round(high - low, 1), "limit_mb": LIMIT_MB}))


def made(path: Path) -> Path:
    """A shard of documents whose lengths are spread as those of real manuals."""
    dice, words = random.Random(1), "\n\n".join(topics.values())
    with path.open("w") as out:
        written = 0
        while written < 25_000_000:
            size = min(300_000, int(dice.lognormvariate(7.6, 1.6)))
            start = dice.randrange(max(1, len(words) - size))
            text = (words * (1 + size // len(words)))[start : start + size]
            written += out.write(json.dumps({"id": written, "text": text}) + "\n")
    return path


def peak(folder: Path, shards: list[Path]) -> tuple[float, int]:
    """Peak memory in MB of one run, and the documents it indexed."""
    folder.mkdir()
    config, report = folder / "c.yaml", folder / "r.json"
    settings = {
        "source": {"paths": [str(shard) for shard in shards]},
        "encoder": {"model": MODEL, "device": "cpu"},
        "qdrant": {"path": str(folder / "qdrant"), "collection": "memory"},
        "state": str(folder / "state.sqlite3"),
    }
    config.write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "ingestor",
        "--config",
        str(config),
        "--report",
        str(report),
        "--no-progress",
    ]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    most = 0
    while run.poll() is None:
        most = max(most, held(psutil.Process(run.pid)))
        time.sleep(0.05)
    if run.returncode:
        raise SystemExit(f"the run ended with {run.returncode}")
    return round(most / 1e6, 1), json.loads(report.read_text())["documents"]["indexed"]


def held(process: psutil.Process) -> int:
    """Bytes of a process and its descendants, what they share counted once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += one.memory_full_info().pss
    return total


if __name__ == "__main__":
    main()
