"""A gRPC server that takes upserts, counts their points and answers that they are completed; nothing else.

counting.py CORE
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import grpc
from qdrant_client import grpc as qdrant

POINTS = 0x1A
"""The tag of a point in `UpsertPoints`; its other fields are a length and bytes, too, or a number."""
NUMBER = 0
DONE = qdrant.PointsOperationResponse(
    result=qdrant.UpdateResult(operation_id=1, status=qdrant.UpdateStatus.Completed)
).SerializeToString()


def count_points(message: bytes) -> int:
    """How many there are; looks at the outermost fields only."""
    at, found = 0, 0
    while at < len(message):
        tag, at = message[at], at + 1
        value, shift = 0, 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        found += tag == POINTS
        at += 0 if tag & 7 == NUMBER else value
    return found


class Counting(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Any method but `/count/Points` is an upsert."""

    def __init__(self) -> None:
        self._points = 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        told = details.method == "/count/Points"
        return grpc.unary_unary_rpc_method_handler(self._tell if told else self._take)

    async def _take(self, message: bytes, _: object) -> bytes:
        self._points += count_points(message)
        return DONE

    async def _tell(self, _: bytes, __: object) -> bytes:
        points, self._points = self._points, 0
        return str(points).encode()


async def serve() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([Counting()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    asyncio.run(serve())
