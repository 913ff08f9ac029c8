"""Ask the collection, with the model and the query prompt that its settings name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ingestor.commands.common import alone
from ingestor.commands.vectors import check_model, embed
from ingestor.config.settings import Settings
from ingestor.errors import ConfigError, reason
from ingestor.running import wiring
from ingestor.running.generations import stand
from ingestor.sink import Hit, Reader, open_reader
from ingestor.sources.fields import MISSING, find
from ingestor.sources.values import INT64

Warn = Callable[[str], None]

SHOWN_CHARACTERS = 300
NOT_FOR_FILTERS = {"text"}
NUMBER = re.compile(r"-?\d{1,20}")
TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for, and the name that its answer has."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A query and what was found, best first."""

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
    except OSError as error:
        raise ConfigError(
            f"--queries {file}: cannot be read: {reason(error)}; name a file of JSON Lines"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--queries {file}: not UTF-8 text at byte {error.start}; save it as UTF-8"
        ) from error
    found = [a_query(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(
            f'--queries {file}: holds no query; each line is like {{"_id": "1", "text": "..."}}'
        )
    return found


def a_query(said: str | dict[str, Any], where: str) -> Query:
    try:
        fields = json.loads(said) if isinstance(said, str) else said
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'{where}: not JSON: {error}; write {{"_id": "1", "text": "..."}}') from error
    text = fields.get("text") if isinstance(fields, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: a query needs a text that is not empty; give it one, or leave it out")
    if "_id" not in fields:
        raise ConfigError(f"{where}: a query needs an _id; answers are known by it")
    return Query(str(fields["_id"]), text)


def read_filter(where: Sequence[str]) -> dict[str, str | int]:
    """`field=value` as a condition: digits are a number, `true` and `false` truth values, what is in quotes
    is text, and so is a number that is too large for the collection, which keeps it as text.

    Raises:
        ConfigError: it is not written so.
    """
    found: dict[str, str | int] = {}
    for condition in where:
        field, equals, value = condition.partition("=")
        if not field or not equals:
            raise ConfigError(f"--filter {condition}: write --filter field=value")
        if NUMBER.fullmatch(value) and int(value) in INT64:
            found[field] = int(value)
        elif value in TRUTH:
            found[field] = TRUTH[value]
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

    def too_long(row: int, room: int, length: int) -> None:
        id_ = queries[row].id
        warn(f"query {id_}: only its first {room} of {length} tokens count; the model takes no more")

    conditions = read_filter(where)
    spec = wiring.spec_of(settings)
    settings = stand(settings, spec).of_live()
    with ExitStack() as stack:
        stack.enter_context(alone(settings))
        target = wiring.target_of(settings, spec)
        reader = open_reader(target)
        stack.callback(reader.close)
        check_model(reader, spec, settings)
        texts = [query.text for query in queries]
        vectors = embed(settings, spec, reader, texts, prompt=spec.query_prompt, too_long=too_long)
        found = reader.search(vectors, hits, exact=exact, filter=conditions)
        if conditions and not any(found):
            for said in mistaken(reader, where, conditions, embedded=target.url is None):
                warn(said)
    return map(Answer, queries, found)


def mistaken(
    reader: Reader, where: Sequence[str], conditions: Mapping[str, str | int], *, embedded: bool
) -> Iterator[str]:
    """Say which fields none of the first points has, and which the condition does not suit.

    A path is followed up to its first list.
    """
    written = {path: value for path, _, value in (condition.partition("=") for condition in where)}
    page = next(reader.scan(), [])
    names = sorted({name for point in page for name in point.payload} - NOT_FOR_FILTERS)
    for path, value in conditions.items():
        values = [find(point.payload, path.partition("[")[0]) for point in page]
        if page and all(one is MISSING for one in values):
            there = f"none of the first {len(page):,} points has {path!r} (there are: {', '.join(names)})"
            yield f"--filter: {there}"
        elif not isinstance(value, str) and any(isinstance(one, str) for one in values):
            yield f"--filter: {path!r} is text there; write --filter '{path}=\"{written[path]}\"'"
        elif isinstance(value, bool) and embedded:
            yield f"--filter: the embedded engine cannot compare {path!r} with {written[path]}; a server can"


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
