"""The way to shards behind URLs, from the loop and from threads; what waits there can be called off."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

import stamina

from ingestor.errors import ConfigError, StoppedError, installing
from ingestor.sources.faults import library_errors
from ingestor.sources.stores import Patience, Store
from ingestor.sources.urls import HTTP, Scheme, scheme_of, shown

T = TypeVar("T")

CLOSE_S = 2.0
DEFAULT = Patience()


class Remote:
    """Stores of objects, in fsspec's own thread and loop; nothing is opened before it is asked for.

    Attributes:
        patience: with the servers.
    """

    def __init__(self, patience: Patience = DEFAULT) -> None:
        stamina.instrumentation.set_on_retry_hooks([])  # `persist` logs
        self.patience = patience
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()
        self._opening = asyncio.Lock()  # of the stores
        self._waiting: set[Future[Any]] = set()
        self._aborted = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run in the thread; once aborted, what comes is cancelled."""
        from fsspec.asyn import get_loop

        future: Future[T] = asyncio.run_coroutine_threadsafe(work, get_loop())
        with self._lock:
            self._waiting.add(future)
            aborted = self._aborted
        future.add_done_callback(self._forget)
        if aborted:
            future.cancel()
        return future

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the thread, and wait for it in this one.

        Raises:
            StoppedError: by `abort`.
        """
        return self.result(self.submit(work))

    def result(self, future: Future[T]) -> T:
        """What came of something submitted, waited for in this thread."""
        try:
            return future.result()
        except CancelledError:
            raise StoppedError from None

    async def arrived(self, future: Future[T]) -> T:
        """What came of something submitted, here or elsewhere, waited for in the running loop.

        Raises:
            StoppedError: by `abort`.
        """
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._aborted and not (task and task.cancelling()):
                raise StoppedError from None
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Have something short done in the thread, at some time."""
        from fsspec.asyn import get_loop

        get_loop().call_soon_threadsafe(function)

    async def until(self, stop: asyncio.Event, work: Awaitable[T]) -> T:
        """Wait for some work; a stop calls off all that is under way here meanwhile."""

        async def watch() -> None:
            await stop.wait()
            self.abort()

        outcome: list[T] = []
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(), name="watch")
            try:
                outcome.append(await work)
            except Exception as error:
                failure = error  # raised behind the group, which would wrap it
            watching.cancel()
        if failure is not None:
            raise failure
        return outcome[0]

    def abort(self) -> None:
        """Call off all that is under way and all that is to come; what waits for it ends."""
        with self._lock:
            self._aborted = True
            waiting = list(self._waiting)
        for future in waiting:
            future.cancel()

    def close(self) -> None:
        """Abort, and close the connections; blocks for a moment."""
        self.abort()
        if self._stores:
            from fsspec.asyn import get_loop

            closing = asyncio.run_coroutine_threadsafe(self._close_stores(), get_loop())
            with suppress(TimeoutError):
                closing.result(CLOSE_S)

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def store(self, url: str) -> Store:
        """The store of a URL; in the thread's loop.

        Raises:
            ConfigError: what reads such URLs is not installed, or has no credentials.
        """
        scheme = scheme_of(url)
        async with self._opening:
            if scheme.protocol not in self._stores:
                self._stores[scheme.protocol] = await self._open(scheme, url)
        return self._stores[scheme.protocol]

    async def _open(self, scheme: Scheme, url: str) -> Store:
        try:
            importlib.import_module(scheme.package)
        except ImportError as error:
            raise ConfigError(
                f"source.paths: {shown(url)}: {scheme.package} is not installed;"
                f" it comes with {installing(scheme.extra)}"
            ) from error
        with library_errors(url):
            if scheme is HTTP:
                from ingestor.sources.http import HttpStore

                return HttpStore(self.patience)
            from ingestor.sources.objects import ObjectStore

            return await asyncio.to_thread(ObjectStore, scheme.protocol, self.patience)  # looks for keys

    async def _close_stores(self) -> None:
        while self._stores:
            await self._stores.popitem()[1].close()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._waiting.discard(future)
