"""Each benchmark runs, small, and prints what it found; what it measures then means nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL = {
    "cpu_runtimes": "--passages 8 --rounds 1 --batches 8",
    "encode": "--device cpu --shapes tiny --seconds 1 --budgets 2048",
    "end_to_end": "--device cpu --documents 40 --rounds 1 --batches 8",
    "ladder": "--small --steps 2 --slow-steps 1",
    "ledger": "--documents 20000",
    "memory": "",
    "prepare": "--documents 2000",
    "remote": "--gigabytes 0.02",
    "sink": "--points 512 --dimension 64 --rounds 1",
    "soak": "--documents 80000",
    "unchanged": "--documents 200 --shards 2 --rounds 1",
}


def test_each_has_a_small_form() -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == set(SMALL)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(SMALL))
def test_it_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *SMALL[name].split()]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found
    assert all(line["benchmark"] for line in found)
