"""Everything that a run needs, looked at before it is needed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from ingestor import wiring
from ingestor.commands.common import Finding, alone
from ingestor.config import Settings
from ingestor.errors import ConfigError, IngestorError
from ingestor.generations import Standing, stand
from ingestor.lock import Lock
from ingestor.lookup import read_status
from ingestor.model import ModelSpec
from ingestor.sink import check_target
from ingestor.sink.remarks import remarks
from ingestor.sources.listing import no_shards
from ingestor.sources.remote import Remote

MIB = 1 << 20
LITTLE_DISK_BYTES = 1 << 30
FIRST_NAMES = 3
DOUBT = "? "
"""Begins what is no reason to stop, but worth a look."""


def check(settings: Settings) -> Iterator[Finding]:
    """Look at one thing after the other; nothing is written, no weights are loaded."""
    yield looked_at("config", lambda: about_config(settings))
    yield looked_at("shards", lambda: about_shards(settings))
    yield looked_at("disk", lambda: about_disk(settings))
    if settings.qdrant.alias is None:
        yield looked_at("lock", lambda: about_locks(settings))
    yield looked_at("device", lambda: about_device(settings))
    try:
        spec = wiring.spec_of(settings)
    except IngestorError as error:
        yield Finding("model", "FAIL", str(error), error.exit_code)
        return  # the rest hangs on its dimension
    yield Finding("model", "ok", about_model(spec))
    yield looked_at("shared memory", lambda: about_shared_memory(settings, spec))
    if settings.qdrant.alias is not None:
        standing: list[Standing] = []
        yield looked_at("alias", lambda: about_alias(settings, spec, standing))
        if not standing:
            return  # the rest hangs on which collection it is
        settings = standing[0].settings
        yield looked_at("lock", lambda: about_locks(settings))
    reached = looked_at("qdrant", lambda: about_qdrant(settings, spec))
    yield reached
    for _, detail in remarks(wiring.target_of(settings, spec)):
        yield Finding("qdrant", "warn", detail)
    if reached.verdict == "ok":
        drift: list[str] = []
        yield looked_at("collection", lambda: about_collection(settings, spec, drift))
        yield from (Finding("drift", "warn", difference) for difference in drift)


def looked_at(name: str, look: Callable[[], str]) -> Finding:
    try:
        said = look()
    except IngestorError as error:
        return Finding(name, "FAIL", str(error).replace("\n", "; "), error.exit_code)
    except OSError as error:
        return Finding(name, "FAIL", f"{error.filename or name}: {error.strerror}", 1)
    doubtful = said.startswith(DOUBT)
    return Finding(name, "warn" if doubtful else "ok", said.removeprefix(DOUBT))


def about_config(settings: Settings) -> str:
    return f"into collection {settings.qdrant.collection}, {settings.qdrant.target}"


def about_shards(settings: Settings) -> str:
    with Remote() as remote:
        listing = wiring.listing_of(settings, remote)
    if not listing.shards:
        raise no_shards(settings.source.paths, listing)
    names = ", ".join(shard.name for shard in listing.shards[:FIRST_NAMES])
    more = ", ..." if len(listing.shards) > FIRST_NAMES else ""
    megabytes = sum(shard.size for shard in listing.shards) / 1e6
    doubt = f"{DOUBT}{len(listing.warnings)} warnings; " if listing.warnings else ""
    return f"{doubt}{len(listing.shards):,} shards, {megabytes:,.1f} MB: {names}{more}"


def about_model(spec: ModelSpec) -> str:
    normalized = "normalized" if spec.normalize else "not normalized"
    prompts = f", prompt {spec.prompt!r}, query prompt {spec.query_prompt!r}"
    return (
        f"{spec.name} ({spec.architecture}, {spec.revision[:19]}): {spec.dimension} dimensions, {normalized},"
        f" {spec.pooling} pooling, at most {spec.max_tokens} tokens"
        + (prompts if spec.prompt or spec.query_prompt else "")
    )


def about_device(settings: Settings) -> str:
    from ingestor.device import open_device

    found = open_device(settings.encoder.device).torch_device
    return f"{found}, {len(os.sched_getaffinity(0))} cores for this process"


def about_shared_memory(settings: Settings, spec: ModelSpec) -> str:
    from ingestor import engine
    from ingestor.buffers import FOLDER, BufferLayout, check_room

    rows = engine.slot_rows(settings, spec.dimension) or engine.CPU_SLOT_ROWS
    if engine.has_gpu(settings) and settings.pipeline.buffer_bytes == "auto":
        from ingestor.budget import SIZES

        rows = engine.gpu_rows(SIZES[-1], 0)  # the fewest that the largest budget does with
    needed = BufferLayout("", settings.pipeline.buffers, rows, spec.dimension).nbytes
    check_room(needed)
    free = shutil.disk_usage(FOLDER).free
    return f"{needed / MIB:,.0f} MiB needed, {free / MIB:,.0f} MiB free in {FOLDER}"


def about_disk(settings: Settings) -> str:
    """Room and leave to write for the state, and for the embedded engine."""
    said, little = [], False
    folders = [Path(settings.state).parent] + ([Path(settings.qdrant.path)] if settings.qdrant.path else [])
    for path in folders:
        absolute = path.absolute()
        there = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise ConfigError(f"{there}: cannot be written to; change its owner or the setting")
        free = shutil.disk_usage(there).free
        little = little or free < LITTLE_DISK_BYTES
        said.append(f"{free / MIB:,.0f} MiB free for {path}")
    return (DOUBT if little else "") + ", ".join(said)


def about_locks(settings: Settings) -> str:
    for path in filter(None, (wiring.state_lock(settings), wiring.engine_lock(settings))):
        if path.exists():
            Lock.acquire(path).release()
    return "free"


def about_alias(settings: Settings, spec: ModelSpec, standing: list[Standing]) -> str:
    """What the alias points at; adds to `standing` where the configuration stands."""
    found = stand(settings, spec)
    standing.append(found)
    place = "live" if found.is_live else "to be promoted when it is built"
    name = found.settings.qdrant.collection
    return f"{found.alias} points at {found.live or 'nothing yet'}; this configuration is {name}, {place}"


def about_qdrant(settings: Settings, spec: ModelSpec) -> str:
    with alone(settings):
        return check_target(wiring.target_of(settings, spec))


def about_collection(settings: Settings, spec: ModelSpec, drift: list[str]) -> str:
    """What the collection holds; adds to `drift` where it is not what the configuration asks for."""
    from ingestor.sink import collection

    target, state = wiring.target_of(settings, spec), Path(settings.state)
    with alone(settings), collection.store_of(target) as store:
        found = store.read()
    if found is None:
        return "not there yet"
    written_from = (found.identity or {}).get("state")
    known = read_status(state).get("state_id", written_from) if state.exists() else None
    collection.check(found, target, {**wiring.identity_of(settings, spec), "state": known})
    drift += found.differences(target)
    return f"{found.points:,} points of this model"


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings])


def exit_code(findings: Sequence[Finding]) -> int:
    """That of the first thing that would end a run."""
    return next((finding.exit_code for finding in findings if finding.exit_code), 0)
