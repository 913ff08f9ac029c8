"""What every worker process does first, so that none outlives its parent and no signal strikes it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, ParamSpec, TypeVar

from ingestor.errors import WorkerDiedError

P = ParamSpec("P")
T = TypeVar("T")

PR_SET_PDEATHSIG = 1
STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
QUIET = "ignore:resource_tracker"
"""Python's own helper process frees the semaphores of a killed run, and would complain of having to."""


def start() -> None:
    """Make this process end with its parent alone; opens nothing, for a pool cannot say why that failed."""
    parent = parent_process()
    if parent is None or parent.pid is None:
        raise RuntimeError("worker.start is for worker processes only")
    os.setsid()  # a signal to the parent's group does not come here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent.pid:  # it ended before prctl
        os._exit(1)
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()
    threading.Thread(target=_obey, args=(parent.pid,), name="signals", daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """End when the parent does; the kernel tells first, unless another thread of the parent started us."""
    connection.wait([parent.sentinel])
    os._exit(1)


def _obey(parent: int) -> None:
    """End on the SIGTERM of the parent's pool; pass over others, sent to all processes of a service."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(128 + signal.SIGTERM)


def spawn(
    processes: int, initializer: Callable[..., None] = start, initargs: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """Start worker processes; call it from the main thread, for they die with the thread that starts them.

    Args:
        processes: how many.
        initializer: what each does first: `start`, or a function that calls it.
        initargs: what that is called with.
    """
    os.environ.setdefault("PYTHONWARNINGS", QUIET)
    context = get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=initializer, initargs=initargs)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    try:  # what is blocked here is blocked in the worker until `start` has moved it to its own session
        while len(_processes(pool)) < processes:
            pool.submit(os.getpid)  # starts a process, unless one is idle
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    _notice_death(pool)
    return pool


def _notice_death(pool: ProcessPoolExecutor) -> None:
    """Make a pool see also the death of a worker inside an answer, whose rest it would await for ever.

    It reads on until nobody can write any more, so this process must not hold the pipe's other end, nor may
    other workers outlive the one that died.
    """
    results: Any = pool._result_queue
    results._writer.close()
    workers = _processes(pool)

    def watch() -> None:
        connection.wait([process.sentinel for process in workers])
        for process in workers:
            process.terminate()  # the pool itself would do so, too

    threading.Thread(target=watch, name="workers", daemon=True).start()


def submit(pool: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Ask a worker to call a function; what goes wrong is told by `answer`, to whoever still waits for it."""
    future: asyncio.Future[T]
    try:
        future = asyncio.wrap_future(pool.submit(function, *args, **kwargs))
    except BrokenProcessPool as error:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
    future.add_done_callback(_look_at)
    return future


async def answer(pool: Executor, future: asyncio.Future[T], name: str) -> T:
    """Wait for a worker's answer.

    Raises:
        WorkerDiedError: says how the process, which people know by `name`, has ended.
    """
    try:
        return await future
    except BrokenProcessPool as error:
        assert isinstance(pool, ProcessPoolExecutor)
        cause = await asyncio.to_thread(cause_of_death, pool)
        raise WorkerDiedError(f"{name} {cause}; run again to complete the work") from error


def _look_at(future: asyncio.Future[Any]) -> None:
    """Take note of an error, for it may be that nobody waits any more: an earlier one ended the run."""
    if not future.cancelled():
        future.exception()


def kill(pool: ProcessPoolExecutor) -> None:
    """End a pool's workers at once, whatever they do."""
    for process in _processes(pool):
        process.kill()


def cause_of_death(pool: ProcessPoolExecutor) -> str:
    """How a broken pool's worker ended, in words, with the likely reason; waits for the others' end."""
    manager: Any = pool._executor_manager_thread
    if manager is not None:
        manager.join()  # it collects the exit codes
    for process in _processes(pool):
        code = process.exitcode
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL), perhaps for want of memory"
        if code == -signal.SIGBUS:
            return "was killed (SIGBUS): a disk or /dev/shm is full, so make room"
        if code is not None and code < 0:
            return f"crashed ({signal.Signals(-code).name})"
    return "ended by itself"


def _processes(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    """A pool's processes; there is no public way to them before Python 3.14."""
    return list((pool._processes or {}).values())
