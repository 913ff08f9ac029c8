"""The collections of one name behind an alias, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUFFIX = r"__[0-9a-f]{8}"
"""Follows the name that the configuration gives, in the names of collections that are built beside others."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A collection that is live, was live, or is to be.

    Attributes:
        identity: what it was written with.
        turn: greater than that of all that were live before it; 0 where it never was.
    """

    name: str
    identity: Mapping[str, Any]
    turn: int


@dataclass(frozen=True, slots=True)
class Family:
    """All collections of one name that this program wrote, and where aliases point.

    Attributes:
        alias: the one that searches ask for.
        aliases: all of the server's, and what they point at.
    """

    alias: str | None
    aliases: Mapping[str, str]
    generations: tuple[Generation, ...]

    @property
    def live(self) -> str | None:
        """What the alias points at, whoever made it; None where there is no such alias."""
        return self.aliases.get(self.alias or "")

    def find(self, name: str | None) -> Generation | None:
        return next((one for one in self.generations if one.name == name), None)

    def earlier(self) -> list[Generation]:
        """Those that were live before what is, the latest first."""
        live = self.find(self.live)
        turn = live.turn if live else self.next_turn
        found = [one for one in self.generations if 0 < one.turn < turn]
        return sorted(found, key=lambda one: one.turn, reverse=True)

    def superfluous(self, keep: int) -> list[Generation]:
        """Those that were live longer ago than the ones to be kept, and that no other alias points at."""
        return [one for one in self.earlier()[keep:] if one.name not in self.aliases.values()]

    def place(self, generation: Generation) -> str:
        """What one of them is to the alias, in words."""
        if generation.name == self.live:
            return "live"
        return "was live" if generation.turn else "not promoted yet"

    @property
    def next_turn(self) -> int:
        return 1 + max((one.turn for one in self.generations), default=0)
