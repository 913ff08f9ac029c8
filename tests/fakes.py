"""Small stand-ins that tests of several modules share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def stream(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield `items` one by one, as a channel would."""
    for item in items:
        yield item
