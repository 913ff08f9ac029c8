"""Whole records, all of them, in blocks of the right size."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingestor.sources.cutting import Cut, Cutter, Limits

pieces = st.lists(st.text("ab\n<>/", max_size=40).map(str.encode), max_size=12)


def cut_all(pieces: list[bytes], end: bytes, limits: Limits, *, keep_tail: bool = True) -> list[Cut]:
    cutter = Cutter("shard", end, limits)
    cuts = [cut for piece in pieces for cut in cutter.push(piece)]
    return cuts + cutter.finish(keep_tail=keep_tail)


def split(data: bytes, end: bytes) -> list[bytes]:
    """Records without their ends; the last need not have one."""
    *records, tail = data.split(end)
    return [*records, tail] if tail else records


@settings(deadline=None)  # the machine may be busy
@given(pieces, st.sampled_from([b"\n", b"/>", b"</a>"]), st.integers(1, 30))
def test_nothing_is_lost_and_records_stay_whole(pieces: list[bytes], end: bytes, block_bytes: int) -> None:
    cuts = cut_all(pieces, end, Limits(block_bytes, 1000))
    whole = b"".join(pieces)
    assert b"".join(cut.data for cut in cuts) == whole
    assert all(cut.data.endswith(end) for cut in cuts[:-1])
    for cut in cuts:
        assert whole[cut.offset : cut.offset + len(cut.data)] == cut.data
        assert cut.place == whole[: cut.offset].count(end) + 1
        assert len(cut.data) <= block_bytes + len(end) or len(split(cut.data, end)) == 1 or cut is cuts[-1]


@settings(deadline=None)  # the machine may be busy
@example([b"abc/", b">"], b"/>", 1, 3)
@given(pieces, st.sampled_from([b"\n", b"/>"]), st.integers(1, 30), st.integers(1, 20))
def test_over_long_records_alone_are_refused(
    pieces: list[bytes], end: bytes, block_bytes: int, limit: int
) -> None:
    cuts = cut_all(pieces, end, Limits(block_bytes, limit))
    records = split(b"".join(pieces), end)
    kept = [record for cut in cuts for record in split(cut.data, end)]
    assert kept == [record for record in records if len(record) <= limit]
    refused = [failure.place for cut in cuts for failure in cut.failures]
    assert refused == [place for place, record in enumerate(records, 1) if len(record) > limit]


def test_a_tail_can_be_left_out() -> None:
    cuts = cut_all([b"one\ntw", b"o"], b"\n", Limits(100, 100), keep_tail=False)
    assert [cut.data for cut in cuts] == [b"one\n"]


def test_an_over_long_record_is_not_kept_while_it_passes() -> None:
    cutter = Cutter("shard", b"\n", Limits(100, 1000))
    cuts = list(cutter.push(b"short\n"))
    for _ in range(1000):
        cuts += cutter.push(b"x" * 100)
        assert len(cutter._held) <= 1100
    cuts += cutter.push(b"\nlast\n")
    cuts += cutter.finish(keep_tail=True)
    assert b"".join(cut.data for cut in cuts) == b"short\nlast\n"
    (failure,) = (failure for cut in cuts for failure in cut.failures)
    assert (failure.place, failure.kind, failure.offset) == (2, "line_too_long", 6)
    assert cuts[-1].place == 3
    assert cuts[-1].offset == 6 + 100_001
