"""What a run did: as JSON for programs, as a few lines for people."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any, Literal

from ingestor.channel import StageTime
from ingestor.encoding.quality import Quality
from ingestor.errors import IngestorError

ON_DEVICE = ("prefetch", "encode", "copy_out")
NO_DOCUMENT = "no_document"
"""A warning: nothing that was read became a document."""
LIMITED = "limit"
"""A warning: there may be documents that were not read."""
KEPT = "left the source, kept (source.sync: append)"
SHOWN = 3
"""How many shard errors and warnings the text names; the JSON has all."""


@dataclass(slots=True)
class Shards:
    seen: int = 0
    unchanged: int = 0
    failed: int = 0


@dataclass(slots=True)
class Documents:
    """Each document that was read is in one of indexed, would_index, unchanged, duplicates and failed."""

    read: int = 0
    indexed: int = 0
    would_index: int = 0
    unchanged: int = 0
    duplicates: int = 0
    failed: int = 0
    skipped: int = 0
    rejected: int = 0
    deleted: int = 0
    left: int = 0
    withheld: int = 0


@dataclass(slots=True)
class Chunks:
    embedded: int = 0


@dataclass(slots=True)
class Points:
    upserted: int = 0
    deleted: int = 0


@dataclass(slots=True)
class Tokens:
    embedded: int = 0
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a shard that people should know."""

    shard: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A record or document that was refused: where it lies, and why."""

    shard: str
    place: int
    kind: str
    detail: str
    document: str | None


@dataclass(slots=True)
class Report:
    """The account of one run, filled in while it goes on.

    Attributes:
        status: complete, stopped or failed; failed until the run says otherwise.
        dry_run: nothing was written; what counts as embedded and deleted would be.
        failures_open: rejected and failed documents and shard errors, of this run and of earlier ones whose
            shard is unchanged.
        alias, live: what searches ask for, and the collection that it pointed at.
        refused: the first records and documents that this run refused; the state file has all.
        stages: where each stage's time went.
    """

    status: Literal["complete", "stopped", "failed"] = "failed"
    dry_run: bool = False
    exit_code: int = 1
    target: str = ""
    collection: str = ""
    alias: str | None = None
    live: str | None = None
    seconds: float = 0.0
    shards: Shards = field(default_factory=Shards)
    documents: Documents = field(default_factory=Documents)
    failures_open: int = 0
    rejected_by_kind: dict[str, int] = field(default_factory=dict)
    skipped_by_kind: dict[str, int] = field(default_factory=dict)
    shard_errors: list[Remark] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    chunks: Chunks = field(default_factory=Chunks)
    points: Points = field(default_factory=Points)
    tokens: Tokens = field(default_factory=Tokens)
    replaced_characters: int = 0
    quality: Quality | None = None
    stages: dict[str, StageTime] = field(default_factory=dict)

    @property
    def bottleneck(self) -> str | None:
        """The stage that was busy longest."""
        return slowest(self.stages) or None

    @property
    def rates(self) -> dict[str, float]:
        amounts = {
            "documents_per_s": self.documents.indexed or self.documents.would_index,
            "tokens_per_s": self.tokens.embedded,
            "points_per_s": self.points.upserted,
        }
        return {
            name: round(amount / self.seconds, 1) if self.seconds else 0.0 for name, amount in amounts.items()
        }

    def check_totals(self) -> None:
        """Every document read must be accounted for.

        Raises:
            IngestorError: it is not, which is a bug.
        """
        found = self.documents
        parts = {
            name: getattr(found, name)
            for name in ("indexed", "would_index", "unchanged", "duplicates", "failed")
        }
        if found.read != sum(parts.values()):
            terms = " + ".join(f"{count} {name}" for name, count in parts.items())
            raise IngestorError(f"the totals do not add up, which is a bug: {found.read} read, but {terms}")
        if (refused := sum(self.rejected_by_kind.values())) != found.rejected + found.failed:
            raise IngestorError(
                f"the totals do not add up, which is a bug: {found.rejected} rejected + "
                f"{found.failed} failed, but {refused} by kind"
            )

    def close(self, *, tolerate: int, signal: int | None = None) -> None:
        """Settle the exit code of a run that ended by itself, or after `signal`.

        Raises:
            IngestorError: the run is complete, but a document is not accounted for.
        """
        if self.status == "complete":
            self.check_totals()
            self.exit_code = 3 if self.failures_open > tolerate or self.documents.withheld else 0
        elif self.status == "stopped":
            self.exit_code = 128 + (signal or SIGTERM)

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        if self.alias is None:
            del fields["alias"], fields["live"]
        if not self.dry_run:
            del fields["dry_run"]
        stages = {
            name: {key: round(seconds, 3) for key, seconds in times.items()}
            for name, times in fields.pop("stages").items()
        }
        seconds = {"seconds": round(self.seconds, 3)}
        return fields | seconds | {"rates": self.rates, "stages": stages, "bottleneck": self.bottleneck}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        """Replace the file by the report as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        replace_file(path, self.to_json())

    def text(self) -> str:
        """The last lines that a person sees."""
        return "\n".join(f"{name:<12}{said}" for name, said in self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        yield self.status, f"collection {self.collection}, {self.target}, in {self.seconds:,.1f} s"
        shards, points, tokens = self.shards, self.points, self.tokens
        yield "shards", counts({"seen": shards.seen, "unchanged": shards.unchanged, "failed": shards.failed})
        names = {"left": KEPT} | ({"deleted": "would delete"} if self.dry_run else {})
        documents = {names.get(name, name): n for name, n in dataclasses.asdict(self.documents).items()}
        yield "documents", counts(documents, always=("read",))
        if self.skipped_by_kind:
            yield "skipped", counts(self.skipped_by_kind)
        if self.rejected_by_kind:
            yield "refused", counts(self.rejected_by_kind)
        if self.dry_run:
            deleted = f"{points.deleted:,} to delete; " if points.deleted else ""
            yield "points", f"none written, a dry run; {deleted}{tokens.embedded:,} tokens to embed"
        else:
            written = f"{points.upserted:,} written, {points.deleted:,} deleted"
            yield "points", f"{written}; {tokens.embedded:,} tokens embedded"
        if points.upserted:
            yield (
                "rates",
                ", ".join(f"{rate:,.1f} {name.replace('_per_', '/')}" for name, rate in self.rates.items()),
            )
        if self.quality:
            yield "quality", str(self.quality)
        if self.bottleneck:
            busy = self.stages[self.bottleneck].busy_s
            yield "bottleneck", f"{self.bottleneck}, busy {busy:,.1f} s of {self.seconds:,.1f} s"
        yield from self.remarks()

    def remarks(self) -> Iterator[tuple[str, str]]:
        """What needs a look, and what to do about it."""
        warnings = sorted(self.warnings, key=lambda warning: warning.kind not in (LIMITED, NO_DOCUMENT))
        for name, remarks in (("shard error", self.shard_errors), ("warning", warnings)):
            for remark in remarks[:SHOWN]:
                yield name, f"{remark.shard}: {remark.kind}: {remark.detail}"
            if len(remarks) > SHOWN:
                yield name, f"and {len(remarks) - SHOWN:,} more; --report FILE has all"
        for found in self.refused[:SHOWN]:
            yield "refused", f"{found.shard}:{found.place}: {found.kind}: {found.detail}"
        if len(self.refused) > SHOWN:
            yield "refused", f"and more; --report FILE has {len(self.refused):,} of them"
        if self.failures_open:
            mend = "settings" if any(warning.kind == NO_DOCUMENT for warning in self.warnings) else "shards"
            listed = "" if self.dry_run else "`failures` lists them: "  # a dry run keeps none
            yield (
                "failures",
                f"{self.failures_open:,} open; {listed}mend the {mend} and run again, or raise"
                " failures.tolerate",
            )
        if self.documents.withheld:
            yield (
                "withheld",
                f"{self.documents.withheld:,} deletions; look at the source, then run with --allow-deletes",
            )
        if self.alias and self.live != self.collection and self.status == "complete":
            yield "next", f"promote lets {self.alias} point here (now: {self.live or 'nothing'})"
        if self.status == "stopped":
            yield "next", "run again: what is done is kept, the rest follows"


def replace_file(path: Path, text: str) -> None:
    """Replace the file at once, or not at all; what is no file, a pipe for instance, is written to.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8", errors="replace")
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def counts(numbers: Mapping[str, int], always: tuple[str, ...] = ()) -> str:
    """Numbers with their names; zeros only where they say something."""
    said = [
        f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items() if number or name in always
    ]
    return ", ".join(said) or "none"


def slowest(stages: Mapping[str, StageTime]) -> str:
    """The stage that was busy longest; "" if there is none.

    Three of them only hand work to the device and wait for it, so what keeps any of them busy is the encoder.
    """
    name = max(stages, key=lambda name: stages[name].busy_s, default="")
    return "encode" if name in ON_DEVICE else name
