"""Wikitext to prose: templates, tables, references, files and categories go, every paragraph stays.

What spans lines is removed by one pass over balanced marks, in linear time, so that a template that is never
closed costs its two braces and no more. Simple markup goes by pattern; a paragraph that still holds some is
left to mwparserfromhell, whose time may grow with the square of what it is given.
"""

from __future__ import annotations

import html
import re
from bisect import bisect

import mwparserfromhell

DROPPED = "ref|references|math|chem|gallery|timeline|imagemap|score|graph|mapframe|templatestyles"
VERBATIM = "nowiki|pre|source|syntaxhighlight"
TAG = re.compile(rf"<!--|<(?:({DROPPED})|({VERBATIM}))\b([^<>]*)>", re.IGNORECASE)
KEPT = re.compile("\ue000([0-9]+)\ue001")
MARK = re.compile(r"\{{2,}|\}{2,}|\[\[|\]\]|^[ \t:*#]*\{\||^[ \t]*\|\}(?!\})", re.MULTILINE)
DROPPED_LINK = re.compile(
    r"\[\[\s*(?:(?:file|image|media|category|datei|bild|kategorie|fichier|catégorie|archivo|imagen|categoría|ficheiro|"
    r"categoria|immagine|bestand|categorie|plik|kategoria|файл|категория)\s*:|[a-z]{2,3}(?:-[a-z]+)*:[^|\[\]]*\]\])",
    re.IGNORECASE,
)
SIMPLE = (
    (re.compile(r"</?p\b[^<>]*>|<br\b[^<>]*>|<hr\b[^<>]*>", re.IGNORECASE), "\n"),
    (re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>", re.IGNORECASE), ""),
    (re.compile(r"'{2,5}"), ""),
    (re.compile(r"\[\[:?(?:[^\[\]|{}<>\n]*\|)?([^\[\]|{}<>\n]*)\]\]"), r"\1"),
    (re.compile(r"\[(?:[a-z]{3,6}:)?//[^\s\[\]<>]++[ \t]*+([^\[\]\n]*+)\]", re.IGNORECASE), r"\1"),
    (re.compile(r"__[A-Z]+__"), ""),
)
GAPS = (
    (re.compile(r"\((?:[ \t\xa0]|&nbsp;|[;,])*+\)"), ""),
    (re.compile(r"[ \t]{2,}"), " "),
    (re.compile(r" ([.,])(?=\s|$)", re.MULTILINE), r"\1"),
)
"""What templates leave behind in a sentence."""
RESIDUE = re.compile(r"\[\[|\]\]")
SECTION = re.compile(r"^==", re.MULTILINE)
LINE_START = re.compile(r"(?:[*#:;]+|-{4,}|\|[-+]?)[ \t]*")
PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")
MOST_MARKS = 200
"""Marks in one paragraph up to which the full parser is asked."""


def prose(text: str) -> str:
    """Make prose of a page's wikitext; captions, quotation templates and table cells are not kept."""
    kept: list[str] = []
    text = _without_tags(text.replace("\ue000", "").replace("\ue001", ""), kept)
    text = _without_blocks(text)
    for pattern, put in SIMPLE + GAPS:
        text = pattern.sub(put, text)
    paragraphs = (_plain(paragraph) for paragraph in PARAGRAPHS.split(text))
    text = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
    return KEPT.sub(lambda mark: html.unescape(kept[int(mark[1])]), text)


def _without_tags(text: str, kept: list[str]) -> str:
    """Drop comments, references and the like; move what stands verbatim to `kept`, a mark in its place."""
    lowered = text.lower() if len(text.lower()) == len(text) else text
    parts, at, never = [], 0, set()
    while tag := TAG.search(text, at):
        parts.append(text[at : tag.start()])
        at = tag.end()
        if (tag[3] or "").endswith("/"):
            continue
        close = "-->" if tag[0] == "<!--" else f"</{(tag[1] or tag[2]).lower()}"
        end = -1 if close in never else lowered.find(close, at)
        if end < 0:
            never.add(close)  # so the rest is searched once, however many are left open
            continue
        if tag[2]:
            parts.append(f"\ue000{len(kept)}\ue001")
            kept.append(text[at:end])
        at = end + len(close)
        if tag[0] != "<!--":
            at = text.find(">", end) + 1 or len(text)
    return "".join([*parts, text[at:]])


def _without_blocks(text: str) -> str:
    """Drop balanced templates, tables, files and categories, and marks that have no partner."""
    blocks = _Blocks(text)
    for mark in MARK.finditer(text):
        start, end = mark.span()
        if "|" in mark[0]:
            (blocks.open if mark[0].endswith("{|") else blocks.close)("|", start, end)
        elif mark[0][0] in "[]":
            (blocks.open if mark[0][0] == "[" else blocks.close)("[", start, end)
        else:  # a run of braces counts in pairs from its inner side; an odd one goes with the pair beside it
            opens = mark[0][0] == "{"
            for pair in range(start, end - 1, 2):
                stop = end if pair + 3 >= end else pair + 2
                (blocks.open if opens else blocks.close)("{", pair, stop)
    return blocks.rest()


class _Blocks:
    """What is to be cut out of a text, found while its marks open and close."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sections = [section.start() for section in SECTION.finditer(text)]
        self._cuts: list[tuple[int, int]] = []
        self._opened: list[tuple[str, int, int]] = []  # kind, start, end: marks that wait for their partner
        self._waiting = {"{": 0, "|": 0, "[": 0}

    def open(self, kind: str, start: int, end: int) -> None:
        self._opened.append((kind, start, end))
        self._waiting[kind] += 1

    def close(self, kind: str, start: int, end: int) -> None:
        """Match a mark with the nearest open one of its kind; those opened since have no partner."""
        if not self._waiting[kind]:
            self._cuts.append((start, end))
            return
        found = None
        while found != kind:
            found, first, inner = self._opened.pop()
            self._waiting[found] -= 1
            if found != kind:
                self._cuts.append((first, inner))
        if kind == "[" and not DROPPED_LINK.match(self._text, first):
            return
        if kind == "{" and bisect(self._sections, start) > bisect(self._sections, inner):
            # no template holds a section: one of the two marks is a stray
            self._cuts += [(first, inner), (start, end)]
        else:
            self._cuts.append((first, end))

    def rest(self) -> str:
        """The text without what is cut out."""
        self._cuts += [(start, end) for _, start, end in self._opened]
        parts, at = [], 0
        for start, end in sorted(self._cuts):
            if end > at:
                parts.append(self._text[at : max(at, start)])
                at = end
        return "".join([*parts, self._text[at:]])


def _plain(paragraph: str) -> str:
    if RESIDUE.search(paragraph) and sum(map(paragraph.count, "[{<")) <= MOST_MARKS:
        paragraph = str(mwparserfromhell.parse(paragraph).strip_code(normalize=False, collapse=False))
    lines = []
    for line in paragraph.split("\n"):
        line = line.strip()
        if line.startswith("="):
            line = line.strip("= \t")
        elif start := LINE_START.match(line):
            line = line[start.end() :]
        if line:
            lines.append(html.unescape(line))
    return "\n".join(lines)
