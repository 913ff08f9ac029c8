"""The collections of one name behind an alias of a server: which there are, which is live, and switching."""

from __future__ import annotations

import re
from typing import Any, Self

from qdrant_client import grpc as qdrant
from qdrant_client.conversions.conversion import GrpcToRest, payload_to_grpc

from ingestor.errors import ConfigError, SinkError
from ingestor.sink import RefusedError, Target
from ingestor.sink.connection import Connection, metadata_of
from ingestor.sink.generation import SUFFIX, Family, Generation

KEPT = "ingestor_alias"
"""Key in a collection's metadata of when it was live."""


class ServerAliases:
    """One alias, over a connection of its own.

    Args:
        target: whose collection is the name that the configuration gives.
        alias: what searches ask for.
    """

    def __init__(self, target: Target, alias: str) -> None:
        self._target = target
        self._alias = alias
        self._connection = Connection(target)

    def __enter__(self) -> Self:
        try:
            self._connection.greet()
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def family(self) -> Family:
        """What there is.

        Raises:
            ConfigError: there is a collection of the alias's own name.
        """
        listed = self._ask(self._connection.collections.List, qdrant.ListCollectionsRequest())
        names = [one.name for one in listed.collections]
        if self._alias in names:
            raise ConfigError(
                f"qdrant.alias: {self._alias!r} is the name of a collection at {self._target.url}, so it"
                " cannot be an alias; name another one, or drop that collection"
            )
        ours = re.compile(re.escape(self._target.collection) + f"({SUFFIX})?")
        found = [self._generation(name) for name in names if ours.fullmatch(name)]
        return Family(self._alias, self._aliases(), tuple(one for one in found if one is not None))

    def point_at(self, name: str) -> None:
        """Let the alias point at a collection, in one step: each search sees the old one or the new one."""
        actions = []
        if self._alias in self._aliases():
            old = qdrant.DeleteAlias(alias_name=self._alias)
            actions.append(qdrant.AliasOperations(delete_alias=old))
        new = qdrant.CreateAlias(alias_name=self._alias, collection_name=name)
        actions.append(qdrant.AliasOperations(create_alias=new))
        self._ask(self._connection.collections.UpdateAliases, qdrant.ChangeAliases(actions=actions))

    def mark(self, name: str, turn: int) -> None:
        """Note in a collection when it is live."""
        metadata = payload_to_grpc({KEPT: {"alias": self._alias, "turn": turn}})
        request = qdrant.UpdateCollection(collection_name=name, metadata=metadata)
        self._ask(self._connection.collections.Update, request)

    def drop(self, name: str) -> None:
        """Remove a collection."""
        self._ask(self._connection.collections.Delete, qdrant.DeleteCollection(collection_name=name))

    def _aliases(self) -> dict[str, str]:
        found = self._ask(self._connection.collections.ListAliases, qdrant.ListAliasesRequest()).aliases
        return {one.alias_name: one.collection_name for one in found}

    def _generation(self, name: str) -> Generation | None:
        request = qdrant.GetCollectionInfoRequest(collection_name=name)
        info = self._ask(self._connection.collections.Get, request).result
        identity = metadata_of(info)
        if identity is None:
            return None
        kept = GrpcToRest.convert_payload(info.config.metadata).get(KEPT) or {}
        return Generation(name, identity, int(kept.get("turn", 0)))

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return self._connection.ask(method, request)
        except RefusedError as error:
            raise SinkError(f"alias {self._alias!r}: the server refuses it: {error.detail}") from error
