"""URLs of shards: which are read, and what of them may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ingestor.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a kind of URL is read.

    Attributes:
        protocol: as fsspec calls it; several schemes are one protocol.
        package: what has to be installed.
        extra: brings the package.
        magic: what makes a URL a pattern.
    """

    protocol: str
    package: str
    extra: str
    magic: str = "*?["


HTTP = Scheme("http", "aiohttp", "http", magic="*")  # a question mark begins the query
S3 = Scheme("s3", "s3fs", "s3")
GOOGLE = Scheme("gs", "gcsfs", "gcs")
AZURE = Scheme("az", "adlfs", "azure")
SCHEMES = {
    **dict.fromkeys(("http", "https"), HTTP),
    **dict.fromkeys(("s3", "s3a"), S3),
    **dict.fromkeys(("gs", "gcs"), GOOGLE),
    **dict.fromkeys(("az", "abfs", "abfss"), AZURE),
}
SHOWN_PARAMETERS = frozenset(
    (
        *("config", "dataset", "date", "day", "download", "file", "filename", "format", "generation", "id"),
        *("lang", "language", "limit", "month", "name", "offset", "page", "part", "path", "ref", "revision"),
        *("shard", "split", "table", "version", "versionid", "year"),
    )
)
"""Of a query what may tell objects apart; anything else may be a secret."""

_USER = re.compile(r"(\w+://)[^/?#\s]*@")  # a password may have an @ in it, too
_QUERY = re.compile(r"""(\w+://[^\s?"']*)\?[^\s"']*""")


def is_url(path: str) -> bool:
    """Whether a path is none of the file system's."""
    return "://" in path


def scheme_of(url: str) -> Scheme:
    """How a URL is read.

    Raises:
        ConfigError: it cannot be, or it holds what belongs elsewhere.
    """
    name, _, rest = url.partition("://")
    scheme = SCHEMES.get(name.lower())
    if scheme is None:
        known = ", ".join(f"{each}://" for each in ("https", "http", "s3", "gs", "az"))
        raise ConfigError(f"source.paths: {shown(url)}: cannot be read; known are files and {known}")
    if scheme is HTTP and not _has_host(url):
        raise ConfigError(
            f"source.paths: {without_secrets(url)}: no URL; mend its host or port (in user and password"
            " write special characters as %40 and the like)"
        )
    if scheme is not HTTP and "@" in rest.partition("/")[0]:
        raise ConfigError(
            f"source.paths: {shown(url)}: a bucket or container comes first, and keys and accounts are set by"
            " the environment (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_NAME, ...)"
        )
    return scheme


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0  # which refuses what is no port
    except ValueError:
        return False


def canonical(url: str) -> str:
    """A URL under the one name that its scheme goes by here.

    Raises:
        ConfigError: see `scheme_of`.
    """
    scheme = scheme_of(url)
    return url if scheme is HTTP else f"{scheme.protocol}://{url.partition('://')[2]}"


def shown(url: str) -> str:
    """A URL without its secrets, as names and messages have it: no user and password, no signature."""
    scheme, _, rest = url.partition("://")
    if SCHEMES.get(scheme.lower()) is not HTTP:
        return without_secrets(url) if "=" in rest.partition("?")[2] else _USER.sub(r"\1", url)
    parts = urlsplit(url)
    pairs = parts.query.split("&")
    query = "&".join(pair for pair in pairs if pair.partition("=")[0].lower() in SHOWN_PARAMETERS)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def without_secrets(text: str) -> str:
    """A message without what may be a secret in the URLs that it names."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


def has_magic(url: str) -> bool:
    """Whether a URL may be a pattern."""
    return any(character in url.partition("://")[2] for character in scheme_of(url).magic)


def fixed_part(url: str) -> str:
    """What comes before a pattern's first variable part, with its last slash; all of another URL."""
    scheme = scheme_of(url)
    places = [
        at for at in (url.find(character, url.index("://") + 3) for character in scheme.magic) if at > 0
    ]
    return url[: url.rindex("/", 0, min(places)) + 1] if places else url
