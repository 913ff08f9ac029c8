"""What a run decides at its start, as far as that needs no GPU."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NoReturn

import pytest

from ingestor.config.settings import Settings
from ingestor.encoding.model import resolve
from ingestor.encoding.tuning import compiling_pays, text_bytes_of
from ingestor.errors import ConfigError
from ingestor.records import Shard
from ingestor.running.engine import gpu_rows, open_engine

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("wanted", "text_bytes", "tokens_per_s", "pays"),
    [
        ("auto", 40 * GIB, 9e6, True),  # sixteen minutes of MiniLM
        ("auto", 10 * GIB, 9e6, False),  # four of it
        ("auto", 20 * GIB, 0.7e6, True),  # and an hour and a half of a large model
        ("auto", 100 * MIB, 0.7e6, False),
        ("on", 0, 9e6, True),
        ("off", 1000 * GIB, 1e3, False),
    ],
)
def test_compiling_pays_when_there_are_five_minutes_of_work(
    wanted: str, text_bytes: int, tokens_per_s: float, pays: bool
) -> None:
    assert compiling_pays(wanted, text_bytes, tokens_per_s) is pays


@pytest.mark.parametrize(
    ("wanted", "text_bytes", "pays"),
    [("auto", 100 * MIB, False), ("auto", GIB, True), ("on", 0, True)],  # 23 s and 4 minutes of BERT-base
)
def test_eight_bits_are_compiled_when_there_is_a_minute_of_work(
    wanted: str, text_bytes: int, pays: bool
) -> None:
    assert compiling_pays(wanted, text_bytes, 0.9e6, eight_bits=True) is pays


def test_packed_shards_hold_more_text_than_they_take() -> None:
    names = {"a.jsonl": 100, "b.jsonl.zst": 100, "c.xml.bz2": 50}
    shards = [Shard(0, name, name, size, "") for name, size in names.items()]
    assert text_bytes_of(shards) == 100 + 300 + 150


def test_slots_have_room_for_short_chunks_where_memory_allows() -> None:
    assert gpu_rows(65_536, 1 << 40) == 4096
    assert gpu_rows(65_536, 1000) == 1000
    assert gpu_rows(65_536, 10) == 512


async def nothing() -> NoReturn:
    raise AssertionError("nothing is to be sampled")


async def test_a_cpu_does_not_compile(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"source": {"paths": ["x"]}, "encoder": {"model": "hash:8", "device": "cpu", "compile": "on"}}
    )
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError, match=r"encoder\.compile: on is for CUDA devices.*; set auto or off"):
            await open_engine(
                stack,
                settings,
                resolve("hash:8"),
                max_tokens=64,
                lock_name=str(tmp_path),
                text_bytes=0,
                stop=asyncio.Event(),
                calibration=None,
                known=None,
                sample=nothing,
            )
