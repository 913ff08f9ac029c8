"""What is framed by hand is read back by the official protobuf classes."""

from __future__ import annotations

import tracemalloc
import uuid
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import grpc
from qdrant_client.conversions.conversion import payload_to_grpc

from ingestor.framing import json_payload, protobuf_payload, upsert_points

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)
PAYLOADS = st.dictionaries(TEXT, VALUES, max_size=6)


@pytest.mark.whole
@given(PAYLOADS)
def test_a_payload_reads_back_as_the_client_would_write_it(payload: dict[str, Any]) -> None:
    point = grpc.PointStruct.FromString(protobuf_payload(payload))
    assert point == grpc.PointStruct(payload=payload_to_grpc(payload))


def test_json_payloads_take_no_more_memory_than_their_bytes() -> None:
    tracemalloc.start()
    payloads = [json_payload({"text": "x" * 1500, "chunk": number}) for number in range(100)]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1.2 * sum(map(len, payloads))


@given(PAYLOADS)
def test_json_payload_reads_back(payload: dict[str, Any]) -> None:
    assert orjson.loads(json_payload(payload)) == payload


@pytest.mark.whole
@given(
    st.lists(st.tuples(st.uuids(), PAYLOADS), max_size=5),
    st.integers(1, 700),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
)
def test_points_read_back(
    points: list[tuple[uuid.UUID, dict[str, Any]]], dimension: int, name: str | None
) -> None:
    vectors = np.random.default_rng(1).normal(size=(len(points), dimension)).astype(np.float32)
    ids = np.frombuffer(b"".join(point[0].bytes for point in points), np.uint8).reshape(-1, 16)
    payloads = [protobuf_payload(point[1]) for point in points]
    message = grpc.UpsertPoints.FromString(upsert_points("räume", ids, payloads, vectors, vector_name=name))
    expected = grpc.UpsertPoints(collection_name="räume", wait=True)
    for (point_id, payload), row in zip(points, vectors, strict=True):
        vector = grpc.Vector(dense=grpc.DenseVector(data=row.tolist()))
        expected.points.add(
            id=grpc.PointId(uuid=str(point_id)),
            payload=payload_to_grpc(payload),
            vectors=grpc.Vectors(vector=vector)
            if name is None
            else grpc.Vectors(vectors=grpc.NamedVectors(vectors={name: vector})),
        )
    assert message == expected


def test_rows_that_are_not_contiguous_are_framed_by_value() -> None:
    vectors = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::2]
    ids = np.zeros((2, 16), np.uint8)
    message = grpc.UpsertPoints.FromString(upsert_points("c", ids, [b"", b""], vectors))
    assert [list(point.vectors.vector.dense.data) for point in message.points] == vectors.tolist()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_floats_that_are_not_finite_become_null_in_both(number: float) -> None:
    assert orjson.loads(json_payload({"a": [number]})) == {"a": [None]}
    assert protobuf_payload({"a": [number]}) == protobuf_payload({"a": [None]})


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"a": 2**63}, OverflowError),
        ({"a": -(2**63) - 1}, OverflowError),
        ({"a": b"x"}, TypeError),
        ({"a": {1: 2}}, TypeError),
        ({"a": "\ud800"}, UnicodeEncodeError),
    ],
)
def test_what_cannot_be_framed_is_refused(payload: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        protobuf_payload(payload)
