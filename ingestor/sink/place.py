"""Whether a folder can hold a collection of the embedded engine: its file system, and the room there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ingestor.errors import ConfigError, ResourceError

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = re.compile(
    "afs|beegfs|ceph|cifs|davfs|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|pvfs2|smb3|smbfs"
    r"|fuse\.(sshfs|s3fs|rclone|gcsfuse|goofys|blobfuse2?|juicefs|glusterfs|ceph(-fuse)?|davfs|cvmfs2)"
)
LEAST_BYTES = 128 << 20
"""Less than that is not worth beginning with: the log alone may have 100 MB."""
LITTLE_BYTES = 1 << 30


def check_place(folder: Path) -> None:
    """Refuse a folder that the engine could not keep a collection in.

    Raises:
        ConfigError: it is on a network file system.
        ResourceError: there is no room.
    """
    if kind := network_file_system(_mounts(), str(folder.resolve())):
        raise ConfigError(
            f"qdrant.path: {folder} is on a network file system ({kind}), whose locks and mapped files the"
            " embedded engine cannot rely on; use a local disk, or a Qdrant server (qdrant.url)"
        )
    if (free := free_bytes(folder)) < LEAST_BYTES:
        raise ResourceError(
            f"{folder}: {free >> 20:,} MiB are free, and the embedded engine needs {LEAST_BYTES >> 20} MiB to"
            " begin with; make room, or set qdrant.path to another disk"
        )


def little_room(folder: Path) -> str | None:
    """What to say of the room there, if it may not do; the index's building writes all points once more."""
    held, free = _size(folder), free_bytes(folder)
    if free >= max(LITTLE_BYTES, 2 * held):
        return None
    return f"{folder}: {free >> 20:,} MiB are free, the collection has {held >> 20:,} MiB"


def free_bytes(folder: Path) -> int:
    """Room on the disk of a folder that there is, or will be; much where the file system does not know."""
    absolute = folder.absolute()
    usage = shutil.disk_usage(next(place for place in (absolute, *absolute.parents) if place.exists()))
    return usage.free if usage.total else 1 << 62


def network_file_system(mounts: str, path: str) -> str | None:
    """The kind of file system that an absolute path is on, if it is one over a network.

    Args:
        mounts: what `/proc/self/mountinfo` says.
        path: without links.
    """
    best, found = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = _unescaped(fields.split(" ")[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two on the same place the later one is seen
            best, found = point, rest.split(" ")[0]
    return found if NETWORK.fullmatch(found) else None


def _unescaped(text: str) -> str:
    """Spaces and the like stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _mounts() -> str:
    """Empty on systems that do not tell."""
    try:
        return MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def _size(folder: Path) -> int:
    """Bytes on disk; the engine's files have holes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
