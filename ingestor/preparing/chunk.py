"""Cuts documents into chunks on token boundaries and makes the token ids of each chunk, once.

A chunk never has more tokens than the model takes, special tokens and prompt among them, nor more characters
than `max_chars`. Cuts fall between paragraphs, else sentences, else words, where the second half of a window
has such a place.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingestor.errors import ModelError
from ingestor.preparing.tokenizer import Tokenizer, Tokens
from ingestor.records import Bools, Int32s, Int64s

_RANKS = (
    (2, re.compile(r"""[.!?…]["'”’)\]]*\s+""")),  # noqa: RUF001
    (2, re.compile(r"""[。！？｡]["'”’」』）]*\s*""")),  # noqa: RUF001
    (2, re.compile(r"\n\s*")),
    (3, re.compile(r"\n[^\S\n]*\n\s*")),
)
"""What ends a sentence, a line, a paragraph. A pattern each: what begins with a set of characters is found
ten times as fast as an alternation.
"""

PART_CHARS = 1 << 16
"""Of a text that are tokenized at once: they take some hundred bytes each."""
_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")
_JOINING = re.compile("[\u200c\u200d\u1160-\u11ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document.

    Attributes:
        text: what is stored.
        ids: int32[n], its token ids, the prompt's among them, special tokens not.
    """

    text: str
    ids: Int32s


class Chunker:
    """Cuts texts into chunks of at most `max_tokens` tokens and `max_chars` characters.

    Args:
        tokenizer: the model's.
        prompt: put before each chunk, as the model was trained; not stored, but counted.
        max_tokens: special tokens and prompt included.
        overlap_tokens: at most so many tokens of a chunk are repeated in the next.
        max_chars: bound in characters, for texts that the vocabulary does not cover.
        part_chars: of a longer text a part at a time is tokenized, which changes nothing.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt: str,
        max_tokens: int,
        overlap_tokens: int,
        max_chars: int,
        part_chars: int = PART_CHARS,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._prompt_tokens = len(tokenizer.ids([prompt])[0]) if prompt else 0
        self._special = len(tokenizer.prefix) + len(tokenizer.suffix)
        self._room = max_tokens - self._special
        self._window = self._room - self._prompt_tokens
        self._overlap = overlap_tokens
        self._max_chars = max_chars
        self._part_chars = part_chars
        if self._window < 1:
            raise ModelError(f"max_tokens {max_tokens} leaves no room beside special tokens and the prompt")

    def chunks(self, texts: Sequence[str]) -> list[list[Chunk]]:
        """The chunks of each text, in order; none where nothing is left to embed. Every character that has
        tokens is in some chunk. A text that fits is stored as it is, one that is cut without the blanks
        around its pieces.
        """
        bodies = [text.strip() for text in texts]
        short = [i for i, body in enumerate(bodies) if len(body) <= self._max_chars]
        found: list[list[Chunk]] = [[] for _ in texts]
        for i, ids in zip(short, self._tokenizer.ids([self._prompt + texts[i] for i in short]), strict=True):
            if len(ids) > self._room:
                found[i] = list(self._cut(bodies[i]))
            elif self._says_something(bodies[i], ids):
                found[i] = [Chunk(texts[i], ids)]
        for i in set(range(len(texts))).difference(short):
            found[i] = list(self._cut(bodies[i]))
        return found

    def join(self, chunks: Sequence[Chunk]) -> tuple[Int32s, Int64s]:
        """What the model takes, special tokens among it: tokens int32[T] of all chunks back to back, and
        offsets int64[n + 1].
        """
        prefix, suffix = self._tokenizer.prefix, self._tokenizer.suffix
        parts = [part for chunk in chunks for part in (prefix, chunk.ids, suffix)]
        ends = np.cumsum([0, *map(len, parts)])[::3]
        return np.concatenate([prefix[:0], *parts]), ends

    def mostly_unknown(self, tokens: Int32s, offsets: Int64s) -> Bools:
        """bool[n], for joined chunks: over half of the tokens between the special ones stand for what the
        model's vocabulary does not have.
        """
        before = np.concatenate([[0], np.cumsum(tokens == self._tokenizer.unknown)])
        unknown = np.diff(before[offsets])
        return 2 * unknown > np.diff(offsets) - self._special

    def _cut(self, text: str) -> Iterator[Chunk]:
        """Windows over a text that is longer than one; of a very long one a part at a time is tokenized."""
        begin, first, size = 0, 0, self._part_chars
        while begin + size < len(text):
            part = text[begin : begin + size]
            tokens = self._tokenizer.tokens(part)
            sound = np.flatnonzero(tokens.kept)[-1:]  # what is behind it may go on beyond the part
            if not len(sound):
                break
            reached = yield from self._windows(part, tokens, first, int(sound[0]))
            if reached == first:
                size *= 2
                continue
            again = _fresh_start(part, tokens, reached)
            begin, first, size = begin + int(tokens.starts[again]), reached - again, self._part_chars
        part = text[begin:]
        tokens = self._tokenizer.tokens(part)
        yield from self._windows(part, tokens, first, len(tokens.ids) + self._window)

    def _windows(self, text: str, tokens: Tokens, first: int, sound: int) -> Generator[Chunk, None, int]:
        """Windows from token `first` on, as long as none can reach beyond token `sound`.

        Returns:
            Where the next window begins.
        """
        total = len(tokens.ids)
        rank = _ranks(text, tokens)
        while first < total and first + self._window <= sound:
            start = int(tokens.starts[first]) if first else 0
            last = self._last(tokens, rank, first, start)
            end = int(tokens.starts[last]) if last < total else len(text)
            piece = text[start:end].strip()
            if len(piece) > self._max_chars:
                yield from self._pieces(piece)
                first = last
                continue
            if not piece:
                pass  # a vocabulary with tokens for blanks
            elif (chunk := self._fit(piece, tokens, first, last)) is not None:
                yield chunk
            else:  # cut here, the text has more tokens than it had as part of the whole
                last, chunk = self._shrink(text, tokens, start, first, last)
                yield chunk
            if last == total:
                return total
            first = self._next(rank, first, last)
        return first

    def _last(self, tokens: Tokens, rank: npt.NDArray[np.int8], first: int, start: int) -> int:
        """Where the window that begins at token `first` ends (exclusive): the best cut in its second half."""
        total = len(tokens.ids)
        most = min(first + self._window, total)
        most = int(np.searchsorted(tokens.ends[first:most], start + self._max_chars, "right")) + first
        most = max(most, first + 1)
        if most == total:
            return total
        least = first + (most - first) // 2 + 1
        ranks = rank[least : most + 1]
        return most if not len(ranks) else most - int(np.argmax(ranks[::-1]))

    def _fit(self, text: str, tokens: Tokens, first: int, last: int) -> Chunk | None:
        """The chunk of tokens `first:last`, or None where, tokenized by itself, it does not fit."""
        total = len(tokens.ids)
        whole = (not first or tokens.kept[first]) and (last == total or tokens.kept[last])
        if whole and not self._prompt:
            return Chunk(text, tokens.ids[first:last])
        ids = self._tokenizer.ids([self._prompt + text])[0]
        return Chunk(text, ids) if len(ids) <= self._room else None

    def _shrink(self, text: str, tokens: Tokens, start: int, first: int, last: int) -> tuple[int, Chunk]:
        while last > first + 1:
            last -= max(1, (last - first) // 16)
            chunk = self._fit(text[start : int(tokens.starts[last])].strip(), tokens, first, last)
            if chunk is not None:
                return last, chunk
        piece = text[start : int(tokens.ends[first])]
        ids = self._tokenizer.ids([self._prompt + piece])[0][: self._room]
        return last, Chunk(piece, ids)

    def _pieces(self, text: str) -> Iterator[Chunk]:
        """More characters than a chunk may have, in one token or beside the tokens: cut by characters."""
        joined = _joined(text, range(len(text)))
        places = np.append(np.flatnonzero(~joined), len(text))
        start = 0
        while start < len(text):
            end = _end(places, start, start + self._max_chars)
            ids = self._tokenizer.ids([self._prompt + text[start:end].strip()])[0]
            while len(ids) > self._room and end > start + 1:
                end = _end(places, start, start + max((end - start) * self._room // len(ids), 1))
                ids = self._tokenizer.ids([self._prompt + text[start:end].strip()])[0]
            piece = text[start:end].strip()
            if self._says_something(piece, ids):
                yield Chunk(piece, ids[: self._room])
            start = end

    def _says_something(self, text: str, ids: Int32s) -> bool:
        """Whether the text itself has tokens, given those of prompt and text."""
        if len(ids) > self._prompt_tokens:
            return bool(text)
        return bool(self._prompt and text and len(self._tokenizer.ids([text])[0]))

    def _next(self, rank: npt.NDArray[np.int8], first: int, last: int) -> int:
        """Where the next window begins: within the overlap at a sentence, else a word, else where this one
        ended.
        """
        least = max(last - self._overlap, first + 1)
        ranks = rank[least : last + 1]
        for wanted in (2, 1):
            found = np.flatnonzero(ranks >= wanted)
            if len(found):
                return least + int(found[0])
        return last


def _fresh_start(text: str, tokens: Tokens, first: int) -> int:
    """The last token up to `first` at which a text can begin without changing tokens and ranks behind it."""
    while first and not (tokens.kept[first] and text[tokens.starts[first]].isalnum()):
        first -= 1
    return first


def _ranks(text: str, tokens: Tokens) -> npt.NDArray[np.int8]:
    """int8[n + 1]: how good a place to cut lies before each token: 3 paragraph, 2 sentence or line, 1 word, 0
    within a word, -1 within what reads as one character.
    """
    total = len(tokens.ids)
    rank = np.zeros(total + 1, np.int8)
    rank[total] = 3
    rank[1:total] = tokens.starts[1:] > tokens.ends[:-1]
    for value, pattern in _RANKS:
        places = np.array([match.end() for match in pattern.finditer(text)], np.int32)
        before = np.searchsorted(tokens.starts, places, "left")
        inside = before < total
        exact = before[inside]
        rank[exact[tokens.starts[exact] == places[inside]]] = value
    within = np.flatnonzero(rank[:total] == 0)
    joined = _joined(text, tokens.starts[within].tolist())
    halves = tokens.starts[within] == tokens.starts[within - 1]  # a character of several tokens
    rank[within[joined | halves]] = -1
    return rank


def _joined(text: str, places: Sequence[int]) -> Bools:
    """bool, for each place: what stands there reads as one character with what stands before."""
    if text.isascii():
        return np.zeros(len(places), np.bool_)
    flags = {match.start() + 1 for match in _FLAG.finditer(text)}
    return np.array([place in flags or (place > 0 and _joins(text, place)) for place in places], np.bool_)


def _joins(text: str, place: int) -> bool:
    """A mark, a joiner or what follows one, a skin's colour, a part of a tag or of a Hangul syllable."""
    character = text[place]
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me")
        or text[place - 1] == "\u200d"
        or _JOINING.match(character) is not None
    )


def _end(places: Int64s, start: int, limit: int) -> int:
    """The last of `places` up to `limit`, unless it lies in the first half, then `limit`."""
    end = int(places[np.searchsorted(places, limit, "right") - 1])
    return end if end > (start + limit) // 2 else limit
