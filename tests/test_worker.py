"""Worker processes: nothing but their parent ends them, and nothing of them outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import textwrap
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import psutil
import pytest

from ingestor import worker
from ingestor.errors import WorkerDiedError


def end(pool) -> None:
    worker.kill(pool)
    pool.shutdown()


def gone(pids: list[int]) -> bool:
    """Whether all of them ended within ten seconds."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(processes, timeout=10)[1]


def test_a_worker_leads_its_own_session_and_ignores_signals_of_others() -> None:
    pool = worker.spawn(1)
    try:
        pid = pool.submit(os.getpid).result(timeout=30)
        assert os.getsid(pid) == pid
        os.kill(pid, signal.SIGINT)
        subprocess.run(["kill", "-TERM", str(pid)], check=True)  # not sent by the parent itself
        assert pool.submit(os.getpid).result(timeout=30) == pid
    finally:
        end(pool)


def test_all_workers_start_at_once_and_the_signal_mask_is_restored() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    pool = worker.spawn(2)
    try:
        assert len(worker._processes(pool)) == 2
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    finally:
        end(pool)


def test_a_dead_worker_ends_its_fellows_and_says_how_it_died() -> None:
    pool = worker.spawn(2)
    pids = [process.pid or 0 for process in worker._processes(pool)]
    with pytest.raises(BrokenProcessPool):
        pool.submit(os.abort).result(timeout=30)
    assert "SIGABRT" in worker.cause_of_death(pool)
    pool.shutdown()
    assert gone(pids)


def die_inside_an_answer() -> None:
    frame: Any = sys._getframe()
    while "result_queue" not in frame.f_locals:
        frame = frame.f_back
    pipe = frame.f_locals["result_queue"]._writer.fileno()
    os.write(pipe, struct.pack("!i", 1000) + b"the first of a thousand bytes")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("processes", [1, 3])
async def test_a_worker_that_dies_inside_an_answer_is_noticed(processes) -> None:
    pool = worker.spawn(processes)
    pids = [process.pid or 0 for process in worker._processes(pool)]
    try:
        async with asyncio.timeout(30):
            with pytest.raises(WorkerDiedError, match=r"the tester was killed \(SIGKILL\)"):
                await worker.answer(pool, worker.submit(pool, die_inside_an_answer), "the tester")
            with pytest.raises(WorkerDiedError):
                await worker.answer(pool, worker.submit(pool, os.getpid), "the tester")
        assert gone(pids)
    finally:
        end(pool)


def test_kill_ends_a_busy_worker() -> None:
    pool = worker.spawn(1)
    busy = pool.submit(signal.pause)
    worker.kill(pool)
    with pytest.raises(BrokenProcessPool):
        busy.result(timeout=30)
    assert "SIGKILL" in worker.cause_of_death(pool)
    pool.shutdown()


PARENT = """
    import os, signal, sys
    from ingestor import worker

    if __name__ == "__main__":
        pool = worker.spawn(2)
        pool.submit(os.getpid).result()
        for busy in range(2):
            pool.submit(signal.pause)
        print(*[process.pid for process in worker._processes(pool)], flush=True)
        sys.stdin.read()
"""


def test_a_killed_parent_leaves_no_worker(tmp_path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    parent = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert gone(pids)


def test_a_worker_loads_no_torch() -> None:
    heavy = {"torch", "transformers", "qdrant_client"}
    code = f"import sys, ingestor.sink.worker; print(sys.modules.keys() & {heavy})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
