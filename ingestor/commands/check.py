"""Everything that could end a run, or spoil it, looked at before it begins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ingestor.commands.common import Finding
from ingestor.commands.looks import FAIL, WARN, Known, looked_at, machine, source, target
from ingestor.commands.looks import encoder as of_encoder
from ingestor.config.settings import Settings


def check(settings: Settings, *, quick: bool = False) -> Iterator[Finding]:
    """Look at one thing after the other; nothing is written. Without `quick`, the model is loaded, too."""
    known = Known(settings)
    yield from looked_at("config", machine.configuration, settings)
    if settings.metrics.port or settings.metrics.textfile:
        yield from looked_at("metrics", machine.metrics, settings)
    yield from looked_at("shards", source.shards, known)
    yield from looked_at("disk", machine.disk, settings)
    yield from looked_at("device", machine.device, settings)
    yield from looked_at("model", of_encoder.model, known)
    if known.spec is None:
        return  # the rest hangs on its dimension
    yield from _with_the_model(known, quick=quick)


def _with_the_model(known: Known, *, quick: bool) -> Iterator[Finding]:
    settings, spec = known.settings, known.spec
    assert spec
    cut = list(looked_at("tokenizer", of_encoder.tokenizer, settings, spec))
    yield from cut
    if known.listing and known.listing.shards and _good(cut):
        yield from looked_at("records", source.records, known)
    yield from looked_at("shared memory", machine.shared_memory, settings, spec)
    yield from looked_at("memory", machine.memory, settings, spec)
    stored = list(_target(known, comparable=_good(cut)))
    yield from stored
    if not quick and _good(cut):
        yield from looked_at("encoder", of_encoder.encoder, known)
    if known.listing and known.sample and all(one.verdict != FAIL or one.name != "state" for one in stored):
        yield from looked_at("estimate", source.estimate, known)


def _target(known: Known, *, comparable: bool) -> Iterator[Finding]:
    """What concerns the collection; behind an alias only where that is known.

    Args:
        comparable: it is known how documents would be cut, which is part of what the collection must fit.
    """
    assert known.spec
    if known.settings.qdrant.alias is not None:
        behind = list(looked_at("alias", target.alias, known))
        yield from behind
        if not _good(behind):
            return
    settings = known.settings
    state = list(looked_at("state", target.state, settings))
    yield from state
    yield from looked_at("lock", target.locks, settings)
    reached = list(looked_at("qdrant", target.server, settings, known.spec))
    yield from reached
    if comparable and _good(state) and _good(reached):
        yield from looked_at("collection", target.stored, settings, known.spec)


def _good(findings: Sequence[Finding]) -> bool:
    return all(finding.verdict != FAIL for finding in findings)


def summary(findings: Sequence[Finding]) -> Finding:
    """All of it in one line."""
    bad = [finding.name for finding in findings if finding.verdict == FAIL]
    doubtful = [finding.name for finding in findings if finding.verdict == WARN]
    if bad:
        return Finding("", FAIL, f"a run would end: {', '.join(dict.fromkeys(bad))}", exit_code(findings))
    if doubtful:
        return Finding("", WARN, f"a run can begin; look at {', '.join(dict.fromkeys(doubtful))}")
    return Finding("", "ok", "a run can begin")


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings])


def exit_code(findings: Sequence[Finding]) -> int:
    """That of the first thing that would end a run."""
    return next((finding.exit_code for finding in findings if finding.exit_code), 0)
