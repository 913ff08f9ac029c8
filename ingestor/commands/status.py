"""What the state file knows of the collection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ingestor import wiring
from ingestor.commands.rebuild import rebuild_state
from ingestor.config import Settings
from ingestor.generations import Standing, stand
from ingestor.lookup import read_status
from ingestor.sink.generation import Generation


def status(settings: Settings) -> dict[str, Any]:
    """Read the state file.

    Raises:
        NothingThereError: there is none yet.
        ConfigError: it is something else.
    """
    standing = stand(settings, wiring.spec_of(settings)) if settings.qdrant.alias else None
    settings = standing.settings if standing else settings
    qdrant = settings.qdrant
    where = {"state": settings.state, "target": qdrant.target, "collection": qdrant.collection}
    behind = behind_alias(standing) if standing else {}
    return where | behind | read_status(Path(settings.state))


def behind_alias(standing: Standing) -> dict[str, Any]:
    """Which collection is live, and what else stands behind the alias."""
    others = [
        {"collection": one.name, "place": place_of(one, standing), "model": one.identity["vector"]["model"]}
        for one in standing.family.generations
    ]
    return {"alias": standing.alias, "live": standing.live, "generations": others}


def place_of(generation: Generation, standing: Standing) -> str:
    """What a collection is to the alias."""
    if generation.name == standing.live:
        return "live"
    return "was live" if generation.turn else "never live"


def rebuild(settings: Settings) -> Iterator[str]:
    """Make the state file again from the collection; says what was made."""
    made = rebuild_state(settings)
    yield f"state made again: {made.documents:,} documents of {made.points:,} points"
    if made.incomplete:
        yield f"{made.incomplete:,} of them are incomplete; the next run that reads them embeds them again"
    if made.foreign:
        yield f"{made.foreign:,} points were not written by this program, and were passed over"
    if made.kept:
        yield f"the state file from before is kept as {made.kept}"


def as_json(found: dict[str, Any]) -> Iterator[str]:
    yield json.dumps(found)


def as_text(found: dict[str, Any]) -> Iterator[str]:
    yield f"collection  {found['collection']}, {found['target']}"
    if alias := found.get("alias"):
        yield f"alias       {alias}, points at {found['live'] or 'nothing yet'}"
        for one in found["generations"]:
            yield f"            {one['collection']}: {one['place']}, {one['model']}"
    yield f"state       {found['state']}"
    yield f"documents   {found['documents']:,}"
    yield f"points      {found['points']:,}"
    yield f"failures    {found['failures']:,} open"
    identity = found["identity"]
    yield f"model       {identity['model'] if identity else 'not known yet'}"
    yield f"last run    {last_run(found['last_run'])}"


def last_run(run: dict[str, Any] | None) -> str:
    if run is None:
        return "none yet"
    began = datetime.fromtimestamp(run["started"]).astimezone().isoformat(" ", "seconds")
    took = f", {run['ended'] - run['started']:,.1f} s" if run["ended"] else ""
    return f"{run['status']}, begun {began}{took}"
