"""Objects in Amazon's, Google's and Azure's stores, by way of fsspec; read in ranges of one version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fsspec

from ingestor.records import Shard
from ingestor.sources.faults import changed, library_errors
from ingestor.sources.stores import PIECE_BYTES, Found, Patience, persist

Get = Callable[[Any, str, str, int, int], Awaitable[bytes]]
"""Takes fsspec's file system, path, version, and a range; raises what the library raises."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between the stores.

    Attributes:
        version: what fsspec calls the version of an object.
        get: has a range of bytes of that version, or fails.
    """

    version: str
    get: Get


async def get_amazon(system: Any, path: str, version: str, start: int, stop: int) -> bytes:
    bucket, key = system._find_bucket_key(path)
    answer = await system._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", IfMatch=version
    )
    async with answer["Body"] as body:
        data: bytes = await body.read()
    return data


async def get_google(system: Any, path: str, version: str, start: int, stop: int) -> bytes:
    try:
        data: bytes = await system._cat_file(path, start=start, end=stop, generation=version)
    except FileNotFoundError:
        if (await system._info(path)).get("generation") != version:
            raise changed() from None
        raise
    return data


async def get_azure(system: Any, path: str, version: str, start: int, stop: int) -> bytes:
    from azure.core import MatchConditions

    container, _, name = path.partition("/")
    async with system.service_client.get_blob_client(container, name) as blob:
        answer = await blob.download_blob(
            offset=start, length=stop - start, etag=version, match_condition=MatchConditions.IfNotModified
        )
        data: bytes = await answer.readall()
    return data


KINDS = {
    "s3": Kind("ETag", get_amazon),
    "gs": Kind("generation", get_google),
    "az": Kind("etag", get_azure),
}


class ObjectStore:
    """Objects of one store.

    Args:
        protocol: as fsspec calls it.
        patience: with the servers.
    """

    def __init__(self, protocol: str, patience: Patience) -> None:
        self._protocol = protocol
        self._kind = KINDS[protocol]
        self._patience = patience
        self._system = open_system(protocol, patience)

    async def stat(self, url: str) -> Found:
        """See `Store`; a prefix of objects is a folder."""
        with library_errors(url):
            return self._found(await self._system._info(path_of(url)))

    async def below(self, url: str) -> list[Found]:
        """See `Store`."""
        folder = path_of(url).rstrip("/")
        with library_errors(url):
            found = await self._system._find(folder, detail=True)
        objects = [self._found(info) for name, info in found.items() if name.startswith(folder + "/")]
        return [each for each in objects if not each.folder]

    async def matching(self, url: str) -> list[Found]:
        """See `Store`."""
        with library_errors(url):
            found = await self._system._glob(path_of(url), detail=True)
        return [self._found(info) for info in found.values()]

    def pieces(self, shard: Shard) -> ObjectPieces:
        return ObjectPieces(self, shard)

    async def fetch(self, shard: Shard, start: int, stop: int) -> bytes:
        """See `Store`."""
        stop = min(stop, shard.size)
        if start >= stop:
            return b""
        return await persist(shard.name, lambda: self._fetch(shard, start, stop), self._patience)

    async def close(self) -> None:
        """fsspec closes its connections when its file system is forgotten."""
        del self._system

    async def _fetch(self, shard: Shard, start: int, stop: int) -> bytes:
        limit_s = self._patience.connect_s + self._patience.read_s  # not every library has limits of its own
        with library_errors(shard.path):
            async with asyncio.timeout(limit_s):
                return await self._kind.get(self._system, path_of(shard.path), shard.fingerprint, start, stop)

    def _found(self, info: Mapping[str, Any]) -> Found:
        """A marker that stands for a folder is none of the objects."""
        name, folder = info["name"], info["type"] == "directory"
        return Found(
            f"{self._protocol}://{name}",
            int(info["size"] or 0),
            str(info.get(self._kind.version) or ""),
            folder=folder or name.endswith("/"),
        )


class ObjectPieces:
    """An object's bytes, each piece by a request of its own."""

    def __init__(self, store: ObjectStore, shard: Shard) -> None:
        self._store = store
        self._shard = shard
        self._at = 0

    async def next(self) -> bytes:
        """See `Pieces`."""
        start = self._at
        self._at += PIECE_BYTES
        return await self._store.fetch(self._shard, start, start + PIECE_BYTES)

    def close(self) -> None:
        """See `Pieces`."""


def path_of(url: str) -> str:
    """Bucket and key."""
    return url.partition("://")[2]


def open_system(protocol: str, patience: Patience) -> Any:
    """fsspec's file system; its own settings and variables say who we are."""
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if protocol == "s3":
        options["config_kwargs"] = {
            "connect_timeout": patience.connect_s,
            "read_timeout": patience.read_s,
            "retries": {"total_max_attempts": 1},  # `persist` tries again, and is the only one that does
        }
    system = fsspec.filesystem(protocol, **options)
    system.retries = 1
    return system
