"""Remembers the tokens of what was met before, for BERT's tokenizers: most of a text was.

Such a tokenizer takes what lies between blanks by itself, so a text's tokens are those of its pieces, in
order. A piece not met before goes to the library, by words where it is plain ASCII, whose words are evident.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ingestor.records import Int32s

if TYPE_CHECKING:
    from tokenizers import Token
    from tokenizers import Tokenizer as Library

MAX_PIECES = 1 << 17
"""That are remembered: about 25 MB. Then all are forgotten, and what is frequent is soon met again."""
MAX_PIECE_CHARS = 64
"""Of a piece that is remembered; longer ones hardly come again."""

_BLANK = np.array([chr(code).isspace() for code in range(0x3002)])
"""bool[n], for each character up to the last blank, U+3000, and one more."""
_PLAIN = re.compile(rf"[!-~]{{1,{MAX_PIECE_CHARS}}}")
_PLAIN_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@[-`{-~]")
_NO_BLANK_TO_ALL = re.compile(r"[\x0b\x0c\x1c-\x1f\x85]")
"""Blanks to Python, but control characters to a tokenizer, which may drop them and join what they part."""
_BY_CHARACTER = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
"""Normalizers that never look beyond a blank."""


class WordMemo:
    """The tokens of texts that it `covers`, from a memory of their pieces."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._tokenize: Callable[[str], list[Token]] = library.model.tokenize
        normalizer = library.normalizer
        self._lower = normalizer is not None and normalizer.normalize_str("A") == "a"
        self._ids = _Memory(self._piece_ids)
        self._spans = _Memory(self._piece_spans)

    def covers(self, text: str) -> bool:
        return not _NO_BLANK_TO_ALL.search(text)

    def ids(self, text: str) -> Int32s:
        """int32[n], without special tokens."""
        return np.frombuffer(b"".join(map(self._ids.__getitem__, text.split())), np.int32)

    def spans(self, text: str) -> npt.NDArray[np.int32]:
        """int32[n, 2], where each token starts and ends, in characters."""
        spans = list(map(self._spans.__getitem__, text.split()))
        counts = np.fromiter(map(len, spans), np.intp, len(spans)) // 8
        in_piece = np.frombuffer(b"".join(spans), np.int32).reshape(-1, 2)
        return in_piece + np.repeat(_piece_starts(text), counts)[:, None]

    def _piece_ids(self, piece: str) -> bytes:
        if not _PLAIN.fullmatch(piece):
            return np.array(self._library.encode(piece, add_special_tokens=False).ids, np.int32).tobytes()
        words = _PLAIN_WORD.findall(piece)
        if len(words) > 1:
            return b"".join(map(self._ids.__getitem__, words))
        return np.array([token.id for token in self._word_tokens(piece)], np.int32).tobytes()

    def _piece_spans(self, piece: str) -> bytes:
        if not _PLAIN.fullmatch(piece):
            offsets = self._library.encode(piece, add_special_tokens=False).offsets
            return np.array(offsets, np.int32).tobytes()
        spans: list[int] = []
        for match in _PLAIN_WORD.finditer(piece):
            word = match.start()
            for token in self._word_tokens(match[0]):
                start, end = token.offsets
                spans += (word + start, word + end)
        return np.array(spans, np.int32).tobytes()

    def _word_tokens(self, word: str) -> list[Token]:
        return self._tokenize(word.lower() if self._lower else word)


class _Memory(dict[str, bytes]):
    """What `make` makes of a piece, as an array's bytes: joining them is the fastest way to an array."""

    def __init__(self, make: Callable[[str], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, piece: str) -> bytes:
        made = self._make(piece)
        if len(piece) <= MAX_PIECE_CHARS:
            if len(self) >= MAX_PIECES:
                self.clear()
            self[piece] = made
        return made


def _piece_starts(text: str) -> Int32s:
    """Where the pieces of `text.split()` start."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    blank = _BLANK[np.minimum(codes, len(_BLANK) - 1)]
    starts = ~blank
    starts[1:] &= blank[:-1]
    return np.flatnonzero(starts).astype(np.int32)


def word_memo(library: Library) -> WordMemo | None:
    """A memo for the library's tokenizer; None where tokens may depend on what lies beyond a blank."""
    from tokenizers import models, pre_tokenizers

    added = library.get_added_tokens_decoder().values()
    by_piece = (
        isinstance(library.model, models.WordPiece)
        and isinstance(library.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and library.encode_special_tokens
        and all(token.special for token in added)
        and _kinds(library.normalizer) <= _BY_CHARACTER
    )
    return WordMemo(library) if by_piece else None


def _kinds(normalizer: object) -> set[str]:
    """The types of a normalizer's parts."""
    if normalizer is None:
        return set()
    state = json.loads(normalizer.__getstate__())  # type: ignore[arg-type]
    return {part["type"] for part in state.get("normalizers", [state])}
