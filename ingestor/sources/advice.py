"""What to set, where records are refused for fields that they do not have."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from ingestor.records import RawBlock

OF_FIELDS = {"missing_text", "text_not_string", "empty_text", "bad_id"}
"""What is refused so where the settings name fields that are not there."""
FIELDS_NAMED = 12


def on_fields(kinds: Iterable[str], first: RawBlock | None) -> str:
    """Which settings to look at.

    Args:
        kinds: of the refusals.
        first: of the blocks that were read.
    """
    names = field_names(first)
    if OF_FIELDS.isdisjoint(kinds) or not names:
        return "see source.format, source.text_field and source.id_field"
    return f"set source.text_field and source.id_field (there are: {', '.join(names[:FIELDS_NAMED])})"


def field_names(block: RawBlock | None) -> list[str]:
    """The fields of a block's first record, where a line is an object."""
    if block is None or block.format != "jsonl":
        return []
    try:
        record = orjson.loads(block.data.split(b"\n", 1)[0])
    except orjson.JSONDecodeError:
        return []
    return [str(name) for name in record] if isinstance(record, dict) else []
