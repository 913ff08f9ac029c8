"""Where the points go: locks, alias, server or engine, the collection, and whose it is."""

from __future__ import annotations

from pathlib import Path

from ingestor.commands.common import alone
from ingestor.commands.looks import OK, WARN, Known, Look
from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.lock import A_RUN_CAN_WAIT, Lock
from ingestor.running import wiring
from ingestor.running.generations import stand
from ingestor.sink import check_target, collection
from ingestor.sink.remarks import remarks
from ingestor.state.file import check_version
from ingestor.state.lookup import read_status


def state(settings: Settings) -> Look:
    """Whether the state file is one, and what it knows."""
    path = Path(settings.state)
    if not path.exists():
        yield OK, f"{path}: not there yet"
        return
    check_version(path)
    found = read_status(path)
    said = f"{path}: {found['documents']:,} documents"
    if found["failures"]:
        yield WARN, f"{said}, and {found['failures']:,} open failures; `failures` lists them"
    else:
        yield OK, said


def locks(settings: Settings) -> Look:
    """Whether a run could begin."""
    for path in filter(None, (wiring.state_lock(settings), wiring.engine_lock(settings))):
        if path.exists():
            Lock.acquire(path, advice=A_RUN_CAN_WAIT).release()
    yield OK, "free"


def alias(known: Known) -> Look:
    """What the alias points at; from here on the settings name the collection itself."""
    assert known.spec
    found = stand(known.settings, known.spec)
    known.settings = found.settings
    place = "live" if found.is_live else "to be promoted when it is built"
    name = found.settings.qdrant.collection
    yield OK, f"{found.alias} points at {found.live or 'nothing yet'}; this configuration is {name}, {place}"


def server(settings: Settings, spec: ModelSpec) -> Look:
    """Whether the server, or the engine, can be used."""
    target = wiring.target_of(settings, spec)
    with alone(settings):
        yield OK, check_target(target)
    for _, detail in remarks(target):
        yield WARN, detail


def stored(settings: Settings, spec: ModelSpec) -> Look:
    """Whose the collection is, and where it is not what the configuration asks for."""
    target, path = wiring.target_of(settings, spec), Path(settings.state)
    status = read_status(path) if path.exists() else {}
    with alone(settings), collection.store_of(target) as store:
        found = store.read()
    here = wiring.identity_of(settings, spec)
    wiring.check_known(settings, status.get("identity"), here["vector"])
    if found is None and not status.get("documents"):
        yield OK, "not there yet; a run makes it"
        return
    known = status.get("state_id")
    if found is None:
        collection.check_filled(target, {**here, "state": known})
        return
    collection.check(found, target, {**here, "state": known})
    yield OK, f"{found.points:,} points of this model"
    for difference in found.differences(target):
        yield WARN, f"{difference}; a run leaves it so, --recreate makes it anew"
