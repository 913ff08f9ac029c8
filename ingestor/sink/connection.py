"""A gRPC channel to a Qdrant server: every call has a deadline, and its errors are told apart here."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
from qdrant_client import grpc as qdrant
from qdrant_client.conversions.conversion import GrpcToRest

from ingestor.errors import ConfigError, SinkError
from ingestor.sink import Target
from ingestor.sink.patience import Patience, persist
from ingestor.sink.server_errors import error_of

T = TypeVar("T")

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else gRPC writes lines of its own to stderr
OLDEST = (1, 16)  # the first that keeps metadata with a collection
GREETING_S = 10.0
PATIENCE, BRIEFLY = Patience(seconds=30.0, full_s=0.0), Patience(seconds=3.0)
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),  # a server that is started again is there within seconds
    ("grpc.max_reconnect_backoff_ms", 3000),
)


class Connection:
    """One channel, with the API key on every call."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.channel = _channel(target)
        self.metadata = _metadata(target.api_key)
        self.points: Any = qdrant.PointsStub(self.channel)
        self.collections: Any = qdrant.CollectionsStub(self.channel)

    def once(self, method: Callable[..., T], request: Any, timeout_s: float | None = None) -> T:
        """Make one call, once."""
        try:
            return method(request, timeout=timeout_s or self.target.timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            raise error_of(error, self.target) from error

    def ask(self, method: Callable[..., T], request: Any) -> T:
        """Make one call; asks again after errors that may pass.

        Raises:
            SinkError, ConfigError, ResourceError: what `error_of` makes of it.
        """
        return persist(lambda: self.once(method, request), patience=PATIENCE)

    def greet(self) -> str:
        """Ask for the server's version.

        Raises:
            SinkError: there is no server, or it is too old.
            ConfigError: something else answers there.
        """
        method = qdrant.QdrantStub(self.channel).HealthCheck
        timeout_s = min(GREETING_S, self.target.timeout_s)
        request = qdrant.HealthCheckRequest()
        version = str(persist(lambda: self.once(method, request, timeout_s), patience=BRIEFLY).version)
        found = re.match(r"v?(\d+)\.(\d+)", version)
        if found and (int(found[1]), int(found[2])) < OLDEST:
            raise SinkError(f"{self.target.url}: the server is Qdrant {version}; 1.16 or newer is needed")
        return version

    def count(self) -> int:
        """Points in the collection, exactly."""
        request = qdrant.CountPoints(collection_name=self.target.collection, exact=True)
        return int(self.ask(self.points.Count, request).result.count)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


def _channel(target: Target) -> grpc.Channel:
    """Open a channel; connects when it is first used.

    Raises:
        ConfigError: the url or the file of certificates cannot be used.
    """
    url = target.url or ""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.username or parts.password:
        raise ConfigError("qdrant.url: leave user and password out; the key goes into QDRANT_API_KEY")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError("qdrant.url: write it as http(s)://host:6333, without a path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = f"{host}:{target.grpc_port}"
    if parts.scheme == "http":
        return grpc.insecure_channel(address, OPTIONS)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(_trusted(target.ca_file)), OPTIONS)


def _trusted(ca_file: str | None) -> bytes | None:
    """Certificates to trust: those of a file, else the system's, else gRPC's own."""
    if ca_file is None:
        system = ssl.get_default_verify_paths().cafile
        return Path(system).read_bytes() if system else None
    try:
        found = Path(ca_file).read_bytes()
    except OSError as error:
        raise ConfigError(f"qdrant.ca_file: {ca_file}: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in found:
        raise ConfigError(f"qdrant.ca_file: {ca_file}: holds no certificate in PEM format")
    return found


def _metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """What is sent with every call; gRPC would show in its error the key that it cannot send."""
    if not api_key:
        return ()
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("qdrant.api_key: has a line end or another character in it that no key has")
    return (("api-key", api_key),)


def metadata_of(info: qdrant.CollectionInfo) -> dict[str, Any] | None:
    """What a collection was written with, from its metadata; None where nothing says so."""
    metadata: dict[str, Any] = GrpcToRest.convert_payload(info.config.metadata)
    return metadata.get("ingestor")
