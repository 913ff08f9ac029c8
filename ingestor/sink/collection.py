"""Making a collection, and refusing one that holds something else; by the same rules everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ingestor.errors import IdentityMismatchError
from ingestor.sink import Target
from ingestor.sink.drift import Settings, differences, flat


@dataclass(frozen=True, slots=True)
class Existing:
    """A collection that is there.

    Attributes:
        vectors: vector name (None: the unnamed one) to (dimension, distance).
        identity: what it was written with; None where nothing says so.
        points: how many it holds.
        indexes: payload fields that have an index, and its kind.
        settings: the others that a configuration may ask for.
    """

    vectors: Mapping[str | None, tuple[int, str]]
    identity: dict[str, Any] | None
    points: int
    indexes: Mapping[str, str]
    settings: Settings

    def differences(self, target: Target) -> list[str]:
        """Where it is not what the configuration asks for."""
        return differences({**self.settings, **flat("payload_indexes", self.indexes)}, target)


class Store(Protocol):
    """The place of one collection, open for making and dropping it; nothing else writes meanwhile."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def about(self) -> str:
        """What holds collections here, and its version."""
        ...

    def read(self) -> Existing | None:
        """What is there."""
        ...

    def identity(self) -> dict[str, Any] | None:
        """What the collection was written with; None where there is none, or nothing says so."""
        ...

    def settings(self) -> Settings:
        """What it was made with, as far as that can be told without opening it."""
        ...

    def create(self, identity: Mapping[str, Any]) -> None:
        """Make the collection and keep its identity, in one step."""
        ...

    def drop(self) -> None:
        """Remove the collection."""
        ...

    def write_identity(self, identity: Mapping[str, Any]) -> None:
        """Replace the identity."""
        ...

    def create_index(self, field: str, kind: str) -> None:
        """Index a payload field."""
        ...


def store_of(target: Target, directories: int = 1) -> Store:
    """Open the place of a collection.

    Args:
        target: which.
        directories: over how many an embedded collection is spread when it is made.
    """
    if target.url:
        from ingestor.sink.server_store import ServerStore

        return ServerStore(target)
    from ingestor.sink.embedded_store import EmbeddedStore

    return EmbeddedStore(target, directories)


def ensure(
    store: Store, target: Target, identity: Mapping[str, Any], *, recreate: bool = False, adopt: bool = False
) -> list[str]:
    """Leave a collection that this run may write to, with its indexes made before its first point.

    Returns:
        Where a collection that was there is not what the configuration asks for.

    Raises:
        IdentityMismatchError: there is one that holds something else; nothing was written.
    """
    found = store.read()
    if found is not None and recreate:
        store.drop()
        found = None
    if found is None:
        store.create(identity)
    else:
        check(found, target, identity, adopt=adopt)
        if found.identity != identity:
            store.write_identity(identity)
    for field, kind in target.indexes.items():
        if found is None or field not in found.indexes:
            store.create_index(field, kind)
    return found.differences(target) if found else []


def check_free(target: Target, identity: Mapping[str, Any]) -> None:
    """See that no collection is there, or one that may be written to.

    Raises:
        IdentityMismatchError: it holds something else; nothing was written.
    """
    with store_of(target) as store:
        found = store.read()
    if found is not None:
        check(found, target, identity)


def check_filled(target: Target, identity: Mapping[str, Any]) -> list[str]:
    """See that a collection is there, and is the one that a state file says has documents in it.

    Returns:
        Where it is not what the configuration asks for.

    Raises:
        IdentityMismatchError: it is gone, belongs to another state file, or has an 8-bit model that the state
            file does not know; nothing was written.
    """
    with store_of(target) as store:
        known, settings = store.identity(), store.settings()
    if known is None:
        raise IdentityMismatchError(
            f"{target}: the state file has documents stored there, but there is no such collection of this"
            " program; nothing was written. Name the collection that belongs to the state file, and its"
            " server or folder; another collection and state, or --recreate, embed everything anew"
        )
    check_state(known, target, identity)
    there = known.get("calibration")
    if there and there != identity.get("calibration"):
        raise IdentityMismatchError(
            f"{target}: it was written with the 8-bit model {there}, which the state file does not know;"
            " nothing was written. `status --rebuild` finds it in the folder `models` beside it, if it"
            " is there; --recreate embeds everything anew"
        )
    return differences(settings, target)


def check(found: Existing, target: Target, identity: Mapping[str, Any], *, adopt: bool = False) -> None:
    """Refuse a collection whose vectors cannot be compared with the run's, or that is of another state file.

    Raises:
        IdentityMismatchError: names what differs.
    """
    _check_vector(found, target)
    known = found.identity
    if known is None:
        if found.points and not adopt:
            raise IdentityMismatchError(
                f"{target}: it holds {found.points} points that were not written by this program; nothing was"
                " written. Use another collection, --adopt to write beside them, or --recreate to drop them"
            )
        return
    if said := differing(known.get("vector"), identity.get("vector")):
        raise IdentityMismatchError(
            f"{target}: it holds vectors of another model ({said}); nothing was written. Use another"
            " collection, or --recreate to embed everything anew"
        )
    if found.points:
        check_state(known, target, identity, adopt=adopt)
        _check_calibration(known, target, identity)


def check_state(
    known: Mapping[str, Any], target: Target, identity: Mapping[str, Any], *, adopt: bool = False
) -> None:
    """Refuse a collection that is of another state file.

    Raises:
        IdentityMismatchError: names both.
    """
    if known.get("state") != identity.get("state") and not adopt:
        raise IdentityMismatchError(
            f"{target}: it was written from another state file (id {known.get('state')}, not"
            f" {identity.get('state')}); nothing was written. Use that state file; if it is lost,"
            " `status --rebuild` makes it again. --adopt takes the collection over and embeds all anew;"
            " --recreate drops it"
        )


def _check_vector(found: Existing, target: Target) -> None:
    there, wanted = found.vectors.get(target.vector_name), (target.dimension, target.distance)
    if there == wanted:
        return
    if there is None:
        name = (
            "one unnamed vector" if target.vector_name is None else f"a vector named {target.vector_name!r}"
        )
        has = ", ".join("an unnamed one" if key is None else repr(key) for key in found.vectors) or "none"
        problem = f"the run needs {name}, the collection has {has}"
    else:
        problem = (
            f"its vectors are {there[1]} with {there[0]} numbers, the run's {wanted[1]} with {wanted[0]}"
        )
    raise IdentityMismatchError(
        f"{target}: {problem}; nothing was written. Use another collection, or --recreate"
    )


def _check_calibration(known: Mapping[str, Any], target: Target, identity: Mapping[str, Any]) -> None:
    """Two models of eight bits, made of the same one with other chunks, are two models."""
    there, here = known.get("calibration"), identity.get("calibration")
    if here is not None and there != here:
        raise IdentityMismatchError(
            f"{target}: it was written with the 8-bit model {there}, which the state file does not know, so"
            f" the run has made another ({here}); nothing was written. Use the state file that it was written"
            " from, or --recreate to embed everything anew"
        )


def differing(there: Mapping[str, Any] | None, here: Mapping[str, Any] | None) -> str:
    """What differs between two vector identities, in words; "" where they are the same."""
    there, here = there or {}, here or {}
    names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    return "; ".join(
        f"{name}: {_word(name, there.get(name))} there, {_word(name, here.get(name))} here" for name in names
    )


def _word(name: str, value: Any) -> str:
    """A value of a vector identity; where there is none, what that means."""
    if value is None:
        return "16 or 32 bits" if name == "precision" else "none"
    return repr(value)
