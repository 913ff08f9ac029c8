"""Errors that a server's answers stand for; see the table of codes in the server's own sources."""

from __future__ import annotations

import re
from typing import Any

import grpc

from ingestor.errors import ConfigError, SinkError, TransientSinkError
from ingestor.sink import TOO_LARGE, RefusedError, Target
from ingestor.sink.patience import FullError, RateLimitedError, ServiceError

Code = grpc.StatusCode
TRANSIENT = (Code.DEADLINE_EXCEEDED, Code.FAILED_PRECONDITION, Code.ABORTED, Code.CANCELLED, Code.UNKNOWN)
OTHER_VECTORS = re.compile("expected dim|vector name", re.IGNORECASE)
"""Is said where the collection has other vectors than the run, and no point of it will ever do."""
TOO_MANY = re.compile(r'Limit exceeded \d+ > \d+ for "upsert limit"')
"""Strict mode's `upsert_max_batchsize`: fewer points at a time will do."""
NO_ROOM = re.compile("no space left|out of (memory|disk)", re.IGNORECASE)
OF_A_CLUSTER = re.compile(
    "please retry|active replica|attempts were rejected|operation cancelled|tonic (status|transport) error",
    re.IGNORECASE,
)
"""Is said, as failures inside, where another node of a cluster is away, which a restart takes minutes for."""


class AlreadyThereError(SinkError):
    """A collection of that name was made meanwhile, perhaps by the call whose answer was lost."""


def error_of(error: grpc.RpcError, target: Target, *, age_s: float = 0.0) -> Exception:
    """Our error for one of gRPC's, which came so many seconds ago."""
    code, detail = error.code(), str(error.details())
    place = f"{target.url} (gRPC port {target.grpc_port})"
    if code is Code.UNAUTHENTICATED:
        return ConfigError(f"{place}: the server refuses the API key; set QDRANT_API_KEY ({detail})")
    if code is Code.PERMISSION_DENIED:
        return ConfigError(
            f"{place}: the API key does not permit this, or no longer; set QDRANT_API_KEY to one that does"
            f" ({detail})"
        )
    if code is Code.UNAVAILABLE:
        return _unavailable(detail, place)
    if code is Code.UNIMPLEMENTED:
        return ConfigError(
            f"{place}: what answers there is no Qdrant server ({detail}); see qdrant.grpc_port"
        )
    if code is Code.ALREADY_EXISTS:
        return AlreadyThereError(f"{target}: {detail}")
    if code is Code.NOT_FOUND:
        return SinkError(
            f"{target}: it is not there any more ({detail}); see who removed it, then --recreate"
        )
    if code is Code.INVALID_ARGUMENT:
        return _invalid(detail, target)
    if code is Code.RESOURCE_EXHAUSTED:
        return _exhausted(error, detail, place, age_s)
    if code is Code.INTERNAL:
        if NO_ROOM.search(detail):
            return _full(place, detail)
        if OF_A_CLUSTER.search(detail):
            return TransientSinkError(f"{target}: a part of the cluster is not there: {detail}")
        return ServiceError(f"{target}: the server failed inside: {detail}")
    if "status: 413" in detail:  # what a proxy says of a large request is no answer that gRPC knows
        return RefusedError(TOO_LARGE, detail)
    if code in TRANSIENT:
        return TransientSinkError(f"{target}: {code.name.lower()}: {detail}")
    return SinkError(f"{target}: {code.name.lower()}: {detail}")


def _unavailable(detail: str, place: str) -> Exception:
    if "Failed parsing HTTP/2" in detail or "http1" in detail.lower():
        return ConfigError(f"{place}: that port does not speak gRPC; set qdrant.grpc_port (6334 as a rule)")
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return ConfigError(f"{place}: its certificate is not trusted; set qdrant.ca_file")
    if "Hostname Verification" in detail:
        return ConfigError(f"{place}: its certificate is for other names; write qdrant.url with one of those")
    if "handshake failed" in detail.lower():
        return ConfigError(
            f"{place}: no TLS there; write the url with http:// instead of https://, or set TLS up"
        )
    tls = "" if place.startswith("https") else ", or does it want https://"
    return TransientSinkError(
        f"{place}: no Qdrant server can be reached; is it running, is qdrant.grpc_port right{tls}? ({detail})"
    )


def _invalid(detail: str, target: Target) -> Exception:
    if OTHER_VECTORS.search(detail):
        return SinkError(f"{target}: its vectors are not the run's any more ({detail}); see who made it anew")
    return RefusedError(TOO_LARGE if TOO_MANY.search(detail) else "refused", detail)


def _exhausted(error: grpc.RpcError, detail: str, place: str, age_s: float) -> Exception:
    """A rate limit, a full disk, or a request too large: only the metadata tells."""
    metadata: Any = error.trailing_metadata() or ()
    headers = {str(key): value for key, value in metadata}
    if "qdrant-insufficient-storage" in headers:
        return _full(place, detail)
    if "retry-after" in headers:
        retry_after_s = max(0.0, _seconds(headers["retry-after"]) - age_s)
        return RateLimitedError(f"{place}: the server limits the rate of writing ({detail})", retry_after_s)
    return RefusedError(TOO_LARGE, detail)


def _seconds(value: Any) -> float:
    """A number of seconds; one where a proxy has put something else."""
    try:
        return float(value)
    except ValueError:
        return 1.0


def _full(place: str, detail: str) -> FullError:
    return FullError(f"{place}: the server has no room left; give it more disk or memory ({detail})")
