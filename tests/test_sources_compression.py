"""Packed bytes in pieces of any size come out as they went in."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestor.errors import SourceError
from ingestor.sources.compression import Unpacker, packing_of, zstd

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zstd": partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1}),
}
names = st.sampled_from(sorted(PACK))


def unpack(packed: bytes, piece_bytes: int = 1 << 20, step_bytes: int = 1 << 16) -> bytes:
    unpacker = Unpacker(packing_of(packed), step_bytes)
    starts = range(0, len(packed), piece_bytes)
    steps = [step for start in starts for step in unpacker.push(packed[start : start + piece_bytes])]
    assert all(len(step) <= step_bytes for step in steps) or packing_of(packed) is None
    unpacker.finish()
    return b"".join(steps)


@settings(deadline=None)  # the machine may be busy
@given(
    names, st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 50), st.integers(1, 100)
)
def test_members_back_to_back_are_one_stream(
    name: str, members: list[bytes], piece_bytes: int, step_bytes: int
) -> None:
    packed = b"".join(map(PACK[name], members))
    unpacker = Unpacker(packing_of(packed + b" " * 20), step_bytes)
    starts = range(0, len(packed), piece_bytes)
    out = [step for start in starts for step in unpacker.push(packed[start : start + piece_bytes])]
    unpacker.finish()
    assert b"".join(out) == b"".join(members)
    assert all(len(step) <= step_bytes for step in out)


@pytest.mark.parametrize("name", sorted(PACK))
def test_a_stream_cut_short_anywhere_is_told(name: str) -> None:
    text = b"".join(b"%d\n" % number for number in range(200))
    packed = PACK[name](text[:500]) + PACK[name](text[500:])
    member = len(PACK[name](text[:500]))
    for size in range(10, len(packed)):
        if size == member:
            continue
        with pytest.raises(SourceError) as told:
            unpack(packed[:size])
        assert told.value.kind == "truncated_input"


@pytest.mark.parametrize("name", sorted(PACK))
def test_what_came_before_the_cut_is_kept(name: str) -> None:
    packed = PACK[name](b"a line\n" * 10) + PACK[name](b"another\n" * 10)[:-3]
    unpacker = Unpacker(packing_of(packed), 1 << 16)
    assert b"".join(unpacker.push(packed)).startswith(b"a line\n" * 10)


@pytest.mark.parametrize("name", sorted(PACK))
def test_garbage_behind_the_stream_is_told(name: str) -> None:
    with pytest.raises(SourceError) as told:
        unpack(PACK[name](b"text") + b"no packed data")
    assert told.value.kind == "trailing_garbage"


@pytest.mark.parametrize("name", sorted(PACK))
def test_a_damaged_stream_is_told(name: str) -> None:
    packed = bytearray(PACK[name](bytes(range(256)) * 50))
    packed[len(packed) // 2] ^= 0x10
    with pytest.raises(SourceError) as told:
        unpack(bytes(packed))
    assert told.value.kind == "corrupt_input"


def test_zeros_behind_gzip_are_padding() -> None:
    assert unpack(gzip.compress(b"text") + bytes(1000), piece_bytes=7) == b"text"


def test_a_frame_that_wants_too_much_memory_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 30, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    packed = compressor.compress(b"x" * 1000) + compressor.flush()
    with pytest.raises(SourceError) as told:
        unpack(packed)
    assert told.value.kind == "window_too_large"


@pytest.mark.parametrize("name", sorted(PACK))
def test_a_small_file_cannot_fill_the_memory(name: str) -> None:
    packed = PACK[name](bytes(1 << 25))
    unpacker = Unpacker(packing_of(packed), 1 << 16)
    sizes = [len(step) for step in unpacker.push(packed)]
    assert sum(sizes) == 1 << 25
    assert max(sizes) <= 1 << 16


def test_plain_bytes_pass() -> None:
    assert unpack(b'{"id": 1}\n') == b'{"id": 1}\n'
    assert packing_of(b"BZh1 is how some text begins") is None
