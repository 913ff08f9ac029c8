"""A gRPC channel to a Qdrant server: every call has a deadline, and its errors are told apart here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
import stamina
from qdrant_client import grpc as qdrant
from qdrant_client.conversions.conversion import GrpcToRest

from ingestor.errors import ConfigError, ResourceError, SinkError, TransientSinkError
from ingestor.sink import RefusedError, Target

T = TypeVar("T")

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else gRPC writes lines of its own to stderr
OLDEST = (1, 16)  # the first that keeps metadata with a collection
GREETING_S = 10.0
PATIENCE_S = 30.0
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
Code = grpc.StatusCode
TRANSIENT = (Code.DEADLINE_EXCEEDED, Code.FAILED_PRECONDITION, Code.ABORTED, Code.CANCELLED, Code.UNKNOWN)


class AlreadyThereError(SinkError):
    """A collection of that name was made meanwhile, perhaps by the call whose answer was lost."""


class ServiceError(TransientSinkError):
    """The server failed inside; it is asked again a few times only."""


class RateLimitedError(TransientSinkError):
    """The server has said when it will take the request."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class Connection:
    """One channel, with the API key on every call."""

    def __init__(self, target: Target) -> None:
        stamina.instrumentation.set_on_retry_hooks([])  # worker processes print nothing
        self.target = target
        self.channel = _channel(target)
        self.metadata = (("api-key", target.api_key),) if target.api_key else ()
        self.points: Any = qdrant.PointsStub(self.channel)  # type: ignore[no-untyped-call]
        self.collections: Any = qdrant.CollectionsStub(self.channel)  # type: ignore[no-untyped-call]

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
        return persist(lambda: self.once(method, request), patience_s=PATIENCE_S)

    def greet(self) -> str:
        """Ask for the server's version.

        Raises:
            SinkError: there is no server, or it is too old.
            ConfigError: something else answers there.
        """
        method = qdrant.QdrantStub(self.channel).HealthCheck  # type: ignore[no-untyped-call]
        timeout_s = min(GREETING_S, self.target.timeout_s)
        request = qdrant.HealthCheckRequest()
        version = str(persist(lambda: self.once(method, request, timeout_s), patience_s=3.0).version)
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


def persist(call: Callable[[], T], *, patience_s: float) -> T:
    """Make a call again, with growing pauses, while it fails with what may pass, for `patience_s`."""
    inside = 0

    def pause(error: Exception) -> bool | float:
        nonlocal inside
        inside += isinstance(error, ServiceError)
        if isinstance(error, RateLimitedError):
            return error.retry_after_s
        return isinstance(error, TransientSinkError) and inside < 4

    for attempt in stamina.retry_context(
        on=pause, attempts=None, timeout=patience_s, wait_initial=0.1, wait_max=10.0, wait_jitter=0.5
    ):
        with attempt:
            return call()
    raise AssertionError("the last attempt returns or raises")


def error_of(error: grpc.RpcError, target: Target) -> Exception:
    """Our error for one of gRPC's; see the table of codes in the server's own sources."""
    code, detail = error.code(), str(error.details())
    place = f"{target.url} (gRPC port {target.grpc_port})"
    if code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
        return ConfigError(f"{place}: the server refuses the API key; set QDRANT_API_KEY ({detail})")
    if code is Code.UNAVAILABLE:
        return _unavailable(detail, place)
    if code is Code.UNIMPLEMENTED:
        return ConfigError(
            f"{place}: what answers there is no Qdrant server ({detail}); see qdrant.grpc_port"
        )
    if code is Code.ALREADY_EXISTS:
        return AlreadyThereError(f"{target}: {detail}")
    if code is Code.INVALID_ARGUMENT:
        return RefusedError("refused", detail)
    if code is Code.RESOURCE_EXHAUSTED:
        return _exhausted(error, detail, place)
    if code is Code.INTERNAL:
        if "No space left" in detail:
            return ResourceError(f"{place}: the server has no room on its disk ({detail})")
        return ServiceError(f"{target}: {detail}")
    if code in TRANSIENT:
        return TransientSinkError(f"{target}: {code.name.lower()}: {detail}")
    return SinkError(f"{target}: {code.name.lower()}: {detail}")


def _unavailable(detail: str, place: str) -> Exception:
    if "Failed parsing HTTP/2" in detail or "http1" in detail.lower():
        return ConfigError(f"{place}: that port does not speak gRPC; set qdrant.grpc_port (6334 as a rule)")
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return ConfigError(f"{place}: its certificate is not trusted; set qdrant.ca_file")
    if "handshake failed" in detail.lower():
        return ConfigError(
            f"{place}: no TLS there; write the url with http:// instead of https://, or set TLS up"
        )
    return TransientSinkError(
        f"{place}: no Qdrant server can be reached; is it running, and is qdrant.grpc_port right? ({detail})"
    )


def _exhausted(error: grpc.RpcError, detail: str, place: str) -> Exception:
    """A rate limit, a full disk, or a request too large: only the metadata tells."""
    metadata: Any = error.trailing_metadata() or ()
    told = {str(key): value for key, value in metadata}
    if "qdrant-insufficient-storage" in told:
        return ResourceError(f"{place}: the server has no room left; give it more disk or memory ({detail})")
    if "retry-after" in told:
        return RateLimitedError(f"{place}: rate limited ({detail})", float(told["retry-after"]))
    return RefusedError("payload_too_large", detail)


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
    try:
        trusted = Path(target.ca_file).read_bytes() if target.ca_file else None
    except OSError as error:
        raise ConfigError(f"qdrant.ca_file: {target.ca_file}: {error.strerror}") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted), OPTIONS)


def metadata_of(info: qdrant.CollectionInfo) -> dict[str, Any] | None:
    """What a collection was written with, from its metadata; None where nothing says so."""
    metadata: dict[str, Any] = GrpcToRest.convert_payload(info.config.metadata)
    return metadata.get("ingestor")
