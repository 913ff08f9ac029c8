"""What people should know of a target before a run writes to it; none of it keeps the run from writing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from ingestor.errors import ConfigError
from ingestor.sink import Target
from ingestor.sink.folder import folder_of
from ingestor.sink.place import little_room

OF_SERVERS = ("shard_number", "replication_factor", "write_consistency_factor")


def remarks(target: Target) -> Iterator[tuple[str, str]]:
    """(kind, detail) of each, as in the report's warnings."""
    if target.datatype == "uint8":
        yield (
            "lossy_datatype",
            "qdrant.datatype: uint8 keeps whole numbers from 0 to 255, and makes vectors of unit length zero"
            " nearly all over; set float16, or qdrant.quantization for less memory",
        )
    if target.url:
        if target.api_key and _shows_key(target.url):
            yield (
                "key_in_clear",
                f"{target.url}: the API key goes over the network unencrypted; write the url with https://",
            )
        return
    for name in OF_SERVERS:
        if getattr(target, name) is not None:
            yield "setting_ignored", f"qdrant.{name}: means nothing to the embedded engine; leave it out"
    try:
        folder = folder_of(target)
    except ConfigError:
        return  # opening it says so
    if said := little_room(folder):
        yield "little_room", f"{said}; it may not do"


def _shows_key(url: str) -> bool:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost" or host.endswith(".localhost")
    return parts.scheme == "http" and not local
