"""On a GPU: whole runs, killed ones among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ingestor.buffers import FOLDER, sweep
from tests.running import Workplace, documents, eventually, have_ended, kill_alone, same_points

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def place(folder: Path, count: int) -> Workplace:
    made = Workplace(folder, encoder={"device": "cuda", "token_budget": 2048})
    made.write("a.jsonl", documents(count))
    return made


def test_the_gpu_gives_the_cpus_points_and_a_trace_with_its_kernels(tmp_path: Path) -> None:
    cpu, gpu = place(tmp_path / "cpu", 500), place(tmp_path / "gpu", 500)
    cpu.run("--set", "encoder.device=cpu")
    ended = gpu.run("--profile", "trace", "--profile-window", "2,5")
    assert same_points(cpu.points(), gpu.points())
    assert "gpu_busy=" in ended.err
    events = json.loads((gpu.folder / "trace/trace.json").read_bytes())["traceEvents"]
    assert [event for event in events if event.get("cat") == "kernel"]


def test_a_killed_run_leaves_no_shared_memory_after_the_next(tmp_path: Path) -> None:
    killed = place(tmp_path, 20_000)
    before = set(FOLDER.glob("ingestor-*"))
    process = killed.start_run()
    eventually(lambda: set(FOLDER.glob("ingestor-*")) - before)
    assert have_ended(kill_alone(process))
    process.communicate(timeout=10)
    assert set(FOLDER.glob("ingestor-*")) - before  # which is what the next run has to remove
    assert killed.run().report["status"] == "complete"
    assert set(FOLDER.glob("ingestor-*")) <= before
    assert sweep(str(killed.state.resolve())) == 0
