"""Ask the collection, with the model and the query prompt that its settings name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingestor import wiring
from ingestor.config import Settings
from ingestor.errors import ConfigError, IdentityMismatchError
from ingestor.lock import Lock
from ingestor.model import ModelSpec
from ingestor.records import Batch, Int32s, Points
from ingestor.sink import Float32s, Hit, Reader, open_reader
from ingestor.tokenizer import load_tokenizer

Warn = Callable[[str], None]

QUERIES_PER_BATCH = 32
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    query: Query
    hits: list[Hit]


def read_queries(text: str | None, file: Path | None) -> list[Query]:
    """The one query of the command line, or those of a JSON Lines file with `_id` and `text`.

    Raises:
        ConfigError: there is none, or a line is no query.
    """
    if (text is None) == (file is None):
        raise ConfigError('give either a text, search "like this", or a file with --queries FILE')
    if file is None:
        return [a_query({"_id": "1", "text": text}, "the query")]
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--queries {file}: cannot be read: {error}") from error
    found = [a_query(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"--queries {file}: holds no query")
    return found


def a_query(said: str | dict[str, Any], where: str) -> Query:
    try:
        fields = json.loads(said) if isinstance(said, str) else said
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    text = fields.get("text") if isinstance(fields, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: a query needs a text that is not empty")
    if "_id" not in fields:
        raise ConfigError(f"{where}: a query needs an _id")
    return Query(str(fields["_id"]), text)


def read_filter(where: Sequence[str]) -> dict[str, str | int]:
    """`field=value` as a condition; a value of digits is a number, one in quotes is text."""
    found: dict[str, str | int] = {}
    for condition in where:
        field, equals, value = condition.partition("=")
        if not field or not equals:
            raise ConfigError(f"--filter {condition}: write --filter field=value")
        if value.removeprefix("-").isdecimal():
            found[field] = int(value)
        else:
            found[field] = value[1:-1] if value[:1] == value[-1:] == '"' and len(value) > 1 else value
    return found


def search(
    settings: Settings, queries: Sequence[Query], *, hits: int, exact: bool, where: Sequence[str], warn: Warn
) -> Iterator[Answer]:
    """Answer the queries in their order, with one load of the model.

    Raises:
        LockedError: a run has the embedded collection.
        IdentityMismatchError: the collection was written with another model.
    """
    conditions = read_filter(where)
    spec = wiring.spec_of(settings)
    with ExitStack() as stack:
        lock = wiring.engine_lock(settings)
        if lock and lock.parent.exists():
            stack.enter_context(Lock.acquire(lock))
        reader = open_reader(wiring.target_of(settings, spec))
        stack.callback(reader.close)
        check_model(reader, spec, settings)
        vectors = embed(settings, spec, token_ids(spec, queries, warn))
        found = reader.search(vectors, hits, exact=exact, filter=conditions)
    return map(Answer, queries, found)


def check_model(reader: Reader, spec: ModelSpec, settings: Settings) -> None:
    qdrant = settings.qdrant
    wanted = wiring.identity_of(settings, spec)["vector"]
    stored = (reader.identity() or {}).get("vector", wanted)
    if differing := [name for name in wanted if stored.get(name) != wanted[name]]:
        says = "; ".join(f"{name}: {stored.get(name)!r} there, {wanted[name]!r} here" for name in differing)
        raise IdentityMismatchError(
            f"collection {qdrant.collection!r} holds vectors of another model ({says});"
            " search with the configuration that it was written with"
        )


def token_ids(spec: ModelSpec, queries: Sequence[Query], warn: Warn) -> list[Int32s]:
    """The tokens of each query, prompt and special tokens among them, cut to what the model takes."""
    tokenizer = load_tokenizer(spec)
    room = spec.max_tokens - len(tokenizer.prefix) - len(tokenizer.suffix)
    found = []
    for query, ids in zip(queries, tokenizer.ids([spec.query_prompt + q.text for q in queries]), strict=True):
        if len(ids) > room:
            warn(
                f"query {query.id}: only its first {room} of {len(ids)} tokens count; the model takes no more"
            )
        found.append(np.concatenate([tokenizer.prefix, ids[:room], tokenizer.suffix]).astype(np.int32))
    return found


def embed(settings: Settings, spec: ModelSpec, queries: Sequence[Int32s]) -> Float32s:
    """float32[n, dimension], the vector of each query; those of like length go together."""
    from ingestor.device import open_device
    from ingestor.encoder import load_encoder

    device = open_device(settings.encoder.device)
    encoder = load_encoder(spec, device=device, precision=settings.encoder.precision)
    vectors = np.empty((len(queries), spec.dimension), np.float32)
    order = np.argsort([len(query) for query in queries], kind="stable")
    for rows in np.split(order, range(QUERIES_PER_BATCH, len(order), QUERIES_PER_BATCH)):
        batch = device.upload(batch_of([queries[row] for row in rows]))
        found = device.compute(batch, encoder.forward)
        found.ready.synchronize()
        vectors[rows] = found.vectors.cpu().numpy()
    return vectors


def batch_of(queries: Sequence[Int32s]) -> Batch:
    offsets = np.concatenate([[0], np.cumsum([len(query) for query in queries])]).astype(np.int64)
    rows = len(queries)
    nobody = Points(np.zeros(rows, np.int64), np.zeros((rows, 16), np.uint8), [b""] * rows)
    return Batch(np.concatenate(queries), offsets, nobody)


def as_json(answers: Iterator[Answer]) -> Iterator[str]:
    for answer in answers:
        hits = [asdict(hit) for hit in answer.hits]
        yield json.dumps({"id": answer.query.id, "hits": hits})


def as_text(answers: Iterator[Answer]) -> Iterator[str]:
    for answer in answers:
        yield f"{answer.query.text}"
        if not answer.hits:
            yield "  nothing found"
        for number, hit in enumerate(answer.hits, 1):
            yield f"{number:>3}. {hit.score:.3f}  {hit.document} (chunk {hit.chunk})"
            yield "     " + " ".join(hit.text[:SHOWN_CHARACTERS].split())
