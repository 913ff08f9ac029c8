"""Real passages for the CPU: from Python's own documentation, or from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from pydoc_data.topics import topics

from ingestor.encoding.model import resolve
from ingestor.preparing.chunk import Chunker
from ingestor.preparing.tokenizer import load_tokenizer
from parts.material import TOKENIZER

CHARACTERS = 500


def passages(file: Path | None, count: int) -> list[tuple[str, str]]:
    """`count` (id, text), each one chunk for the model, so that both sides embed the same."""
    tokenizer = load_tokenizer(resolve(TOKENIZER))
    chunker = Chunker(tokenizer, prompt="", max_tokens=256, overlap_tokens=0, max_chars=1 << 20)
    found: list[tuple[str, str]] = []
    for text in from_file(file) if file else from_topics():
        if len(chunker.chunks([text])[0]) == 1:
            found.append((str(len(found)), text))
        if len(found) == count:
            return found
    return [(str(number), text) for number, (_, text) in enumerate(islice(cycle(found), count))]


def from_topics() -> Iterator[str]:
    """Paragraphs put together until they have some hundred characters."""
    for topic in topics.values():
        held = ""
        for paragraph in topic.split("\n\n"):
            held += paragraph.strip() + "\n\n"
            if len(held) >= CHARACTERS:
                yield held.strip()
                held = ""


def from_file(path: Path) -> Iterator[str]:
    import zstandard

    with zstandard.open(path, "rt") if path.suffix == ".zst" else path.open() as lines:
        for line in lines:
            text = json.loads(line)["text"].strip()
            for start in range(0, len(text), 2 * CHARACTERS):
                yield text[start : start + 2 * CHARACTERS]
