"""Stages 0 to 4 of the recipe as published; each gives the steps a second that its consumers took."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, multiprocessing

CONSUMERS, SLOTS, WARM_UP = 8, 8, 4
CUDA = torch.cuda.is_available()
Step = Callable[[], Tensor]
"""Starts one step of the model, and gives its logits on the device."""


def rate(times: list[float], skip: int = WARM_UP) -> float:
    """Steps a second after the first `skip`, from when each was done."""
    times = sorted(times)
    return (len(times) - skip) / (times[-1] - times[skip - 1])


def in_line(step: Step, steps: int) -> float:
    times = []
    with open("/dev/null", "wb") as null:
        for _ in range(WARM_UP + steps):
            null.write(step().cpu().numpy().tobytes())
            times.append(time.perf_counter())
    return rate(times)


class Recipe:
    """Stages 1 to 4: eight processes that copy what they get, and buffers that were pinned, then shared."""

    def __init__(self, like: Tensor) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = [torch.empty(like.shape, pin_memory=CUDA).share_memory_() for _ in range(SLOTS)]
        self._filled, self._free, self._done = context.Queue(CONSUMERS), context.Queue(), context.Queue()
        for index in range(SLOTS):
            self._free.put(index)
        arguments = self._pool, self._filled, self._free, self._done
        self._processes = [context.Process(target=consume, args=arguments) for _ in range(CONSUMERS)]
        for process in self._processes:
            process.start()

    def to_processes(self, step: Step, steps: int) -> float:
        for _ in range(WARM_UP + steps):
            self._filled.put(step().cpu())
        return self._rate(steps)

    def into_buffers(self, step: Step, steps: int) -> float:
        for _ in range(WARM_UP + steps):
            logits, index = step(), self._free.get()
            self._pool[index].copy_(logits)
            self._filled.put(index)
        return self._rate(steps)

    def asynchronously(self, step: Step, steps: int, *, own_stream: bool = False) -> float:
        under_way: queue.Queue[Any] = queue.Queue()
        compute = torch.cuda.current_stream()
        egress = torch.cuda.Stream() if own_stream else compute
        waiter = threading.Thread(target=self._wait, args=(under_way,))
        waiter.start()
        for _ in range(WARM_UP + steps):
            logits, index = step(), self._free.get()
            if own_stream:
                egress.wait_stream(compute)
                logits.record_stream(egress)
            with torch.cuda.stream(egress):
                self._pool[index].copy_(logits, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            under_way.put((event, index))
        under_way.put(None)
        waiter.join()
        return self._rate(steps)

    def close(self) -> None:
        for _ in self._processes:
            self._filled.put(None)
        for process in self._processes:
            process.join()

    def _wait(self, under_way: queue.Queue[Any]) -> None:
        while (found := under_way.get()) is not None:
            event, index = found
            event.synchronize()
            self._filled.put(index)

    def _rate(self, steps: int) -> float:
        times = [self._done.get() for _ in range(WARM_UP + steps)]
        # The free slots of the start are filled without waiting for a consumer.
        return rate(times, skip=SLOTS + WARM_UP if steps > 2 * SLOTS else WARM_UP)


def consume(pool: list[Tensor], filled: Any, free: Any, done: Any) -> None:
    """A consumer process of the recipe."""
    torch.set_num_threads(1)
    with open("/dev/null", "wb") as null:
        while (found := filled.get()) is not None:
            logits = pool[found] if isinstance(found, int) else found
            null.write(logits.numpy().tobytes())
            if isinstance(found, int):
                free.put(found)
            del logits
            done.put(time.perf_counter())
