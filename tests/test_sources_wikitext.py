"""Wikitext to prose."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestor.sources.wikitext import prose


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''slanted''", "Bold and slanted"),
        ("a [[link]], [[page|words]], [[:Category:X]]", "a link, words, Category:X"),
        ("[[Film|with [[nested]] words]]", "with nested words"),
        ("[https://x.org words] and [https://x.org]", "words and"),
        ("a {{t|{{u|[[x]]}}\n}} b", "a b"),
        ("a{{{1|b}}}c", "ac"),
        ("one<ref>two</ref><ref name=x /> three<!-- four -->", "one three"),
        ("[[File:A.jpg|thumb|A [[caption]]]]text[[Category:X]]\n[[de:Seite]]", "text"),
        ("before\n{| class=x\n| cell {{t}}\n|}\nafter", "before\n\nafter"),
        ("== Head ==\n* one\n# two\n----\n: three", "Head\none\ntwo\nthree"),
        ("a &amp; b&nbsp;c &lt;d&gt; 1 < 2", "a & b\xa0c <d> 1 < 2"),
        ("line<br />broken <small>small</small>", "line\nbroken small"),
        ("<nowiki>{{as}} ''typed''</nowiki> <math>x^2</math>", "{{as}} ''typed''"),
        ("Fish ({{lang|x}}) swim {{here}}.", "Fish swim."),
        ("__NOTOC__text", "text"),
        ("{{only|a template}}", ""),
    ],
)
def test_markup_goes_and_words_stay(markup: str, expected: str) -> None:
    assert prose(markup) == expected


@pytest.mark.parametrize(
    "mark", ["{{", "{{{", "}}", "[[", "]]", "\n{|", "\n|}", "<ref>", "<!--", "<nowiki>", "<a "]
)
def test_a_mark_without_a_partner_swallows_nothing(mark: str) -> None:
    text = prose(
        f"First paragraph.\n\nSecond {mark} one.\n\n{{{{closed}}}}\n\nThird one.\n\n== Head ==\n\nLast.}}}}"
    )
    for words in ("First paragraph.", "Second", "one.", "Third one.", "Head", "Last."):
        assert words in text
    assert "closed" not in text


marks = [
    "{{",
    "}}",
    "{{{",
    "[[",
    "]]",
    "[[File:a|",
    "{|\n",
    "\n|}",
    "|",
    "<ref>",
    "</ref>",
    "<!--",
    "-->",
    "<a ",
    "''",
]
marks += ["<nowiki>", "</nowiki>", "\n\n", "\n==", "[//x ", "]", "(", "&amp;", " ", "\ue0000\ue001", "word"]


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.sampled_from(marks), max_size=40))
def test_any_markup_ends(parts: list[str]) -> None:
    assert isinstance(prose("".join(parts)), str)


@pytest.mark.slow
@pytest.mark.parametrize("mark", marks)
def test_time_grows_with_length_only(mark: str) -> None:
    text = mark * (300_000 // len(mark))
    start = time.perf_counter()
    prose(text)
    assert time.perf_counter() - start < 5
