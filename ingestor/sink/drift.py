"""Where a collection that is there is not what the configuration asks for. Told, and never changed: an index
may take hours to build again, and what holds it may be shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ingestor.sink import Target

PLAIN = ("on_disk", "datatype", "shard_number", "replication_factor", "write_consistency_factor")
Settings = Mapping[str, Any]
"""Settings by their names under `qdrant`, `hnsw.m` for instance; None where nothing was set."""


def asked_for(target: Target) -> dict[str, Any]:
    """What the configuration says; what it leaves open is not in here."""
    plain = {name: getattr(target, name) for name in PLAIN}
    found = {name: value for name, value in plain.items() if value is not None}
    found |= flat("hnsw", target.hnsw)
    for kind, options in (target.quantization or {}).items():
        found |= {"quantization": kind} | flat(f"quantization.{kind}", options or {})
    return found | flat("payload_indexes", target.payload_indexes)


def flat(section: str, settings: Settings) -> dict[str, Any]:
    """The settings of a section by their full names."""
    return {f"{section}.{name}": value for name, value in settings.items() if value is not None}


def differences(there: Settings, target: Target) -> list[str]:
    """Each setting that is another one in the collection; a payload index that is missing will be made.

    Args:
        there: the collection's settings, as far as they are known.
    """
    return list(_differences(there, asked_for(target)))


def _differences(there: Settings, here: Settings) -> Iterator[str]:
    unindexed = there.get("hnsw.m") == 0
    if unindexed and "hnsw.m" not in here:
        yield "qdrant.hnsw.m: 0 there, so no index is built; not set here"
    for name, wanted in here.items():
        found = there.get(name)
        if name.startswith("payload_indexes.") and found is None:
            continue
        if name.count(".") == 2 and there.get("quantization") != here["quantization"]:
            continue  # of another kind: there is nothing to compare
        if not same(found, wanted):
            yield f"qdrant.{name}: {word(found)} there, {word(wanted)} here"


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool):
        return bool(found) == wanted
    if isinstance(wanted, float):
        return isinstance(found, float) and math.isclose(found, wanted, rel_tol=1e-6)  # float32 there
    if isinstance(wanted, str):
        return str(found).replace("_", "").lower() == wanted.replace("_", "").lower()
    return bool(found == wanted)


def word(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"{value:.6g}"  # float32 there
    return str(value).lower() if isinstance(value, bool) else str(value)
