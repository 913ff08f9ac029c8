"""Switching an alias: to what a configuration built, once it is verified, and back again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from ingestor.commands.common import Finding
from ingestor.commands.completeness import require_complete
from ingestor.commands.verify import compare, findings, require_same
from ingestor.config.settings import Settings
from ingestor.errors import ConfigError, LockedError, NothingThereError, VerificationError
from ingestor.lock import Lock
from ingestor.running import generations, wiring
from ingestor.running.generations import Standing
from ingestor.sink.index_watch import Verdict, Watch

Note = Callable[[str], None]
"""Says what is going on."""


def promote(settings: Settings, *, sample: int, note: Note) -> Iterator[str]:
    """Verify what the configuration built, let the alias point at it, and drop what is too old.

    Says what was found and done, line by line.

    Args:
        sample: so many stored texts are embedded again.

    Raises:
        ConfigError: there is no alias.
        NothingThereError: nothing was built yet.
        LockedError: a run is building, or somebody else switches the alias.
        VerificationError: what was built is not complete, or not what the state file says.
    """
    require_alias(settings)
    standing = generations.stand(settings, wiring.spec_of(settings))
    new = standing.settings
    if standing.family.find(new.qdrant.collection) is None:
        raise NothingThereError(f"{new.qdrant.collection!r} is not there yet: nothing to promote; run first")
    with ExitStack() as locks:
        locks.enter_context(Lock.acquire(alias_lock(settings)))
        locks.enter_context(Lock.acquire(wiring.state_lock(new)))
        require_complete(new)
        wait_for_index(new, note)
        found = compare(new, sample=sample)
        yield from map(str, findings(found))
        require_same(new, found)
        yield switch(standing)
        yield from drop_old(standing)


def rollback(settings: Settings) -> Iterator[str]:
    """Let the alias point at what was live before.

    Raises:
        ConfigError: there is no alias.
        NothingThereError: nothing that was live before is there any more.
    """
    alias = require_alias(settings)
    with Lock.acquire(alias_lock(settings)), generations.aliases_of(settings) as aliases:
        family = aliases.family()
        if not (earlier := family.earlier()):
            raise NothingThereError(
                f"alias {alias!r} points at {family.live or 'nothing'}, and no collection is there that was"
                " live before; qdrant.keep says how many promote leaves"
            )
        aliases.point_at(earlier[0].name)
    yield f"alias {alias}: {family.live} -> {earlier[0].name}"


def require_alias(settings: Settings) -> str:
    if settings.qdrant.alias is None:
        raise ConfigError(
            "qdrant.alias is not set, so there is nothing to switch; set it and qdrant.url, and run first"
        )
    return settings.qdrant.alias


def alias_lock(settings: Settings) -> Path:
    """Held by who switches the alias."""
    return Path(settings.state + ".alias.lock")


def wait_for_index(settings: Settings, note: Note) -> None:
    """Wait until the server has built the index.

    Raises:
        SinkError: it cannot.
        VerificationError: it does not get on.
    """
    from ingestor.sink.server_index import ServerIndex

    target = wiring.target_of(settings, None)
    watch, told = Watch(target), False
    with ServerIndex(target) as index:
        while (verdict := watch.judge(index.condition(), time.monotonic())) is not Verdict.DONE:
            if verdict is Verdict.STALLED:
                raise VerificationError(f"{target}: its index is not built, and does not get on")
            if verdict is Verdict.WAKE:
                index.wake()
            if not told:
                note(f"waiting until the server has built the index of {target.collection}")
                told = True
            time.sleep(watch.pause_s)


def switch(standing: Standing) -> str:
    """Point the alias at the configuration's collection, unless it does; notes first which was live when."""
    new, alias = standing.settings.qdrant.collection, standing.alias
    with generations.aliases_of(standing.base) as aliases:
        family = aliases.family()
        if family.live == new:
            return f"alias {alias}: {new}, as before"
        turn = family.next_turn
        if family.live and family.find(family.live):
            aliases.mark(family.live, turn)  # what `rollback` goes back to
        aliases.mark(new, turn + 1)
        aliases.point_at(new)
    return f"alias {alias}: {family.live or 'nothing'} -> {new}"


def drop_old(standing: Standing) -> Iterator[str]:
    """Drop what was live longer ago than `qdrant.keep` says, with its state; what never was live stays."""
    base = standing.base
    with generations.aliases_of(base) as aliases:
        family = aliases.family()
        for old in family.superfluous(base.qdrant.keep):
            settings = generations.named(base, old.name)
            try:
                with Lock.acquire(wiring.state_lock(settings)):
                    forget(Path(settings.state))
                    aliases.drop(old.name)
            except LockedError:
                yield str(Finding(old.name, "warn", "kept, for a run is writing to it"))
            else:
                yield f"dropped {old.name}, which was live longer ago than the {base.qdrant.keep} to keep"
        for one in family.generations:
            if one.turn == 0:
                yield f"left alone {one.name}, which never was live"


def forget(state: Path) -> None:
    """Remove a state file, for good; its lock file stays."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{state}{suffix}").unlink(missing_ok=True)
