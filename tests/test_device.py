"""Choosing a device, and the CPU's way in and out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from ingestor.buffers import BufferPool
from ingestor.device import CpuDevice, open_device, usable
from ingestor.errors import ConfigError
from tests.fakes import token_batch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("choice", ["cuda", "cuda:0"])
def test_without_a_gpu_the_message_says_what_to_do(choice: str) -> None:
    with pytest.raises(ConfigError, match=rf"encoder\.device: {choice}: torch .* sees no CUDA device; check"):
        open_device(choice)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_auto_takes_the_cpu_where_there_is_no_gpu() -> None:
    assert isinstance(open_device("auto"), CpuDevice)


async def test_launched_work_runs_in_one_thread_in_order() -> None:
    device = open_device("cpu", threads=1)
    ran: list[int] = []
    threads = {await device.launch(threading.get_ident)}
    for number in range(5):
        await device.launch(ran.append, number)
        threads.add(await device.launch(threading.get_ident))
    assert ran == [0, 1, 2, 3, 4]
    assert threads.isdisjoint({threading.get_ident()})
    assert len(threads) == 1
    assert await device.launch(torch.get_num_threads) == 1
    await device.close()


async def test_an_error_in_the_thread_reaches_the_caller() -> None:
    device = open_device("cpu", threads=1)
    with pytest.raises(ZeroDivisionError):
        await device.launch(divmod, 1, 0)
    await device.close()


def test_rows_that_cannot_be_used_are_flagged() -> None:
    rows = [[1.0, 0.0], [float("nan"), 1.0], [0.0, 0.0], [float("-inf"), 1.0], [-1.0, 0.0], [1e-38, 0.0]]
    assert usable(torch.tensor(rows)).tolist() == [1, 0, 0, 0, 1, 1]


def test_a_slice_is_the_batch_of_these_chunks() -> None:
    device = open_device("cpu", threads=1)
    whole = device.upload(token_batch([[1], [2, 3], [4, 5, 6], [7]]))
    part = whole.slice(1, 3).slice(1, 2)
    assert part.tokens.tolist() == [4, 5, 6]
    assert part.offsets.tolist() == part.bounds.tolist() == [0, 3]
    assert (part.rows, part.longest, whole.longest) == (1, 3, 3)
    assert part.points.payloads == whole.points.payloads[2:3]


async def test_up_and_down() -> None:
    device = open_device("cpu", threads=1)
    buffers = BufferPool.create("test_up_and_down", slots=1, rows=3, dimension=2, poison=True)
    await device.register(buffers)
    batch = device.upload(token_batch([[1, 2], [3]]))
    found = device.compute(batch, lambda batch: torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    slot = await buffers.acquire()
    await device.wait(device.download(found, slot))
    np.testing.assert_array_equal(slot.vectors, [[1, 2], [0, 0], [np.nan, np.nan]])
    assert slot.flags[:2].tolist() == [1, 0]
    await device.close()
    buffers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is Linux's")
@pytest.mark.parametrize(
    ("asked", "turns"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_of_torch_do_not_spin_for_long(asked: dict[str, str], turns: str | None) -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    shown = subprocess.run(
        [sys.executable, "-c", "import ingestor.device"],
        env=bare | {"OMP_DISPLAY_ENV": "verbose"} | asked,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    (found,) = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", shown)
    assert found == turns if turns else int(found) > 1_000_000
