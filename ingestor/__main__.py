"""`python -m ingestor`: leaves without a word on a signal that comes before all is imported."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    usual = signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)  # also later, where a command does not ask for it
    from ingestor import cli

    signal.signal(signal.SIGINT, usual)
    cli.main()


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
