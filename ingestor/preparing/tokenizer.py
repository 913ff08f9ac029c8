"""The model's own tokenizer, with where each token lies in the text; without torch and transformers."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ingestor.encoding.model import ModelSpec
from ingestor.errors import ModelError
from ingestor.preparing.word_memo import word_memo
from ingestor.records import Bools, Int32s

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's tokens, without special ones.

    Attributes:
        ids: int32[n].
        starts, ends: int32[n], in characters of the text.
        kept: bool[n], cutting the text before the token leaves the tokens on both sides unchanged.
    """

    ids: Int32s
    starts: Int32s
    ends: Int32s
    kept: Bools


class Tokenizer(Protocol):
    """Makes tokens of texts.

    Attributes:
        prefix, suffix: int32[n], the special tokens before and behind a text.
        unknown: the token for what the vocabulary does not have; -1 without one.
    """

    prefix: Int32s
    suffix: Int32s
    unknown: int

    def ids(self, texts: Sequence[str]) -> list[Int32s]:
        """int32[n] for each text, without special tokens."""

    def tokens(self, text: str) -> Tokens:
        """A text's tokens, and where each of them lies."""


class ModelTokenizer:
    """The model's own tokenizer, with padding and truncation off and control tokens in running text taken as
    plain words.
    """

    def __init__(self, spec: ModelSpec) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read at the first call: one thread in each process
        from tokenizers import Tokenizer as Library
        from tokenizers import normalizers

        self._library = Library.from_file(str(Path(spec.folder) / "tokenizer.json"))
        self._library.no_padding()
        self._library.no_truncation()
        self._library.encode_special_tokens = True
        if spec.lower_case:
            given = [self._library.normalizer] if self._library.normalizer else []
            self._library.normalizer = normalizers.Sequence([normalizers.Lowercase(), *given])
        self.prefix, self.suffix = self._template()
        self._memo = word_memo(self._library)
        self._continues = self._continuations()
        unknown = getattr(self._library.model, "unk_token", None)
        number = None if unknown is None else self._library.token_to_id(unknown)
        self.unknown = -1 if number is None else number

    def ids(self, texts: Sequence[str]) -> list[Int32s]:
        memo = self._memo
        if memo is None:
            return self._library_ids(texts)
        return [memo.ids(text) if memo.covers(text) else self._library_ids([text])[0] for text in texts]

    def tokens(self, text: str) -> Tokens:
        if self._memo is not None and self._memo.covers(text):
            ids, starts, ends = self._memo.tokens(text)
        else:
            encoding = self._library.encode(text, add_special_tokens=False)
            ids = np.array(encoding.ids, np.int32)
            starts, ends = np.array(encoding.offsets, np.int32).reshape(-1, 2).T
        kept = np.zeros(len(ids), np.bool_) if self._continues is None else ~self._continues[ids]
        return Tokens(ids, starts, ends, kept)

    def _library_ids(self, texts: Sequence[str]) -> list[Int32s]:
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in found]

    def _template(self) -> tuple[Int32s, Int32s]:
        """The special tokens before and after a text."""
        bare = self._library.encode("a", add_special_tokens=False).ids
        whole = self._library.encode("a").ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                suffix = whole[start + len(bare) :]
                return np.array(whole[:start], np.int32), np.array(suffix, np.int32)
        raise ModelError("the tokenizer's special tokens change the text between them; it cannot be chunked")

    def _continuations(self) -> Bools | None:
        """For each token id, whether it goes on a word; None where a cut can change tokens beside it."""
        from tokenizers import models, pre_tokenizers

        model = self._library.model
        if not isinstance(model, models.WordPiece) or not isinstance(
            self._library.pre_tokenizer, pre_tokenizers.BertPreTokenizer
        ):
            return None
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        continues = np.zeros(max(vocabulary.values()) + 1, np.bool_)
        prefix = model.continuing_subword_prefix
        continues[[number for token, number in vocabulary.items() if token.startswith(prefix)]] = True
        return continues


class HashTokenizer:
    """Words and signs, numbered by a hash: for the hash encoder, which has no vocabulary."""

    prefix = suffix = np.zeros(0, np.int32)
    unknown = -1

    def ids(self, texts: Sequence[str]) -> list[Int32s]:
        return [self._number(_WORD.findall(text)) for text in texts]

    def tokens(self, text: str) -> Tokens:
        spans = np.array([match.span() for match in _WORD.finditer(text)], np.int32).reshape(-1, 2)
        ids = self._number(_WORD.findall(text))
        return Tokens(ids, spans[:, 0], spans[:, 1], np.ones(len(ids), np.bool_))

    def _number(self, words: list[str]) -> Int32s:
        return np.array([zlib.crc32(word.encode()) & 0x7FFFFFFF for word in words], np.int32)


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """The tokenizer that belongs to a model.

    Raises:
        ModelError: its file is missing or broken.
    """
    if not spec.folder:
        return HashTokenizer()
    try:
        return ModelTokenizer(spec)
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"{spec.name}: cannot read {spec.folder}/tokenizer.json: {error}") from error
