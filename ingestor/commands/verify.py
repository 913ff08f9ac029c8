"""Whether the collection is what the state file says it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from ingestor.commands.common import Finding, alone
from ingestor.commands.comparing import NAMED, Comparison, Found, verify_collection
from ingestor.commands.vectors import check_model, embed
from ingestor.config.settings import Settings
from ingestor.errors import LockedError, VerificationError
from ingestor.lock import Lock
from ingestor.records import Float32s
from ingestor.running import wiring
from ingestor.sink import open_reader
from ingestor.sink.collection import check_state
from ingestor.state.file import existing_state
from ingestor.state.holdings import Holdings

REBUILD = "`status --rebuild`, then a run, mends it"
INDEX_ADVICE = {
    "yellow": "the server is building it; nothing to do",
    "grey": "the server has work that it does not do, as after a restart; the next write starts it",
    "red": "the server cannot build it; look at its log and its disk",
}


def verify(settings: Settings, *, sample: int) -> Comparison:
    """Compare the collection with the state file, and the vectors of `sample` points with their texts'.

    Raises:
        NothingThereError: there is no state file, or no collection.
        LockedError: a run has the embedded collection.
        IdentityMismatchError: the collection is of another model or another state file.
    """
    existing_state(Path(settings.state))
    busy = is_running(settings)
    found = compare(settings, sample=sample)
    found.disturbed = found.disturbed or busy
    return found


def compare(settings: Settings, *, sample: int) -> Comparison:
    """`verify` for who knows whether a run is under way."""
    with closing(Holdings(Path(settings.state))) as holdings, alone(settings):
        spec = wiring.spec_of(settings)
        target = wiring.target_of(settings, spec)
        with closing(open_reader(target)) as reader:
            check_model(reader, spec, settings)
            check_state(reader.identity() or {}, target, {"state": holdings.state_id()})

            def embed_again(texts: Sequence[str]) -> Float32s:
                return embed(settings, spec, reader, texts, prompt=spec.prompt)

            return verify_collection(reader, holdings, sample=sample, embed=embed_again if sample else None)


def is_running(settings: Settings) -> bool:
    """Whether a run has the state file at this moment."""
    try:
        Lock.acquire(wiring.state_lock(settings)).release()
    except LockedError:
        return True
    return False


def findings(found: Comparison) -> Iterator[Finding]:
    """What was compared, a line each; one that fails says what to do."""
    counts = f"{found.points:,} in the collection, {found.expected:,} in the state file"
    yield Finding("points", "ok" if found.points == found.expected else "warn", counts)
    if found.points != found.scanned:
        yield Finding("scan", "FAIL", f"met {found.scanned:,} points of {found.points:,}; look again")
    of = f"of {found.missing_documents:,} documents, are not there; {REBUILD}"
    yield judged("missing", found.missing, of)
    yield judged("orphans", found.orphans, f"of no document of the state file; {REBUILD}")
    yield judged("payloads", found.differing, f"of another version of their document; {REBUILD}")
    if found.strayed.points:
        said = f"of {found.sampled:,} have another vector than their text; `run --full` embeds all again"
        yield judged("vectors", found.strayed, said)
    elif found.sampled:
        least = f"least cosine {found.cosine:.6f}"
        yield Finding("vectors", "ok", f"{found.sampled:,} texts embedded again, {least}")
    if found.doubtful.points:
        said = "left in doubt by an interrupted run or by --rebuild; run again"
        yield Finding("in doubt", "warn", f"{counted(found.doubtful)}, {said}")
    if found.foreign:
        yield Finding("foreign", "warn", f"{found.foreign:,}, not written by this program")
    yield about_index(found)
    if found.disturbed:
        said = "was writing meanwhile, and what it has under way may show as a difference; look again then"
        yield Finding("a run", "warn", said)


def judged(name: str, found: Found, said: str) -> Finding:
    return Finding(name, "FAIL", f"{counted(found)}, {said}") if found.points else Finding(name, "ok", "none")


def counted(found: Found) -> str:
    """How many points, and of which documents the first of them are."""
    more = ", ..." if len(found.first) == NAMED and found.points > NAMED else ""
    return f"{found.points:,} ({', '.join(found.first)}{more})"


def about_index(found: Comparison) -> Finding:
    index = found.index
    verdict = {"green": "ok", "none": "ok", "red": "FAIL"}.get(index.name, "warn")
    said = filter(None, (index.name, index.detail, INDEX_ADVICE.get(index.name)))
    return Finding("index", verdict, "; ".join(said))


def as_json(settings: Settings, found: Comparison) -> str:
    about = {"collection": settings.qdrant.collection, "target": settings.qdrant.target, "same": found.same}
    return json.dumps(about | asdict(found))


def require_same(settings: Settings, found: Comparison) -> None:
    """End a command over a collection that is not what it should be.

    Raises:
        VerificationError: names what differs.
    """
    if not found.same:
        wrong = ", ".join(finding.name for finding in findings(found) if finding.verdict == "FAIL")
        raise VerificationError(
            f"collection {settings.qdrant.collection!r} is not what the state file says it is: {wrong}"
        )
