"""What the first bytes of an unpacked shard say about its encoding and its format."""

from __future__ import annotations

import codecs
import re
from pathlib import PurePath

from ingestor.errors import SourceError
from ingestor.sources import jsonl, parquet

HEAD_BYTES = 4096
"""Unpacked bytes that are looked at."""

MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
UNMARKED_XML = ((b"<\0?\0", "utf-16-le"), (b"\0<\0?", "utf-16-be"))
DECLARED = re.compile(rb"""\s*<\?xml[^>]*\bencoding\s*=\s*["']([\w.:-]+)""")
EXPORT = re.compile(rb"<mediawiki[\s>]")
FOREIGN = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\xfd7zXZ\0", "an xz stream"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x04\x22\x4d\x18", "an lz4 stream"),
    (b"%PDF-", "a PDF document"),
    (b"SQLite format 3\0", "an SQLite database"),
)
SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".xml": "mediawiki",
}
PACKED_SUFFIXES = frozenset((".gz", ".bz2", ".zst", ".zstd"))


def encoding_of(head: bytes) -> tuple[str, int]:
    """The encoding, and the length of the mark that says so and is no part of the text."""
    for mark, encoding in MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    for start, encoding in UNMARKED_XML:
        if head.startswith(start):
            return encoding, 0
    declared = DECLARED.match(head)
    name = declared[1].decode().lower() if declared else "utf-8"
    if name.startswith(("utf-16", "utf-32", "ucs", "iso-10646")):
        return "utf-8", 0  # the declaration itself could not have been read
    return name, 0


def decoder_of(encoding: str) -> codecs.IncrementalDecoder | None:
    """What decodes a shard piece by piece; None for UTF-8, which is what everything reads.

    Half a pair of UTF-16 is kept as what no UTF-8 is, so that its record alone is refused.

    Raises:
        SourceError: wrong_format, for an encoding that nobody knows, or that is none of text.
    """
    try:
        codec = codecs.lookup(encoding)
        "".encode(encoding)  # which codecs that are of no text refuse: base64, rot13
    except (LookupError, UnicodeError) as error:
        raise SourceError(
            "wrong_format", f"the XML declaration names an unknown encoding: {encoding}"
        ) from error
    if codec.name in ("utf-8", "ascii"):
        return None
    return codecs.getincrementaldecoder(codec.name)(
        "surrogatepass" if codec.name.startswith("utf") else "strict"
    )


def format_of(head: bytes, name: str, asked: str) -> str:
    """The format of a shard that begins with `head`: as asked, or by its content, or else by its name.

    Raises:
        SourceError: wrong_format, naming what was seen; corrupt_input for an empty Parquet file.
    """
    if parquet.begins(head) and asked in ("auto", "parquet"):
        return "parquet"
    seen = "a Parquet file" if parquet.begins(head) else None
    seen = seen or next((what for magic, what in FOREIGN if head.startswith(magic)), None)
    if seen:
        raise SourceError("wrong_format", f"{seen}, not {'text' if asked == 'auto' else asked}")
    if asked == "mediawiki" and head.strip() and not EXPORT.search(head):
        raise SourceError("wrong_format", f"no <mediawiki> at its beginning: {_shown(head)}")
    if asked == "parquet":
        raise _no_parquet(head)
    if asked != "auto":
        return asked
    if head.lstrip().startswith(b"<") and EXPORT.search(head):
        return "mediawiki"
    return "jsonl" if _begins_with_record(head) else _by_name(head, name)


def _begins_with_record(head: bytes) -> bool:
    start = head.lstrip()
    line, end, _ = start.partition(b"\n")
    if end or len(head) < HEAD_BYTES:
        return jsonl.is_record(line)
    return bool(re.match(rb'\{\s*"', start))


def _by_name(head: bytes, name: str) -> str:
    path = PurePath(name.lower())
    if path.suffix in PACKED_SUFFIXES:
        path = path.with_suffix("")
    found = SUFFIXES.get(path.suffix)
    if found == "parquet":
        raise _no_parquet(head)
    if found == "mediawiki" and head.strip():
        raise SourceError("wrong_format", f"no <mediawiki> at its beginning: {_shown(head)}")
    if found is None and head.strip():
        raise SourceError("wrong_format", f"neither content nor name tell what it is: {_shown(head)}")
    return found or "text"


def _no_parquet(head: bytes) -> SourceError:
    if not head:
        return SourceError("corrupt_input", "an empty file has no Parquet footer")
    return SourceError("wrong_format", f"no Parquet file: it begins with {_shown(head)}")


def _shown(head: bytes) -> str:
    return repr(head[:24].decode("utf-8", "backslashreplace"))
