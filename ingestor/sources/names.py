"""Names that say that a file is none of the user's."""

from __future__ import annotations

PASSED_OVER = (".tmp", ".crc", ".part", ".partial", ".crdownload", "~")
MARKER_FILES = frozenset({"_SUCCESS", "_STARTED", "_COMMITTED"})


def is_passed_over(name: str) -> bool:
    """Whether a file or folder of that name is hidden, a marker, a checksum, or half written."""
    return name.startswith(".") or name in MARKER_FILES or name.lower().endswith(PASSED_OVER)
