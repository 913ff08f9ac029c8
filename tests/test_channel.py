"""Bounded hand-over between stages."""

from __future__ import annotations

import asyncio

import pytest

from ingestor.channel import Channel, Clock, pump
from tests.fakes import stream


async def test_keeps_order_and_ends():
    channel: Channel[int] = Channel(2)
    async with asyncio.TaskGroup() as group:
        group.create_task(pump(stream(range(100)), channel))
        received = [item async for item in channel]
    assert received == list(range(100))


async def test_a_sender_waits_for_room():
    channel: Channel[int] = Channel(2)
    await channel.send(1)
    await channel.send(2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channel.send(3)
    assert await anext(channel) == 1
    await channel.send(4)
    await channel.close()
    assert [item async for item in channel] == [2, 4]


async def test_ends_when_every_producer_has_closed():
    channel: Channel[int] = Channel(8, producers=2)
    await channel.send(1)
    await channel.close()
    assert await anext(channel) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(channel)
    await channel.close()
    assert [item async for item in channel] == []


async def test_a_broken_stage_never_looks_finished():
    async def broken():
        yield 1
        raise ValueError("broken")

    channel: Channel[int] = Channel(2)
    seen = []

    async def consume():
        seen.extend([item async for item in channel])
        seen.append("end")

    async def run():
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(consume())
            group.create_task(pump(broken(), channel))

    with pytest.raises(ExceptionGroup):
        await run()
    assert seen == []


async def test_pump_closes_its_stage():
    closed = asyncio.Event()

    async def endless():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    channel: Channel[int] = Channel(1)
    task = asyncio.ensure_future(pump(endless(), channel))
    assert await anext(channel) == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_waiting_is_told_from_work():
    source: Channel[int] = Channel(1)
    out: Channel[int] = Channel(1)
    clock = Clock(source, out)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(source))
        await asyncio.sleep(0.01)
        await source.send(7)
    assert waiting.result() == 7
    read = clock.read()
    assert read.waiting_for_input_s >= 0.009
    assert read.waiting_for_room_s == 0
    assert read.busy_s >= 0
