"""What one sink process does in a second, against what one would write by hand.

    python benchmarks/sink.py [--points 20480] [--dimension 1024] [--rounds 7] [--only server|embedded]

server: `ServerSink` to a gRPC server that counts (a process of its own, on another core), against
`QdrantClient.upload_collection` of the same points to the same server, at its default batch size and at ours.
A run frames payloads in its prepare processes; what that takes is told, and counted against the sink in
`ratio_with_framing`.
embedded: `EmbeddedSink`, against a loop over `EdgeShard.update` that builds the same payloads. Both
write into fresh collections, and flush every 16 requests.

Contestants take turns, each round all of them; figures are medians over the rounds, and CPU time is of all
threads of this process. `ratio` is of points a second, `cpu_ratio` of CPU time a point. Prints a JSON line
for each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import grpc
import numpy as np
import qdrant_edge as edge
from qdrant_client import QdrantClient

from ingestor import framing
from ingestor.records import Float32s, Points
from ingestor.sink import Target
from ingestor.sink.collection import store_of
from ingestor.sink.embedded import EmbeddedSink
from ingestor.sink.server import ServerSink

SLOT_ROWS = 2048
REQUEST_POINTS = 256
FLUSH_REQUESTS = 16
TEXT_CHARS = 600
SERVER = Path(__file__).parent / "parts" / "counting.py"
Contestant = Callable[[], None]


class Material:
    """Points in each form that a contestant takes.

    Attributes:
        vectors: float32[n, dimension].
        ids: uint8[n, 16]; `names` are the same as text.
        payloads: as dictionaries.
    """

    def __init__(self, count: int, dimension: int) -> None:
        random = np.random.default_rng(0)
        self.vectors: Float32s = random.normal(size=(count, dimension)).astype(np.float32)
        self.ids = random.integers(0, 256, (count, 16), np.uint8)
        self.names = [str(UUID(bytes=row.tobytes())) for row in self.ids]
        words = [f"word{number}" for number in range(1000)]
        self.payloads = [
            {
                "text": " ".join(random.choice(words, TEXT_CHARS // 8)),
                "document": f"document-{number}",
                "chunk": 0,
                "chunks": 1,
                "hash": f"{number:032x}",
                "title": f"The title of document {number}",
            }
            for number in range(count)
        ]

    def slots(self, framed: list[bytes]) -> Iterator[tuple[Float32s, Points]]:
        """The points as a sink process gets them."""
        for start in range(0, len(framed), SLOT_ROWS):
            rows = slice(start, start + SLOT_ROWS)
            vectors = self.vectors[rows]
            yield vectors, Points(np.arange(len(vectors)), self.ids[rows], framed[rows])


def target_of(dimension: int, **where: Any) -> Target:
    usual: dict[str, Any] = {"url": None, "path": None, "grpc_port": 6334, "api_key": None, "ca_file": None}
    vector = {"vector_name": None, "distance": "Cosine", "dimension": dimension}
    return Target(**(usual | vector | where), timeout_s=60, collection="things")


@contextmanager
def counting_server(core: int) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, SERVER, str(core)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def on_server(material: Material, rounds: int, cores: list[int]) -> dict[str, Any]:
    count, dimension = material.vectors.shape
    framed = [framing.protobuf_payload(payload) for payload in material.payloads]
    framing_us = median(time_of(lambda: frame(material))[1] for _ in range(3)) / count * 1e6
    with counting_server(cores[-1]) as port:
        sink = ServerSink(target_of(dimension, url="http://127.0.0.1", grpc_port=port))
        client = QdrantClient(
            host="127.0.0.1", grpc_port=port, prefer_grpc=True, check_compatibility=False, timeout=60
        )

        def ours() -> None:
            for vectors, points in material.slots(framed):
                assert sink.upsert(vectors, points) == []

        def upload(batch_size: int) -> None:
            client.upload_collection(
                "things",
                vectors=material.vectors,
                payload=material.payloads,
                ids=material.names,
                batch_size=batch_size,
                wait=True,
            )

        def check() -> None:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                assert int(channel.unary_unary("/count/Points", None, None)(b"", timeout=10)) == count

        contestants = {
            "ours": ours,
            "upload_collection_64": lambda: upload(64),
            "upload_collection_256": lambda: upload(REQUEST_POINTS),
        }
        found = take_turns(contestants, count, rounds, check)
        in_flight = sink.in_flight.limit
        sink.close()
        client.close()
    mine, *peers = found.values()
    peer = max(one["points_per_s"] for one in peers)
    with_framing = 1 / (1 / mine["points_per_s"] + framing_us / 1e6)
    return {
        "ratio": round(mine["points_per_s"] / peer, 2),
        "ratio_with_framing": round(with_framing / peer, 2),
        "cpu_ratio": round(min(one["cpu_us_a_point"] for one in peers) / mine["cpu_us_a_point"], 2),
        "framing_us": round(framing_us, 2),
        "in_flight": in_flight,
        **found,
    }


def frame(material: Material) -> None:
    for payload in material.payloads:
        framing.protobuf_payload(payload)


def on_engine(material: Material, rounds: int) -> dict[str, Any]:
    count, dimension = material.vectors.shape
    framed = [framing.json_payload(payload) for payload in material.payloads]

    def ours() -> None:
        with tempfile.TemporaryDirectory(prefix="ingestor-sink-") as folder:
            target = target_of(dimension, path=folder)
            with store_of(target) as store:
                store.create({})
            sink = EmbeddedSink(target, 0)
            for number, (vectors, points) in enumerate(material.slots(framed)):
                assert sink.upsert(vectors, points) == []
                if (number + 1) * SLOT_ROWS % (FLUSH_REQUESTS * REQUEST_POINTS) == 0:
                    sink.flush()
            sink.flush()
            assert sink.count() == count
            sink.close()

    def by_hand() -> None:
        with tempfile.TemporaryDirectory(prefix="ingestor-sink-") as folder:
            params = edge.EdgeVectorParams(size=dimension, distance=edge.Distance.Cosine)
            shard = edge.EdgeShard.create(folder, edge.EdgeConfig(vectors=params))
            kind = edge.PayloadSchemaType.Keyword
            shard.update(edge.UpdateOperation.create_field_index("document", kind))
            for number, start in enumerate(range(0, count, REQUEST_POINTS)):
                batch = [
                    edge.Point(material.names[i], memoryview(material.vectors[i]), dict(material.payloads[i]))  # type: ignore[arg-type]
                    for i in range(start, min(start + REQUEST_POINTS, count))
                ]
                shard.update(edge.UpdateOperation.upsert_points(batch))
                if (number + 1) % FLUSH_REQUESTS == 0:
                    shard.flush()
            shard.flush()
            assert shard.count(edge.CountRequest(exact=True)) == count
            shard.close()

    found = take_turns({"ours": ours, "by_hand": by_hand}, count, rounds)
    mine, peer = found["ours"], found["by_hand"]
    return {
        "ratio": round(mine["points_per_s"] / peer["points_per_s"], 2),
        "cpu_ratio": round(peer["cpu_us_a_point"] / mine["cpu_us_a_point"], 2),
        **found,
    }


def take_turns(
    contestants: dict[str, Contestant], points: int, rounds: int, check: Callable[[], None] = lambda: None
) -> dict[str, dict[str, float]]:
    """Medians of each contestant's points a second, and of its CPU time a point."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            taken = time_of(work)
            check()
            if number:  # the first round warms up
                times[name].append(taken)
    return {
        name: {
            "points_per_s": round(points / median(wall for wall, _ in taken)),
            "cpu_us_a_point": round(median(cpu for _, cpu in taken) / points * 1e6, 2),
        }
        for name, taken in times.items()
    }


def time_of(work: Contestant) -> tuple[float, float]:
    """Seconds by the clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=20_480)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["server", "embedded"])
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    material = Material(options.points, options.dimension)
    about = {
        "points": options.points,
        "dimension": options.dimension,
        "payload_bytes": len(framing.json_payload(material.payloads[0])),
        "rounds": options.rounds,
        "machine": {
            "cores": len(cores),
            "python": platform.python_version(),
            **{name: version(name) for name in ("grpcio", "qdrant-client", "qdrant-edge-py")},
        },
    }
    if options.only != "embedded":
        print(json.dumps({"benchmark": "sink_server", **on_server(material, options.rounds, cores), **about}))
    if options.only != "server":
        print(json.dumps({"benchmark": "sink_embedded", **on_engine(material, options.rounds), **about}))


if __name__ == "__main__":
    main()
