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
    """All collections of one name that this program wrote, and where the alias points.

    Attributes:
        live: what the alias points at, whoever made it; None where there is no such alias.
    """

    live: str | None
    generations: tuple[Generation, ...]

    def find(self, name: str | None) -> Generation | None:
        return next((one for one in self.generations if one.name == name), None)

    def earlier(self, turn: int) -> list[Generation]:
        """Those that were live before that turn, the latest first."""
        found = [one for one in self.generations if 0 < one.turn < turn]
        return sorted(found, key=lambda one: one.turn, reverse=True)

    def place(self, generation: Generation) -> str:
        """What one of them is to the alias, in words."""
        if generation.name == self.live:
            return "live"
        return "was live" if generation.turn else "not promoted yet"

    @property
    def next_turn(self) -> int:
        return 1 + max((one.turn for one in self.generations), default=0)
