"""Shards and their records, and what a run over all of them will come to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ingestor.commands.looks import OK, WARN, Known, Look
from ingestor.commands.looks.sample import Sample, take
from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.errors import ConfigError
from ingestor.records import Shard
from ingestor.running import wiring
from ingestor.sink.place import free_bytes
from ingestor.sources.advice import FIELDS_NAMED, field_names, on_fields
from ingestor.sources.listing import no_shards
from ingestor.sources.remote import Remote
from ingestor.state.identity import salt_of
from ingestor.state.lookup import read_finished, read_speed
from ingestor.state.touched import fingerprint
from ingestor.watching.words import duration, short

FIRST_NAMES = 3
MANY_REFUSED = 0.05
"""Share of the records from which on the settings are to be doubted, and not the source."""


def shards(known: Known) -> Look:
    """What there is to read."""
    with Remote() as remote:
        found = known.listing = wiring.listing_of(known.settings, remote)
    for place, kind, detail in found.warnings[:FIRST_NAMES]:
        yield WARN, f"{place}: {kind}: {detail}"
    if len(found.warnings) > FIRST_NAMES:
        yield WARN, f"and {len(found.warnings) - FIRST_NAMES:,} more such warnings; a run's report has all"
    if not found.shards:
        raise no_shards(known.settings.source.paths, found)
    names = ", ".join(shard.name for shard in found.shards[:FIRST_NAMES])
    more = ", ..." if len(found.shards) > FIRST_NAMES else ""
    size = sum(shard.size for shard in found.shards)
    said = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
    yield OK, f"{_count(len(found.shards), 'shard')}, {said}: {names}{more}"


def records(known: Known) -> Look:
    """Whether the first records of some shards become documents."""
    assert known.listing
    assert known.spec
    with Remote() as remote:
        sample = known.sample = take(known.settings, known.spec, known.listing.shards, remote)
    refused, skipped = len(sample.failures), sample.skipped.total()
    seen = sample.documents + sample.duplicates + refused + skipped
    for shard, kind, detail in sample.errors[:FIRST_NAMES]:
        yield WARN, f"{shard}: {kind}: {detail}; mend or remove it, a run ends with exit code 3"
    for shard, kind, detail in sample.warnings[:FIRST_NAMES]:
        yield WARN, f"{shard}: {kind}: {detail}"
    advice = on_fields({failure.kind for failure in sample.failures}, sample.first)
    if seen and not sample.documents + sample.duplicates:
        raise ConfigError(f"none of the first {seen:,} records can be used: {_kinds(sample)}; {advice}")
    if refused:
        advice = advice if refused > MANY_REFUSED * seen else "a run ends with exit code 3"
        yield WARN, f"{refused:,} of the first {seen:,} records are refused: {_kinds(sample)}; {advice}"
    if not seen and not sample.errors:
        yield WARN, f"no records in the first {sample.shards:,} shards; are they empty?"
        return
    yield from _metadata(known.settings, sample, seen)
    formats = ", ".join(name for name, _ in sample.formats.most_common())
    passed = f", {skipped:,} passed over" if skipped else ""
    where = f"at the beginning of {_count(sample.shards, 'shard')} ({formats})"
    yield (
        OK,
        f"{sample.documents:,} documents{passed} {where}:"
        f" {len(sample.chunks):,} chunks, {sample.tokens:,} tokens",
    )


def _metadata(settings: Settings, sample: Sample, seen: int) -> Look:
    """Fields that are asked for and were in no record: perhaps misspelt."""
    names = field_names(sample.first)
    there = f" (there are: {', '.join(names[:FIELDS_NAMED])})" if names else ""
    for path in settings.source.metadata_fields or ():
        if sample.documents and path not in sample.metadata:
            yield WARN, f"source.metadata_fields: none of the first {seen:,} records has {path!r}{there}"


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}" + "s" * (number != 1)


def _kinds(sample: Sample) -> str:
    """The kinds of refusals with their numbers, and the first one in full."""
    kinds = Counter(failure.kind for failure in sample.failures)
    kinds.update({f"passed over: {kind}": count for kind, count in sample.skipped.items()})
    said = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    if not sample.failures:
        return said
    first = sample.failures[0]
    return f"{said}; the first is {first.shard}:{first.place}: {first.detail}"


def estimate(known: Known) -> Look:
    """How much there is to do, and how long it will take."""
    sample, settings = known.sample, known.settings
    assert known.listing
    assert known.spec
    if sample is None or not sample.documents or not sample.read:
        return  # why there are none was told
    waiting = _unfinished(known.listing.shards, settings, known.spec)
    size, new = (sum(shard.size for shard in some) for some in (known.listing.shards, waiting))
    documents = sample.documents * size / sample.read
    chunks = documents * len(sample.chunks) / sample.documents
    tokens, all_tokens = (sample.tokens * some / sample.read for some in (new, size))
    said = f"about {short(documents)} documents, {short(chunks)} chunks, {short(all_tokens)} tokens"
    speed, whose = read_speed(Path(settings.state)), "as fast as the last run"
    if speed is None:
        speed, whose = known.tokens_per_s, "as fast as the encoder is now, alone"
    if len(waiting) < len(known.listing.shards):
        said += f" in all, {short(tokens)} of them in {_count(len(waiting), 'shard')}, new or changed"
    if speed and tokens:
        said += f": {duration(tokens / speed)} at {short(speed)} tokens/s, {whose}"
    yield OK, said
    yield from _room(
        settings, chunks * (4 * known.spec.dimension + sample.payload_bytes / len(sample.chunks))
    )


def _room(settings: Settings, size: float) -> Look:
    """Whether the disk of the embedded engine has room for vectors and payloads alone."""
    if settings.qdrant.path and size > (free := free_bytes(Path(settings.qdrant.path))):
        yield (
            WARN,
            f"vectors and payloads will take {size / 1e9:,.1f} GB or more, and {free / 1e9:,.1f} GB are"
            " free; make room, or set qdrant.path to another disk",
        )


def _unfinished(shards: list[Shard], settings: Settings, spec: ModelSpec) -> list[Shard]:
    """Those that a run would read: new, changed, or to be read in another way."""
    salt = salt_of(wiring.reading_of(settings, wiring.identity_of(settings, spec)["record"]))
    done = read_finished(Path(settings.state))
    return [shard for shard in shards if done.get(shard.name) != fingerprint(shard, salt)]
