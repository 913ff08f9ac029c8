"""A remote object as a file that can be read anywhere: for formats with their index at the end."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable

BLOCK_BYTES = 2 << 20
MOST_BLOCKS = 8
"""That are held: several columns are read side by side."""

Submit = Callable[[int, int], Callable[[], bytes]]
"""Begins to fetch a range, and gives what waits for it."""


class RangeFile(io.RawIOBase):
    """Reads blocks and keeps the last few; the block behind one that was read in order is fetched ahead."""

    def __init__(self, submit: Submit, size: int) -> None:
        super().__init__()
        self._submit = submit
        self._size = size
        self._at = 0
        self._blocks: OrderedDict[int, Callable[[], bytes]] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """All `size` bytes, or those up to the end; raises SourceError."""
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        parts = []
        while self._at < end:
            number, begin = divmod(self._at, BLOCK_BYTES)
            part = self._block(number)[begin : begin + end - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        in_order = number - 1 in self._blocks
        block = self._begin(number)
        if in_order and (number + 1) * BLOCK_BYTES < self._size:
            self._begin(number + 1)
        while len(self._blocks) > MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return block()

    def _begin(self, number: int) -> Callable[[], bytes]:
        if number not in self._blocks:
            start = number * BLOCK_BYTES
            self._blocks[number] = self._submit(start, min(start + BLOCK_BYTES, self._size))
        self._blocks.move_to_end(number)
        return self._blocks[number]
