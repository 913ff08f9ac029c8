"""What servers and their libraries say when something goes wrong, in our own words."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from ingestor.errors import (
    LACKS,
    ConfigError,
    IngestorError,
    ResourceError,
    SourceError,
    TransientSourceError,
    one_line,
)
from ingestor.sources.urls import shown, without_secrets

TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))
GONE = frozenset((404, 410))
DENIED = frozenset((401, 403, 407))
CHANGED = 412
NEVER = ("Certificate", "SSL", "InvalidURL", "InvalidUrl", "NonHttpUrl", "TooManyRedirects")
"""In the names of aiohttp's errors that the next request would meet, too."""
LIBRARIES = frozenset(("aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "requests"))
STATUS = {"aiohttp": "status", "azure": "status_code", "gcsfs": "code"}
"""What their errors call it."""
WITHOUT_KEY = frozenset(
    (
        *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"),
        *("DefaultCredentialsError", "ClientAuthenticationError", "CredentialUnavailableError"),
    )
)


def error_of_status(status: int, said: str = "", retry_after_s: float | None = None) -> SourceError:
    """The error that an HTTP status stands for."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    detail = f"{phrase}: {said}" if said else phrase
    if status in TRANSIENT:
        return TransientSourceError("unreachable", detail, retry_after_s)
    if status in GONE:
        return SourceError("vanished", detail)
    if status == CHANGED:
        return changed()
    if status in DENIED:
        return SourceError("unreadable", f"{detail}; are credentials missing, or expired?")
    return SourceError("unreadable", detail)


def changed() -> SourceError:
    """The object is not what was listed."""
    return SourceError("changed", "the object changed after it was listed; run again to read what it is now")


def retry_after_s(value: str | None) -> float | None:
    """What a Retry-After header asks to wait, given in seconds or as a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


@contextmanager
def library_errors(url: str) -> Iterator[None]:
    """Raise what the libraries raise as errors of ours.

    Raises:
        SourceError: transient or not.
        ConfigError: credentials are missing.
        ResourceError: too many files are open.
    """
    try:
        yield
    except (IngestorError, asyncio.CancelledError):
        raise
    except Exception as error:
        known = _in_our_words(error, url)
        if known is None:
            raise
        raise known from error


def _in_our_words(error: Exception, url: str) -> IngestorError | None:
    name, detail = type(error).__name__, _detail(error)
    if isinstance(error, OSError) and error.errno in LACKS:
        return ResourceError(f"{shown(url)}: {LACKS[error.errno]}")
    if name in WITHOUT_KEY or "connection_string or account_name" in detail:
        return ConfigError(f"source.paths: {shown(url)}: no credentials that can be used: {detail}")
    if (status := _status(error)) is not None:
        return error_of_status(status, detail)
    if isinstance(error, FileNotFoundError):
        return SourceError("vanished", "there is no such object")
    if isinstance(error, PermissionError) or "Forbidden" in detail:
        return error_of_status(403, detail)
    if any(part in name for part in NEVER):
        return SourceError("unreadable", detail)
    if isinstance(error, TimeoutError | OSError) or _library(error) in LIBRARIES:
        return TransientSourceError("unreachable", detail)
    return None


def _status(error: Exception) -> int | None:
    """The HTTP status within an error of one of the libraries."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict) and "ResponseMetadata" in response:  # Amazon's
            return int(response["ResponseMetadata"].get("HTTPStatusCode", 0)) or None
        status = getattr(each, STATUS.get(_library(each), ""), None)
        if isinstance(status, int | str) and str(status).isdigit():
            return int(status)
    return None


def _library(error: BaseException | None) -> str:
    return type(error).__module__.partition(".")[0]


def _detail(error: Exception) -> str:
    """One line, without secrets."""
    if type(error).__name__ == "ClientPayloadError":
        return "the connection broke off"
    return without_secrets(one_line(error))
