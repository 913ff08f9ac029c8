"""URLs to shards: single objects, folders, patterns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ingestor.errors import ConfigError, IngestorError, SourceError
from ingestor.records import Shard
from ingestor.sources.names import is_passed_over
from ingestor.sources.remote import Remote
from ingestor.sources.stores import UNKNOWN, Found, Store, persist
from ingestor.sources.urls import HTTP, canonical, fixed_part, has_magic, scheme_of, shown

T = TypeVar("T")
Warning_ = tuple[str, str, str]
"""A name, a kind and a detail."""

AT_ONCE = 8
"""Requests under way."""
TRIES, TOTAL_S = 5, 20.0
"""At most: a server that is not there, or whose name is mistyped, is told of soon."""


async def list_urls(urls: Sequence[str], remote: Remote) -> tuple[list[Shard], list[Warning_]]:
    """Find the shards that URLs name, each object once; runs in the loop of `remote`.

    Returns:
        The shards, and warnings of what was met and is no shard.

    Raises:
        ConfigError: an object that is no pattern does not exist; a package or credentials are missing.
        StoppedError: the search was called off.
    """
    search, urls = _Search(remote), [canonical(url) for url in urls]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(search.objects(url), name=f"list {shown(url)}") for url in urls]
    shards: dict[str, Shard] = {}
    warnings: list[Warning_] = []
    for url, task in zip(urls, tasks, strict=True):
        outcome = task.result()
        if isinstance(outcome, IngestorError):
            raise outcome
        if not outcome:
            warnings.append((shown(url), "no_match", "nothing matches this pattern, or lies below it"))
        for found in outcome:
            if isinstance(found, Found):
                _take(found, shards)
            else:
                warnings.append(found)
    return list(shards.values()), warnings


def _take(found: Found, shards: dict[str, Shard]) -> None:
    """Add an object to the shards, once, whatever the signatures in its URLs."""
    name = shown(found.url)
    known = shards.get(name)
    fingerprint = found.version or f"{UNKNOWN}{time.time_ns()}"
    if known is not None and known.path != found.url and known.fingerprint != fingerprint:
        raise ConfigError(
            f"source.paths: {name}: several URLs differ only in what may be secret, and is kept out of names"
        )
    shards[name] = known or Shard(0, name, found.url, found.size, fingerprint)


class _Search:
    """Looks at URLs, some at a time; what goes wrong with one of them is an outcome."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._few = asyncio.Semaphore(AT_ONCE)
        given = remote.patience
        self._patience = replace(given, tries=min(given.tries, TRIES), total_s=min(given.total_s, TOTAL_S))

    async def objects(self, url: str) -> list[Found | Warning_] | IngestorError:
        """The objects that a URL names, and warnings."""
        try:
            return await self._objects(await self._remote.store(url), url)
        except SourceError as error:
            if error.kind == "vanished":
                return ConfigError(
                    f"source.paths: {shown(url)} does not exist; look at the address, and whose key it is"
                )
            return [(shown(url), "unreadable", error.detail)]
        except IngestorError as error:
            return error

    async def _objects(self, store: Store, url: str) -> list[Found | Warning_]:
        magic = has_magic(url)
        if not url.endswith("/") and not (magic and scheme_of(url) is HTTP):
            try:
                found = await self._ask(url, lambda: store.stat(url))
            except SourceError as error:
                if error.kind != "vanished" or not magic:
                    raise
            else:  # what exists is no pattern
                return await self._below(store, url) if found.folder else [found]
        if not magic:
            return await self._below(store, url)
        matches = await self._ask(url, lambda: store.matching(url))
        objects: list[Found | Warning_] = []
        for match in _wanted(matches, fixed_part(url)):
            objects += await (
                self._below(store, match.url) if match.folder else self._looked_at(store, [match])
            )
        return objects

    async def _below(self, store: Store, url: str) -> list[Found | Warning_]:
        folder = url.rstrip("/") + "/"
        found = await self._ask(url, lambda: store.below(folder))
        return await self._looked_at(store, [each for each in _wanted(found, folder) if not each.folder])

    async def _looked_at(self, store: Store, listed: Sequence[Found]) -> list[Found | Warning_]:
        """What was listed, with sizes and versions where the listing has none."""

        async def look(found: Found) -> Found | Warning_:
            try:
                return found if found.version else await self._ask(found.url, lambda: store.stat(found.url))
            except SourceError as error:
                kind = "vanished" if error.kind == "vanished" else "unreadable"
                return (shown(found.url), kind, error.detail)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(look(found)) for found in listed]
        return [task.result() for task in tasks]

    async def _ask(self, url: str, call: Callable[[], Awaitable[T]]) -> T:
        async with self._few:
            return await persist(shown(url), call, self._patience)


def _wanted(listed: Iterable[Found], base: str) -> list[Found]:
    """What lies below `base`, but for what names say is none of the user's."""
    return [
        found
        for found in listed
        if found.url.startswith(base)
        and not any(map(is_passed_over, found.url[len(base) :].rstrip("/").split("/")))
    ]
