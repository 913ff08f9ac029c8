"""Opens files that may be no files any more."""

from __future__ import annotations

import os
import stat

from ingestor.errors import SourceError


def open_regular(path: str, flags: int) -> int:
    """Open a file that was a regular one when it was listed; a pipe in its place must not hold us up.

    Raises:
        SourceError: not_a_file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError("not_a_file", "no regular file any more")
    return descriptor
