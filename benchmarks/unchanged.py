"""Runs over a source that hardly changed: not at all, touched alone, one document in a thousand edited.

    python benchmarks/unchanged.py [--documents N] [--shards N] [--rounds N]

Whole processes, into the embedded engine, interleaved with one that reads and hashes the same records.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parts import material

READ_AND_HASH = """
import hashlib, json, sys
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        for line in file:
            record = json.loads(line)
            hashlib.blake2b(f"{record['id']}\\n{record['text']}".encode(), digest_size=16).digest()
"""
RUN = """
import json, resource, sys
from ingestor.cli import execute
code = execute(sys.argv[1:])
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
print(json.dumps({"code": code, "torch": "torch" in sys.modules, "processes": children}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestor-unchanged-") as name:
        place = Place(Path(name), options.documents, options.shards)
        first = place.run()
        found = {
            "benchmark": "unchanged",
            "documents": options.documents,
            "shards": options.shards,
            "megabytes": round(sum(path.stat().st_size for path in place.shards) / 1e6, 1),
            "first_run_s": first["seconds"],
        }
        rounds = [place.round() for _ in range(options.rounds)]
    for key in rounds[0]:
        found[key] = round(statistics.median(one[key] for one in rounds), 2)
    found["touched_to_read_and_hash"] = round(found["touched_s"] / found["read_and_hash_s"], 2)
    print(json.dumps(found))


class Place:
    """A source, its collection, and runs over it."""

    def __init__(self, folder: Path, documents: int, shards: int) -> None:
        self.shards = material.write_shards(folder / "shards", documents, shards)
        self._documents = documents
        self._folder = folder
        self._edits = 0
        settings = {
            "source": {"paths": [str(folder / "shards")]},
            "encoder": {"model": "hash:384", "device": "cpu"},
            "qdrant": {"path": str(folder / "qdrant"), "collection": "unchanged"},
            "state": str(folder / "state.sqlite3"),
        }
        (folder / "c.yaml").write_text(json.dumps(settings))

    def round(self) -> dict[str, float]:
        """Seconds of each kind of run."""
        unchanged = self.run()
        assert not unchanged["torch"], "torch was imported"
        assert not unchanged["processes"], "a process was started"
        hashed = seconds_of([sys.executable, "-c", READ_AND_HASH, *map(str, self.shards)])
        for path in self.shards:
            os.utime(path)
        touched = self.run()
        assert not touched["torch"], "torch was imported"
        few = self._documents // 1000
        found = {
            "unchanged_s": unchanged["seconds"],
            "read_and_hash_s": hashed,
            "touched_s": touched["seconds"],
        }
        for spread, shards in (("in_one_shard", self.shards[:1]), ("in_all_shards", self.shards)):
            self.edit(shards, few)
            changed = self.run()
            assert changed["indexed"] == few, changed
            found[f"a_thousandth_{spread}_s"] = changed["seconds"]
        return found

    def edit(self, shards: list[Path], documents: int) -> None:
        """Give so many documents in all another text."""
        self._edits += 1
        for path in shards:
            lines = path.read_text().splitlines()
            for at in range(documents // len(shards)):
                record = json.loads(lines[at])
                lines[at] = json.dumps(record | {"text": f"Edited {self._edits} times. {record['text']}"})
            path.write_text("\n".join(lines) + "\n")

    def run(self) -> dict[str, Any]:
        """One run: its seconds, what it indexed, and whether it needed torch or other processes."""
        report = self._folder / "r.json"
        options = ["run", "--config", str(self._folder / "c.yaml"), "--no-progress", "--report", str(report)]
        since = time.perf_counter()
        ended = subprocess.run([sys.executable, "-c", RUN, *options], capture_output=True, text=True)
        seconds = time.perf_counter() - since
        found = json.loads(ended.stdout)
        assert found["code"] == 0, ended.stderr
        indexed = json.loads(report.read_text())["documents"]["indexed"]
        return {**found, "seconds": round(seconds, 2), "indexed": indexed}


def seconds_of(command: list[str]) -> float:
    since = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - since


if __name__ == "__main__":
    main()
