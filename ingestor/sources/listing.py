"""Paths to shards: files, folders, patterns; URLs are looked for in `remote_listing`."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ingestor.errors import LACKS, ConfigError, ResourceError, full_reason
from ingestor.records import Shard
from ingestor.sources.names import is_passed_over
from ingestor.sources.remote import Remote
from ingestor.sources.remote_listing import list_urls
from ingestor.sources.urls import is_url, shown


@dataclass(frozen=True, slots=True)
class Listing:
    """What the paths hold.

    Attributes:
        shards: sorted by name, each real file once.
        warnings: (shard name, kind, detail) of what was met and is no shard.
    """

    shards: list[Shard]
    warnings: list[tuple[str, str, str]]

    @property
    def errors(self) -> list[tuple[str, str, str]]:
        """Those of them that stand for folders that could not be looked into, and may hold shards."""
        return [warning for warning in self.warnings if warning[1] == "unreadable"]


def list_shards(paths: Sequence[str], root: str | None = None, remote: Remote | None = None) -> Listing:
    """Find the shards that `paths` name; nothing is read.

    Args:
        paths: files, folders (walked), patterns and URLs; what exists is no pattern, whatever its name.
        root: what names of files are relative to; None: the common folder of the fixed parts of `paths`.
        remote: the way to URLs; None where `paths` holds none.

    Raises:
        ConfigError: a path that is no pattern does not exist; a URL cannot be read.
        StoppedError: the search was called off.
    """
    listing = _list_files([path for path in paths if not is_url(path)], root)
    if urls := [path for path in paths if is_url(path)]:
        assert remote is not None
        shards, warnings = remote.wait(list_urls(urls, remote))
        listing = Listing(listing.shards + shards, listing.warnings + warnings)
    return Listing(sorted(listing.shards, key=lambda shard: shard.name), listing.warnings)


def no_shards(paths: Sequence[str], listing: Listing) -> ConfigError:
    """Says that there is nothing to read, and what was met instead."""
    named = ", ".join(shown(path) if is_url(path) else path for path in paths)
    met = "".join(f"; {name}: {detail}" for name, kind, detail in listing.warnings if kind != "no_match")
    advice = "put some there, or mend the "
    advice += "address" if all(map(is_url, paths)) else f"pattern (relative ones start at {os.getcwd()})"
    return ConfigError(f"source.paths: no shard matches {named}{met}; {advice}")


def _list_files(paths: Sequence[str], root: str | None) -> Listing:
    found, unmatched = _Found(), list[tuple[str, str, str]]()
    for path in paths:
        if os.path.exists(path):
            found.take(path, passed_over=False)
        elif not glob.has_magic(path):
            raise ConfigError(
                f"source.paths: {path!r} does not exist; relative paths start at {os.getcwd()}, and a pattern"
                " has a *"
            )
        else:
            matches = sorted(glob.glob(path, recursive=True))
            for match in matches:
                found.take(match, passed_over=True)
            if not matches:
                unmatched.append((path, "no_match", "nothing matches this pattern"))
    base = os.path.abspath(root) if root is not None else _common(paths)
    names = {
        path: shard_name(path, base) for path in (*found.files.values(), *(path for path, _, _ in found.odd))
    }
    shards = [
        Shard(0, names[path], path, found.stats[key].st_size, fingerprint_of(found.stats[key]))
        for key, path in found.files.items()
    ]
    warnings = {(names[path], kind, detail) for path, kind, detail in found.odd}
    return Listing(shards, sorted(warnings) + unmatched)


def fingerprint_of(status: os.stat_result) -> str:
    """A text that changes when the file does."""
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"


def shard_name(path: str, base: str) -> str:
    """Name a file relative to a folder, as valid text.

    A name on disk that is no UTF-8 is spelt with escapes behind `./`, which no other name begins
    with: different files have different names.
    """
    name = os.path.relpath(path, base)
    try:
        name.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(name).replace(b"\\", b"\\\\")
        return "./" + raw.decode("utf-8", "backslashreplace")
    return name


@dataclass(slots=True)
class _Found:
    """Files met so far, by device and inode, and what was met besides."""

    files: dict[tuple[int, int], str] = field(default_factory=dict)
    stats: dict[tuple[int, int], os.stat_result] = field(default_factory=dict)
    odd: list[tuple[str, str, str]] = field(default_factory=list)

    def take(self, path: str, *, passed_over: bool) -> None:
        """Take one path that exists, and what is under it if it is a folder."""
        path = os.path.abspath(path)
        if os.path.isdir(path):
            for inner in self._walk(path):
                self._take_file(inner)
        elif not (passed_over and is_passed_over(os.path.basename(path))):
            self._take_file(path)

    def _take_file(self, path: str) -> None:
        try:
            status = os.stat(path)
        except OSError as error:
            _unless_lacking(error)
            kinds = {errno.ENOENT: "vanished", errno.ELOOP: "not_a_file"}
            kind = kinds.get(error.errno or 0, "unreadable")
            self.odd.append((path, kind, error.strerror or str(error)))
            return
        if not stat.S_ISREG(status.st_mode):
            self.odd.append((path, "not_a_file", "no regular file"))
            return
        key = (status.st_dev, status.st_ino)
        known = self.files.get(key)
        if known is None or _rank(path) < _rank(known):
            self.files[key], self.stats[key] = path, status

    def _walk(self, top: str) -> Iterator[str]:
        """All below `top` that is no folder; folders are entered once, and by links last."""
        folders, links, seen = [top], list[str](), set[tuple[int, int]]()
        while folders or links:
            folder = folders.pop() if folders else links.pop()
            try:
                status = os.stat(folder)
                inside = [] if (status.st_dev, status.st_ino) in seen else list(os.scandir(folder))
            except OSError as error:
                _unless_lacking(error)
                self.odd.append((folder, "unreadable", error.strerror or str(error)))
                continue
            seen.add((status.st_dev, status.st_ino))
            for entry in sorted(inside, key=lambda entry: entry.name):
                if is_passed_over(entry.name):
                    continue
                if not _is_folder(entry):
                    yield entry.path
                else:
                    (links if entry.is_symlink() else folders).append(entry.path)


def _unless_lacking(error: OSError) -> None:
    """What cannot be looked at for want of something is not odd itself.

    Raises:
        ResourceError: says what is lacking.
    """
    if error.errno in LACKS:
        raise ResourceError(full_reason(error)) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link in a loop: told when it is looked at as a file


def _rank(path: str) -> tuple[bool, str]:
    """Of several ways to one file the one without links gives it its name, then the first by name."""
    return (os.path.realpath(path) != path, path)


def _common(paths: Sequence[str]) -> str:
    """The common folder of the fixed parts of `paths`."""
    folders = [_fixed_part(path) for path in paths]
    return os.path.commonpath(folders) if folders else os.getcwd()


def _fixed_part(path: str) -> str:
    if os.path.isdir(path):
        return os.path.abspath(path)
    if os.path.exists(path):
        return os.path.dirname(os.path.abspath(path))
    while glob.has_magic(path):
        path = os.path.dirname(path)
    return os.path.abspath(path)
