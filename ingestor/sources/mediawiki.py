"""MediaWiki XML exports: a record a page.

Pages are found by bytes and parsed one by one, so that no entity can be declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from ingestor.errors import SourceError
from ingestor.records import Document, Failure, RawBlock, ShardEnd, Skipped
from ingestor.sources.cutting import Cut, Cutter, Limits, shard_end
from ingestor.sources.fields import Fields, document
from ingestor.sources.values import VISIBLE, RecordError
from ingestor.sources.wikitext import prose

__all__ = ["documents", "prose", "splitter"]

PAGE_END = b"</page>"
PAGE_START = re.compile(rb"<page[\s>]")
NAMESPACES = re.compile(rb"<namespaces>.*?</namespaces>", re.DOTALL)
DECLARATION = re.compile(rb"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
NUMBER = re.compile("[0-9]{1,18}")
REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
CANONICAL = frozenset(
    ("media", "special", "user", "project", "file", "image", "mediawiki", "template", "help", "category")
)
"""Namespaces that every wiki knows by these names, whatever its own for them."""


class Pages:
    """A `Splitter` that cuts behind pages, and puts the export's list of namespaces before each block."""

    def __init__(self, shard: str, limits: Limits, fields: Fields) -> None:
        self._cutter = Cutter(shard, PAGE_END, limits)
        self._namespaces: bytes | None = None

    def push(self, data: bytes) -> Iterator[Cut]:
        for cut in self._cutter.push(data):
            yield self._framed(cut)

    def finish(self, *, packed: bool, broken: SourceError | None) -> tuple[list[Cut], ShardEnd]:
        tail = self._cutter.tail()
        cuts = self._cutter.finish(keep_tail=False)
        try:
            framed = [self._framed(cut) for cut in cuts]
            if self._namespaces is None:
                self._head(tail)
        except SourceError as error:
            return [], shard_end(error)
        if not broken and (cuts or tail.strip()) and b"</mediawiki>" not in tail:
            broken = SourceError("truncated_input", "the export ends before its closing tag </mediawiki>")
        return framed, shard_end(broken)

    def _framed(self, cut: Cut) -> Cut:
        if self._namespaces is None:
            self._head(cut.data)
            return cut
        return replace(cut, data=self._namespaces + cut.data)

    def _head(self, data: bytes) -> None:
        page = PAGE_START.search(data)
        head = data[: page.start()] if page else data
        if found := DECLARATION.search(head):
            raise SourceError(
                "unsafe_xml", f"{found[0].decode()} at byte {found.start() + 1}: exports declare nothing"
            )
        namespaces = NAMESPACES.search(head)
        self._namespaces = namespaces[0] if namespaces else b""


splitter = Pages


@dataclass(frozen=True, slots=True)
class Revision:
    """What is kept of a page's revision; of several the one with the latest `timestamp` counts."""

    timestamp: str
    id: str
    model: str
    text: str


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """Each page of the main namespace; its id is the page's, its text the markup of its latest revision.

    A page has the fields id, title, ns, revision, timestamp and text.
    """
    place, shard = block.place, block.shard.name
    prefixes: frozenset[str] | None = None
    for data in block.data.split(PAGE_END)[:-1]:
        try:
            page = _parse(data)
            if page.find("ns") is None and prefixes is None:
                prefixes = _prefixes(block.data)
            yield _document(page, fields, shard, place, prefixes or CANONICAL)
        except RecordError as error:
            yield Failure(shard, place, error.kind, error.detail, error.document)
        place += 1


def _parse(data: bytes) -> ElementTree.Element:
    start = PAGE_START.search(data)
    if not start:
        raise RecordError("bad_row", "the end of a page without its beginning")
    try:
        return ElementTree.fromstring(data[start.start() :] + PAGE_END)
    except ElementTree.ParseError as error:
        try:
            data.decode()
        except UnicodeDecodeError as undecoded:
            byte = undecoded.start - start.start() + 1
            raise RecordError("bad_encoding", f"byte {byte} of the page is no UTF-8") from error
        raise RecordError("bad_row", f"the page is no well-formed XML: {error}") from error


def _document(
    page: ElementTree.Element, fields: Fields, shard: str, place: int, prefixes: frozenset[str]
) -> Document | Skipped:
    title = page.findtext("title", "")
    namespace = page.findtext("ns", "").strip() or ("other" if _prefix(title) in prefixes else "0")
    if namespace != "0":
        return Skipped(place, "namespace")
    revisions = sorted(map(_revision, page.iterfind("revision")), key=lambda each: each.timestamp)
    revision = revisions[-1] if revisions else None
    text = revision.text if revision else ""
    if page.find("redirect") is not None or REDIRECT.match(text):
        return Skipped(place, "redirect")
    if revision and revision.model != "wikitext":
        return Skipped(place, "model")
    if not revision or not VISIBLE.search(text):
        return Skipped(place, "empty_text")
    record = {
        "id": page.findtext("id", "").strip(),
        "title": title,
        "ns": 0,
        "text": text,
        "revision": int(revision.id) if NUMBER.fullmatch(revision.id) else None,
        "timestamp": revision.timestamp,
    }
    return document(record, _fitted(fields), shard, place, exact=True)


def _revision(element: ElementTree.Element) -> Revision:
    timestamp, number = element.findtext("timestamp", ""), element.findtext("id", "")
    return Revision(timestamp, number, element.findtext("model", "wikitext"), element.findtext("text", ""))


def _fitted(fields: Fields) -> Fields:
    """A page is known by its own id and read for its own text, whatever other formats call theirs."""
    text = tuple(path for path in fields.text if path in ("title", "text"))
    return replace(fields, text=text or ("text",), id=fields.id and "id")


def _prefix(title: str) -> str:
    return title.partition(":")[0].strip().replace("_", " ").casefold() if ":" in title else ""


def _prefixes(data: bytes) -> frozenset[str]:
    """What other namespaces' titles begin with, in an export whose pages do not say their namespace."""
    found = NAMESPACES.search(data)
    try:
        names = {element.text or "" for element in ElementTree.fromstring(found[0])} if found else set()
    except ElementTree.ParseError:  # a page that says its namespace does not need them
        names = set()
    known = (
        {name.casefold() for name in names} | CANONICAL | {f"{name} talk" for name in CANONICAL} | {"talk"}
    )
    return frozenset(known - {""})
