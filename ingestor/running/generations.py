"""Which collection and state file a configuration's documents go to, where searches ask for an alias.

Each identity (of vectors, and of how records are read and cut) has a collection and a state file of its own,
named after a hash of it. So an interrupted build goes on where it was, and what is live stays as it is. See
docs/adr/0007-collections-behind-an-alias.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.errors import NothingThereError
from ingestor.running import wiring
from ingestor.sink.generation import Family

if TYPE_CHECKING:
    from ingestor.sink.server_aliases import ServerAliases


@dataclass(frozen=True, slots=True)
class Standing:
    """A configuration's place among the collections behind its alias.

    Attributes:
        settings: its own, with the names of the collection and state file that have its identity.
        base: as they were written.
        family: all collections behind the alias.
    """

    settings: Settings
    base: Settings
    family: Family

    @property
    def alias(self) -> str | None:
        return self.base.qdrant.alias

    @property
    def live(self) -> str | None:
        """What the alias points at."""
        return self.family.live

    @property
    def is_live(self) -> bool:
        """Whether searches see this configuration's collection."""
        return self.alias is None or self.live == self.settings.qdrant.collection

    def of_live(self) -> Settings:
        """The settings for what searches see.

        Raises:
            NothingThereError: the alias points at nothing.
        """
        if self.alias is None:
            return self.settings
        if self.live is None:
            raise NothingThereError(f"alias {self.alias!r} points at nothing yet; run, then promote")
        return named(self.base, self.live)


def stand(settings: Settings, spec: ModelSpec) -> Standing:
    """Find out; asks the server where there is an alias.

    Raises:
        ConfigError: the alias cannot be one.
        SinkError: the server cannot be asked.
    """
    if settings.qdrant.alias is None:
        return Standing(settings, settings, Family(None, {}, ()))
    identity = wiring.identity_of(settings, spec)
    with aliases_of(settings) as aliases:
        family = aliases.family()
    ours = [one.name for one in family.generations if _same(one.identity, identity)]
    derived = name_of(settings.qdrant.collection, identity)
    # a collection made before there was an alias has its plain name
    name = next((one for one in (family.live, derived, *ours) if one in ours), derived)
    return Standing(named(settings, name), settings, family)


def stand_alone(settings: Settings, spec: ModelSpec) -> Settings:
    """The settings with the names of what they write to, as far as can be told without the server."""
    derived = named(settings, name_of(settings.qdrant.collection, wiring.identity_of(settings, spec)))
    return derived if Path(derived.state).exists() else named(settings, settings.qdrant.collection)


def own(settings: Settings) -> Settings:
    """The settings with the names of what they write to; as they are where there is no alias."""
    return stand(settings, wiring.spec_of(settings)).settings if settings.qdrant.alias else settings


def aliases_of(settings: Settings) -> ServerAliases:
    """The alias that the settings name, on their server."""
    from ingestor.sink.server_aliases import ServerAliases

    return ServerAliases(wiring.target_of(settings, None), settings.qdrant.alias or "")


def named(base: Settings, name: str) -> Settings:
    """The settings of one collection behind the alias; its state file is named like it."""
    suffix = name.removeprefix(base.qdrant.collection)
    state = Path(base.state)
    qdrant = base.qdrant.model_copy(update={"collection": name, "alias": None})
    return base.model_copy(
        update={"qdrant": qdrant, "state": str(state.with_name(state.stem + suffix + state.suffix))}
    )


def name_of(base: str, identity: Mapping[str, Any]) -> str:
    """The name of the collection with this identity."""
    packed = orjson.dumps(
        {"vector": identity["vector"], "record": identity["record"]}, option=orjson.OPT_SORT_KEYS
    )
    return f"{base}__{hashlib.blake2b(packed, digest_size=4).hexdigest()}"


def _same(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    return all(there.get(part) == here[part] for part in ("vector", "record"))
