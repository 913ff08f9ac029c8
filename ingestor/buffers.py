"""One block of shared memory, cut into slots: vectors are written there; sink processes read them in place.

The block is a file in the system's shared-memory folder. `multiprocessing.shared_memory` is not used: its
resource tracker removes blocks that others still need, and its `close()` raises while any view lives.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import mmap
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingestor.errors import ResourceError, reason
from ingestor.records import Float32s, UInt8s

FOLDER = Path("/dev/shm")
_ALIGNMENT = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Where the slots lie; all that a sink process needs to attach.

    Attributes:
        name: of the block in the shared-memory folder.
        slots: how many.
        rows: vectors in one slot.
        dimension: float32 values in one vector.
    """

    name: str
    slots: int
    rows: int
    dimension: int

    @property
    def vector_bytes(self) -> int:
        """Bytes of one slot's vectors."""
        return self.rows * self.dimension * 4

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next: its vectors, a flag for each, and room up to a whole page."""
        return -(-(self.vector_bytes + self.rows) // _ALIGNMENT) * _ALIGNMENT

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return self.slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot, held from `acquire` to `release`.

    Attributes:
        index: what names it in an `UpsertRequest`.
        vectors: float32[rows, dimension].
        flags: uint8[rows], 1 where the row's vector may be written to the collection.
    """

    index: int
    vectors: Float32s
    flags: UInt8s


class BufferPool:
    """The block and its free slots. All methods but `create` belong to the event loop's thread.

    Attributes:
        layout: for `attach` in the sink processes.
        waited_s: seconds spent so far waiting for a free slot.
    """

    def __init__(self, layout: BufferLayout, block: mmap.mmap, *, poison: bool) -> None:
        self.layout = layout
        self.waited_s = 0.0
        self._poison = poison
        self._slots = [_slot(layout, block, index) for index in range(layout.slots)]
        self._held = [False] * layout.slots
        self._free: asyncio.Queue[int] = asyncio.Queue(layout.slots)
        for slot in self._slots:
            self._hand_back(slot)

    @classmethod
    def create(
        cls, lock_name: str, *, slots: int, rows: int, dimension: int, poison: bool = False
    ) -> BufferPool:
        """Make the block and reserve its room, so that writing to it cannot fail later.

        Args:
            lock_name: what the run has locked; `sweep` finds the block by it.
            slots: how many.
            rows: vectors in one slot.
            dimension: float32 values in one vector.
            poison: fill free slots with NaN, so that a test sees when one is read.

        Raises:
            ResourceError: there is too little shared memory.
        """
        name = f"{_prefix(lock_name)}{secrets.token_hex(4)}"
        layout = BufferLayout(name, slots, rows, dimension)
        check_room(layout.nbytes)
        file = os.open(FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, layout.nbytes)
            block = mmap.mmap(file, layout.nbytes)
        except OSError as error:
            os.unlink(FOLDER / name)
            if error.errno == errno.ENOSPC:
                raise ResourceError(_too_little(layout.nbytes, "full")) from error
            raise
        finally:
            os.close(file)
        return cls(layout, block, poison=poison)

    @property
    def address(self) -> int:
        """Where the block starts in this process, for `cudaHostRegister`."""
        return self._slots[0].vectors.ctypes.data

    @property
    def fill(self) -> tuple[int, int]:
        """How many slots are held, and how many there are."""
        return sum(self._held), self.layout.slots

    async def acquire(self) -> Slot:
        """Take a free slot; waits until there is one."""
        since = time.perf_counter()
        index = await self._free.get()
        self.waited_s += time.perf_counter() - since
        self._held[index] = True
        return self._slots[index]

    def release(self, index: int) -> None:
        """Give a slot back, once its copy has ended and the sink has read it.

        Raises:
            ValueError: the slot is not held.
        """
        if not self._held[index]:
            raise ValueError(f"slot {index} is released twice")
        self._held[index] = False
        self._hand_back(self._slots[index])

    def close(self) -> None:
        """Remove the block's name; the memory itself goes with the last view of it, in whatever process."""
        (FOLDER / self.layout.name).unlink(missing_ok=True)
        self._slots.clear()

    def _hand_back(self, slot: Slot) -> None:
        if self._poison:
            slot.vectors.fill(np.nan)
        self._free.put_nowait(slot.index)


class AttachedBuffers:
    """A pool's slots as a sink process sees them: to be read, not written."""

    def __init__(self, layout: BufferLayout, block: mmap.mmap) -> None:
        self._slots = [_slot(layout, block, index).vectors for index in range(layout.slots)]

    def vectors(self, slot: int) -> Float32s:
        """float32[rows, dimension], read-only."""
        return self._slots[slot]

    def close(self) -> None:
        """Let go of the block; it is unmapped when the last view of it is gone."""
        self._slots.clear()


def attach(layout: BufferLayout) -> AttachedBuffers:
    """Map another process's pool.

    Raises:
        ResourceError: there is no such block (any more).
    """
    try:
        file = os.open(FOLDER / layout.name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ResourceError(f"shared memory {layout.name}: {reason(error)}") from error
    try:
        return AttachedBuffers(layout, mmap.mmap(file, layout.nbytes, access=mmap.ACCESS_READ))
    finally:
        os.close(file)


def sweep(lock_name: str) -> int:
    """Remove the blocks that killed runs left, and say how many; call it while holding the lock."""
    left = list(FOLDER.glob(f"{_prefix(lock_name)}*"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def free_bytes() -> int:
    """Shared memory that is not taken."""
    return shutil.disk_usage(FOLDER).free


def check_room(nbytes: int) -> None:
    """Refuse a block that cannot fit into the machine's shared memory.

    Raises:
        ResourceError: says how much there is and how to get more.
    """
    free = free_bytes()
    if free < nbytes:
        raise ResourceError(_too_little(nbytes, f"{free / 2**20:.0f} MiB free"))


def _too_little(nbytes: int, found: str) -> str:
    return (
        f"{FOLDER}: the buffers need {nbytes / 2**20:.0f} MiB of shared memory ({found}); lower"
        " pipeline.buffers or pipeline.buffer_bytes, or give the container more"
        " (docker compose: shm_size, docker run: --shm-size)"
    )


def _prefix(lock_name: str) -> str:
    return f"ingestor-{hashlib.blake2b(lock_name.encode(), digest_size=8).hexdigest()}-"


def _slot(layout: BufferLayout, block: mmap.mmap, index: int) -> Slot:
    start = index * layout.slot_bytes
    vectors = np.frombuffer(block, np.float32, layout.rows * layout.dimension, start)
    flags = np.frombuffer(block, np.uint8, layout.rows, start + layout.vector_bytes)
    return Slot(index, vectors.reshape(layout.rows, layout.dimension), flags)
