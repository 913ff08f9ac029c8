"""What the state file knows of the collection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ingestor.commands.rebuild import rebuild_state
from ingestor.config.settings import Settings
from ingestor.errors import SinkError
from ingestor.running import wiring
from ingestor.running.generations import stand, stand_alone
from ingestor.state.lookup import read_status
from ingestor.watching.report import LIMITED


def status(settings: Settings) -> dict[str, Any]:
    """Read the state file.

    Raises:
        NothingThereError: there is none yet.
        ConfigError: it is something else.
    """
    behind: dict[str, Any] = {}
    if settings.qdrant.alias is not None:
        settings, behind = behind_alias(settings)
    qdrant = settings.qdrant
    where = {"state": settings.state, "target": qdrant.target, "collection": qdrant.collection}
    return where | behind | read_status(Path(settings.state))


def behind_alias(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """The settings of this configuration's collection; and which one is live, and what else there is, where
    the server can be asked.
    """
    spec, alias = wiring.spec_of(settings), settings.qdrant.alias
    try:
        standing = stand(settings, spec)
    except SinkError as error:
        return stand_alone(settings, spec), {
            "alias": alias,
            "live": None,
            "generations": None,
            "error": str(error),
        }
    family = standing.family
    others = [
        {
            "collection": one.name,
            "place": family.place(one),
            "model": one.identity["vector"]["model"],
            "precision": one.identity["vector"].get("precision"),
        }
        for one in family.generations
    ]
    return standing.settings, {"alias": alias, "live": standing.live, "generations": others}


def rebuild(settings: Settings) -> Iterator[str]:
    """Make the state file again from the collection; says what was made."""
    made = rebuild_state(settings)
    yield f"state made again: {made.documents:,} documents of {made.points:,} points"
    if made.incomplete:
        yield f"{made.incomplete:,} of them are incomplete; the next run that reads them embeds them again"
    if made.foreign:
        yield f"{made.foreign:,} points were not written by this program, and were passed over"
    if made.lost:
        yield (
            f"the 8-bit model {made.lost} is not in {wiring.kept_models(settings)}: bring it back there and"
            " rebuild again, for without it runs and searches refuse the collection"
        )
    if made.kept:
        yield f"the state file from before is kept as {made.kept}"


def as_json(found: dict[str, Any]) -> Iterator[str]:
    yield json.dumps(found)


def as_text(found: dict[str, Any]) -> Iterator[str]:
    yield f"collection  {found['collection']}, {found['target']}"
    if alias := found.get("alias"):
        yield f"alias       {alias}, {found.get('error') or 'points at ' + (found['live'] or 'nothing yet')}"
        for one in found["generations"] or ():
            here = " (this configuration)" if one["collection"] == found["collection"] else ""
            form = f", {one['precision']}" if one["precision"] else ""
            yield f"            {one['collection']}: {one['place']}, {one['model']}{form}{here}"
    yield f"state       {found['state']}"
    yield f"documents   {found['documents']:,}"
    yield f"points      {found['points']:,}"
    yield f"failures    {found['failures']:,} open"
    yield f"model       {model(found['identity'], found['model'])}"
    yield f"last run    {last_run(found['last_run'])}"


def model(identity: dict[str, Any] | None, name: str | None) -> str:
    """What the settings called it, and the hash of its weights where the collection knows it by that; and
    whether it is in eight bits.
    """
    if identity is None:
        return "not known yet"
    known, form = str(identity["model"]), f", {identity['precision']}" if "precision" in identity else ""
    return (known if name in (None, known) else f"{name} ({known})") + form


def last_run(run: dict[str, Any] | None) -> str:
    if run is None:
        return "none yet"
    began = datetime.fromtimestamp(run["started"]).astimezone().isoformat(" ", "seconds")
    took = f", {run['ended'] - run['started']:,.1f} s" if run["ended"] else ""
    limited = "".join(f"; {each['detail']}" for each in run["warnings"] if each["kind"] == LIMITED)
    return f"{run['status']}, begun {began}{took}{limited}"
