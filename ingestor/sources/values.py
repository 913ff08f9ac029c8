"""The values of a record: what can be stored of them, and what refuses the record."""

from __future__ import annotations

import math
import re
from typing import Any

from ingestor.errors import SourceError

MAX_DEPTH = 30
"""Levels of a payload value: each is three protobuf messages, and readers refuse more than a hundred."""

UNKEEPABLE = re.compile("[\ud800-\udfff\0]")
VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufffd]"
)
INT64 = range(-(1 << 63), 1 << 63)


class RecordError(SourceError):
    """A record is refused.

    Args:
        kind: one of the names in the report.
        detail: what was wrong.

    Attributes:
        document: its id, once that is known.
    """

    document: str | None = None


class RoundedError(Exception):
    """A number in the record lost digits in parsing: parse it again, slowly."""


class Cleaner:
    """Makes a record's values fit to be stored, and counts the characters that it had to replace.

    Args:
        exact: integers of any size are as they were written; else large ones may have become floats.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self.replaced = 0

    def text(self, text: str) -> str:
        """Put U+FFFD in the place of NUL and of surrogates without a partner."""
        if text.isascii():
            if "\0" not in text:
                return text
        elif not UNKEEPABLE.search(text):
            return text
        text, count = UNKEEPABLE.subn("\ufffd", text)
        self.replaced += count
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """Make a payload value of a parsed one.

        Raises:
            RecordError: too_deep.
            RoundedError: a large integer has become a float.
        """
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is int:
            return value if value in INT64 else str(value)
        if kind is float:
            return self.number(value)
        if kind is not dict and kind is not list:
            return value
        if depth == MAX_DEPTH:
            raise RecordError("too_deep", f"a value kept in the payload has more than {MAX_DEPTH} levels")
        if kind is list:
            return [self.value(part, depth + 1) for part in value]
        return {self.text(key): self.value(part, depth + 1) for key, part in value.items()}

    def number(self, value: float) -> float | None:
        """None for what JSON has no number for."""
        if not self._exact and abs(value) >= 2.0**63:
            raise RoundedError
        return value if math.isfinite(value) else None
