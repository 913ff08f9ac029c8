"""The shared block: slots, what is left behind, and what another process sees."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator

import numpy as np
import pytest

from ingestor import buffers
from ingestor.buffers import BufferLayout, BufferPool, attach, sweep
from ingestor.errors import ResourceError


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Iterator[BufferPool]:
    pool = BufferPool.create(request.node.name, slots=3, rows=5, dimension=7, poison=True)
    yield pool
    pool.close()


async def test_slots_do_not_overlap(pool: BufferPool) -> None:
    slots = [await pool.acquire() for _ in range(3)]
    for slot in slots:
        slot.vectors[:] = slot.index + 1
        slot.flags[:] = slot.index + 101
    for slot in slots:
        assert (slot.vectors == slot.index + 1).all()
        assert (slot.flags == slot.index + 101).all()
        assert slot.vectors.shape == (5, 7)


async def test_acquire_waits_for_a_release(pool: BufferPool) -> None:
    held = [await pool.acquire() for _ in range(3)]
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(pool.acquire())
        await asyncio.sleep(0)
        assert not waiting.done()
        pool.release(held[1].index)
    assert waiting.result().index == held[1].index
    assert pool.waited_s > 0


async def test_a_slot_is_released_once(pool: BufferPool) -> None:
    slot = await pool.acquire()
    pool.release(slot.index)
    with pytest.raises(ValueError, match="released twice"):
        pool.release(slot.index)


async def test_a_free_slot_is_poisoned(pool: BufferPool) -> None:
    slot = await pool.acquire()
    slot.vectors[:] = 1
    pool.release(slot.index)
    assert np.isnan(slot.vectors).all()


READ = """
import sys
from ingestor.buffers import BufferLayout, attach
attached = attach(BufferLayout(sys.argv[1], 3, 5, 7))
vectors = attached.vectors(int(sys.argv[2]))
print(float(vectors.sum()), vectors.flags.writeable)
attached.close()
"""


async def test_another_process_reads_in_place_and_leaves_no_trace(pool: BufferPool) -> None:
    slot = await pool.acquire()
    slot.vectors[:] = 2
    command = [sys.executable, "-W", "error", "-c", READ, pool.layout.name, str(slot.index)]
    reader = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    output, errors = await reader.communicate()
    assert output.split() == [b"70.0", b"False"]
    assert errors == b""
    assert attach(pool.layout).vectors(slot.index)[0, 0] == 2


async def test_close_removes_the_name_and_keeps_views_alive(pool: BufferPool) -> None:
    slot = await pool.acquire()
    attached = attach(pool.layout)
    pool.close()
    slot.vectors[:] = 3
    assert attached.vectors(slot.index)[4, 6] == 3
    with pytest.raises(ResourceError, match="No such file"):
        attach(pool.layout)


def test_sweep_removes_only_what_this_lock_left(pool: BufferPool) -> None:
    left = BufferPool.create("some lock", slots=1, rows=1, dimension=1)
    assert sweep("some lock") == 1
    assert not (buffers.FOLDER / left.layout.name).exists()
    assert (buffers.FOLDER / pool.layout.name).exists()


def test_too_little_room_says_what_to_do() -> None:
    before = list(buffers.FOLDER.iterdir())
    with pytest.raises(ResourceError, match=r"lower pipeline\.buffers.*shm_size"):
        BufferPool.create("big", slots=1 << 20, rows=1 << 14, dimension=1024)
    assert list(buffers.FOLDER.iterdir()) == before


def test_slots_start_on_pages_and_hold_vectors_and_flags() -> None:
    layout = BufferLayout("x", slots=4, rows=256, dimension=384)
    assert layout.slot_bytes % 4096 == 0
    assert layout.slot_bytes >= 256 * 384 * 4 + 256
    assert layout.nbytes == 4 * layout.slot_bytes
