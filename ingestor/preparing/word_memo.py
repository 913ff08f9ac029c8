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

from ingestor.records import Int32s, Int64s

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
        self._widths = _widths(library)
        self._ids = _Memory(self._piece_ids)
        self._spans = _Memory(self._piece_spans)

    def covers(self, text: str) -> bool:
        return not _NO_BLANK_TO_ALL.search(text)

    def ids(self, text: str) -> Int32s:
        """int32[n], without special tokens."""
        return np.frombuffer(b"".join(map(self._ids.__getitem__, text.split())), np.int32)

    def tokens(self, text: str) -> tuple[Int32s, Int32s, Int32s]:
        """int32[n] each: ids, and where the tokens start and end, in characters.

        A plain piece's tokens lie side by side, each as wide as it is written; for other pieces, and for
        unknown words, the library is asked.
        """
        pieces = text.split()
        packed = list(map(self._ids.__getitem__, pieces))
        ids = np.frombuffer(b"".join(packed), np.int32)
        firsts = _sums(np.fromiter(map(len, packed), np.int64, len(packed)) // ids.itemsize)
        ends = _sums(self._widths[ids])
        starts = _piece_starts(text)
        shift = np.repeat(starts - ends[firsts[:-1]], np.diff(firsts))
        spans = np.stack([ends[:-1] + shift, ends[1:] + shift]).astype(np.int32)
        plain = np.diff(ends[firsts]) == np.fromiter(map(len, pieces), np.int64, len(pieces))
        if not text.isascii():
            plain &= np.fromiter(map(str.isascii, pieces), np.bool_, len(pieces))
        for i in np.flatnonzero(~plain).tolist():
            found = np.frombuffer(self._spans[pieces[i]], np.int32).reshape(-1, 2)
            spans[:, firsts[i] : firsts[i + 1]] = found.T + starts[i]
        return ids, spans[0], spans[1]

    def _piece_ids(self, piece: str) -> bytes:
        if not _PLAIN.fullmatch(piece):
            return np.array(self._library.encode(piece, add_special_tokens=False).ids, np.int32).tobytes()
        words = _PLAIN_WORD.findall(piece)
        if len(words) > 1:
            return b"".join(map(self._ids.__getitem__, words))
        tokens = self._tokenize(piece.lower() if self._lower else piece)
        return np.array([token.id for token in tokens], np.int32).tobytes()

    def _piece_spans(self, piece: str) -> bytes:
        return np.array(self._library.encode(piece, add_special_tokens=False).offsets, np.int32).tobytes()


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


def _widths(library: Library) -> Int64s:
    """int64, for each token id, the characters of plain text that it stands for; 0 for the unknown token."""
    model = library.model
    prefix, unknown = model.continuing_subword_prefix, model.unk_token
    vocabulary = library.get_vocab(with_added_tokens=False)
    widths = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for token, number in vocabulary.items():
        widths[number] = 0 if token == unknown else len(token.removeprefix(prefix))
    return widths


def _sums(numbers: Int64s) -> Int64s:
    """int64[n + 1]: the sums of all before each number, and of all."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=sums[1:])
    return sums


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
