"""The server sink while things go wrong: what is stored at the end is exactly what was to be stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingestor.errors import ConfigError, ResourceError, SinkError
from ingestor.sink import POINTS_PER_REQUEST, Refusal, Target
from ingestor.sink.patience import Patience, Wait
from ingestor.sink.server import ServerSink
from tests.proxies import Proxy
from tests.running import eventually
from tests.servers import QdrantServer
from tests.sinks import ids_of, make, payload_of, points_of, served, stored, vectors_of

pytestmark = pytest.mark.whole

QUICK = Patience(seconds=20, full_s=3, full_pause_s=0.2)
LIMITED = {"code": "RESOURCE_EXHAUSTED", "metadata": {"retry-after": "1"}}
FULL = {"code": "RESOURCE_EXHAUSTED", "metadata": {"qdrant-insufficient-storage": "1"}}
WAL_FULL = {
    "code": "INTERNAL",
    "detail": "Service internal error: No space left on device: WAL buffer size exceeds available disk space",
}
NO_MEMORY = {"code": "INTERNAL", "detail": "Service internal error: Out of memory, free: 4096, IO Error"}
NODES_AWAY = [
    "1 out of 3 shards failed to apply operation. First error captured: Service internal error: Tonic status"
    " error: status: Unavailable, message: 'tcp connect error'",
    "The replica set for shard 2 on peer 7 has no active replica",
    "Failed to apply operation to at least one `Active` replica. Consistency of this update is not"
    " guaranteed. Please retry. ",
]
Upsert = Callable[..., list[Refusal]]


@pytest.fixture
def target(qdrant_server: QdrantServer) -> Target:
    """A collection that is there, and empty."""
    target = served(qdrant_server)
    make(target)
    return target


@pytest.fixture
def waits() -> list[Wait]:
    """What a sink has told that it waits for."""
    return []


@contextmanager
def sink_of(target: Target, waits: list[Wait], patience: Patience = QUICK) -> Iterator[ServerSink]:
    sink = ServerSink(target, patience=patience, tell=lambda wait: waits.append(wait) if wait else None)
    yield sink
    sink.close()


@pytest.fixture
def sink(target: Target, waits: list[Wait]) -> Iterator[ServerSink]:
    with sink_of(target, waits) as sink:
        yield sink


def write(sink: ServerSink, count: int) -> list[Refusal]:
    return sink.upsert(vectors_of(count), points_of(sink.target, count))


def holds(target: Target, count: int, without: tuple[int, ...] = ()) -> bool:
    """Whether the collection has these points and no others, with their vectors and payloads."""
    found, ids, vectors = stored(target), ids_of(count), vectors_of(count)
    wanted = [number for number in range(count) if number not in without]
    assert found.keys() == {ids[number].tobytes() for number in wanted}
    for number in wanted:
        vector, payload = found[ids[number].tobytes()]
        assert payload == payload_of(number), number
        np.testing.assert_allclose(vector, vectors[number], atol=1e-6, err_msg=str(number))
    return True


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"code": "UNAVAILABLE"}, "server_unavailable"),
        ({"code": "UNAVAILABLE", "after": True}, "server_unavailable"),
        ({"code": "DEADLINE_EXCEEDED"}, "server_unavailable"),
        ({"code": "DEADLINE_EXCEEDED", "after": True}, "server_unavailable"),
        ({"code": "FAILED_PRECONDITION"}, "server_unavailable"),
        ({"code": "INTERNAL"}, "server_failed"),
        (LIMITED, "rate_limited"),
        (FULL, "server_full"),
        (WAL_FULL, "server_full"),
        (NO_MEMORY, "server_full"),
        ({"status": "WaitTimeout"}, "server_unavailable"),
        ({"status": "Acknowledged"}, "server_unavailable"),
    ],
)
def test_what_may_pass_is_tried_again(
    sink: ServerSink, waits: list[Wait], qdrant_server: QdrantServer, fault: dict, kind: str
) -> None:
    qdrant_server.fault(**fault)
    assert write(sink, 10) == []
    assert qdrant_server.calls() == 2
    assert [wait.kind for wait in waits] == [kind]
    assert holds(sink.target, 10)


def test_a_request_that_is_applied_after_its_deadline_is_written_once(
    target: Target, waits: list[Wait], qdrant_server: QdrantServer
) -> None:
    qdrant_server.fault(delay=1.0)
    with sink_of(replace(target, timeout_s=0.3), waits) as sink:
        assert write(sink, 10) == []
    assert qdrant_server.calls() >= 2
    assert holds(target, 10)


def test_a_rate_limit_is_kept_to_without_losing_patience(
    target: Target, waits: list[Wait], qdrant_server: QdrantServer
) -> None:
    """As strict mode does it: so many points at once, and so many more a second."""
    qdrant_server.fault(bucket=300, per_s=400)
    with sink_of(target, waits, Patience(seconds=0.5)) as sink:
        assert write(sink, 600) == []
    assert {wait.kind for wait in waits} == {"rate_limited"}
    assert sum(wait.seconds for wait in waits) > 0.5  # than which there is no more patience
    assert holds(target, 600)


def test_several_requests_that_are_limited_at_once_wait_once(
    sink: ServerSink, waits: list[Wait], qdrant_server: QdrantServer
) -> None:
    for _ in range(3):
        qdrant_server.fault(**LIMITED)
    assert write(sink, 3 * POINTS_PER_REQUEST) == []
    assert sum(wait.seconds for wait in waits) < 2.0
    assert holds(sink.target, 3 * POINTS_PER_REQUEST)


def test_a_rate_limit_longer_than_patience_is_an_error_that_says_so(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    qdrant_server.fault(code="RESOURCE_EXHAUSTED", metadata={"retry-after": "3000"})
    with pytest.raises(SinkError, match="asks to wait 3000 s, and a run waits 120 s at most"):
        write(sink, 1)
    assert qdrant_server.calls() == 1


def test_a_batch_larger_than_the_rate_limit_is_split(sink: ServerSink, qdrant_server: QdrantServer) -> None:
    qdrant_server.fault(bucket=100, per_s=10_000)
    assert write(sink, 250) == []
    assert holds(sink.target, 250)


@pytest.mark.parametrize(
    "fault",
    [
        {"code": "RESOURCE_EXHAUSTED", "detail": "Received message larger than max"},
        {"code": "UNKNOWN", "detail": "Received http2 header with status: 413"},
        {
            "code": "INVALID_ARGUMENT",
            "detail": 'Bad request: Limit exceeded 40 > 20 for "upsert limit". Help: Reduce the'
            ' "upsert limit" parameter to or below 20.',
        },
    ],
    ids=["gRPC", "proxy", "strict mode"],
)
def test_a_message_too_large_for_what_lies_between_is_split(
    sink: ServerSink, qdrant_server: QdrantServer, fault: dict
) -> None:
    qdrant_server.fault(most=20, **fault)
    assert write(sink, 40) == []
    before = qdrant_server.calls()
    assert before == 3
    assert write(sink, 40) == []
    assert qdrant_server.calls() <= before + 3  # none of them in vain: it has learned
    assert holds(sink.target, 40)


def test_one_large_point_does_not_make_all_requests_small(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    payloads = [payload_of(number) for number in range(200)]
    payloads[77]["text"] = "x" * 2_000_000
    qdrant_server.fault(code="RESOURCE_EXHAUSTED", document="d77")
    points = points_of(sink.target, 200, payloads)
    assert [row for row, *_ in sink.upsert(vectors_of(200), points)] == [77]
    before = qdrant_server.calls()
    assert sink.upsert(vectors_of(200), points_of(sink.target, 200).slice(0, 70)) == []
    assert qdrant_server.calls() == before + 1


def test_guilty_points_are_found_and_the_others_written(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    for document in ("d7", "d100", "d299"):
        qdrant_server.fault(code="INVALID_ARGUMENT", document=document, detail=f"no {document}")
    assert write(sink, 300) == [
        (7, "refused", "no d7"),
        (100, "refused", "no d100"),
        (299, "refused", "no d299"),
    ]
    assert holds(sink.target, 300, without=(7, 100, 299))


def test_a_server_that_refuses_every_point_ends_the_run(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    qdrant_server.fault(code="INVALID_ARGUMENT", every=True, detail="Forbidden: max_points_count is reached")
    with pytest.raises(
        SinkError, match=r"collection .things. at .* refuses every point: Forbidden: max_points_count"
    ):
        write(sink, 20)


def test_room_that_somebody_makes_is_waited_for(
    sink: ServerSink, waits: list[Wait], qdrant_server: QdrantServer
) -> None:
    qdrant_server.fault(every=True, **FULL)
    mending = threading.Timer(1.0, qdrant_server.mend)
    mending.start()
    assert write(sink, 3 * POINTS_PER_REQUEST) == []
    mending.join()
    assert {wait.kind for wait in waits} == {"server_full"}
    assert holds(sink.target, 3 * POINTS_PER_REQUEST)


@pytest.mark.parametrize("fault", [FULL, WAL_FULL], ids=["quota", "disk"])
def test_a_server_that_stays_full_ends_the_run(
    target: Target, waits: list[Wait], qdrant_server: QdrantServer, fault: dict
) -> None:
    qdrant_server.fault(every=True, **fault)
    patience = Patience(full_s=0.5, full_pause_s=0.1)
    with (
        sink_of(target, waits, patience) as sink,
        pytest.raises(ResourceError, match=r"no room left.*nothing is lost"),
    ):
        write(sink, 1)
    assert len(waits) >= 4
    assert holds(target, 0)


@pytest.mark.parametrize("deletes", [False, True], ids=["upsert", "delete"])
def test_a_connection_cut_in_the_middle_loses_nothing(
    target: Target, waits: list[Wait], deletes: bool
) -> None:
    with Proxy(target.grpc_port) as proxy, sink_of(replace(target, grpc_port=proxy.port), waits) as sink:
        proxy.cut_after(30_000, 60_000, 100)
        assert write(sink, 4 * POINTS_PER_REQUEST) == []
        assert proxy.cuts == 3
        if deletes:
            proxy.cut_after(1_000)
            sink.delete(ids_of(200))
            assert proxy.cuts == 4
    if deletes:
        assert stored(target).keys() == {row.tobytes() for row in ids_of(4 * POINTS_PER_REQUEST)[200:]}
    else:
        assert holds(target, 4 * POINTS_PER_REQUEST)


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back_loses_nothing(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    qdrant_server.fault(exit=True)

    def restart() -> None:
        qdrant_server.wait()
        qdrant_server.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    assert write(sink, 4 * POINTS_PER_REQUEST) == []
    restarting.join()
    assert holds(sink.target, 4 * POINTS_PER_REQUEST)


def test_answers_in_another_order_are_told_apart(sink: ServerSink, qdrant_server: QdrantServer) -> None:
    """The first request is answered last; the refusals of the others must not be taken for its own."""
    qdrant_server.fault(delay=0.5)
    count = 4 * POINTS_PER_REQUEST
    qdrant_server.fault(code="INVALID_ARGUMENT", document=f"d{count - 1}", detail="no")
    assert write(sink, count) == [(count - 1, "refused", "no")]
    assert holds(sink.target, count, without=(count - 1,))


@pytest.mark.slow
def test_a_slow_server_gets_fewer_requests_at_a_time(
    sink: ServerSink, qdrant_server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestor.sink.POINTS_PER_REQUEST", 32)  # many requests of few points
    count = 16 * 32
    for _ in range(4):
        assert write(sink, count) == []
    qdrant_server.fault(delay=0.3, every=True)
    assert write(sink, count) == []
    assert sink.in_flight.limit == 1
    qdrant_server.mend()
    eventually(lambda: write(sink, count) == [] and sink.in_flight.limit > 4)
    assert holds(sink.target, count)


def test_patience_ends(target: Target, qdrant_server: QdrantServer) -> None:
    qdrant_server.stop()
    with (
        sink_of(target, [], Patience(seconds=0.5)) as sink,
        pytest.raises(SinkError, match=r"is it running.*tried"),
    ):
        write(sink, 1)


def test_an_error_inside_the_server_is_tried_a_few_times_only(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    qdrant_server.fault(code="INTERNAL", every=True)
    with pytest.raises(SinkError, match=r"fault.*tried 4 times"):
        write(sink, 1)
    assert qdrant_server.calls() == 4


def test_a_node_of_the_cluster_that_is_away_is_waited_for(
    sink: ServerSink, waits: list[Wait], qdrant_server: QdrantServer
) -> None:
    for detail in NODES_AWAY:
        qdrant_server.fault(code="INTERNAL", detail=f"Service internal error: {detail}", times=2)
    assert write(sink, 10) == []
    assert [wait.kind for wait in waits] == ["server_unavailable"] * 6
    assert holds(sink.target, 10)


def test_a_key_that_may_only_read_is_told(tmp_path: Path) -> None:
    with QdrantServer(tmp_path / "server", "--api-key", "sesame", "--read-only-key", "glass") as server:
        target = served(server, api_key="sesame")
        reading = replace(target, api_key="glass")
        with pytest.raises(ConfigError, match=r"does not permit this.*Global manage access is required"):
            make(reading)
        make(target)
        with (
            sink_of(reading, []) as sink,
            pytest.raises(ConfigError, match="set QDRANT_API_KEY to one that does"),
        ):
            write(sink, 1)
        assert holds(reading, 0)


def test_a_wrong_key_ends_the_run_at_once(tmp_path: Path) -> None:
    with QdrantServer(tmp_path / "server", "--api-key", "sesame") as server:
        target = served(server, api_key="sesame")
        make(target)
        with (
            sink_of(replace(target, api_key="wrong"), []) as sink,
            pytest.raises(ConfigError, match="refuses the API key"),
        ):
            write(sink, 1)
        assert server.calls() == 0
        assert holds(target, 0)


def test_a_wrong_dimension_ends_the_run_at_once(sink: ServerSink, qdrant_server: QdrantServer) -> None:
    with pytest.raises(SinkError, match=r"vectors are not the run's any more.*expected dim: 8, got 9"):
        sink.upsert(vectors_of(100, 9), points_of(sink.target, 100))
    assert qdrant_server.calls() == 1
    assert holds(sink.target, 0)


def test_a_collection_that_went_away_ends_the_run_at_once(
    sink: ServerSink, target: Target, qdrant_server: QdrantServer
) -> None:
    from ingestor.sink.server_store import ServerStore

    assert write(sink, 10) == []
    with ServerStore(target) as store:
        store.drop()
    with pytest.raises(SinkError, match="is not there any more"):
        write(sink, 10)
    assert qdrant_server.calls() == 2


def test_deletes_are_tried_again(sink: ServerSink, waits: list[Wait], qdrant_server: QdrantServer) -> None:
    write(sink, 10)
    for fault in ({"code": "UNAVAILABLE", "after": True}, LIMITED, {"status": "WaitTimeout"}):
        qdrant_server.fault("Points/Delete", **fault)
    sink.delete(ids_of(4))
    assert len(waits) == 3
    assert sink.count() == 6


def test_more_deletes_than_the_rate_limit_bears_are_split(
    sink: ServerSink, qdrant_server: QdrantServer
) -> None:
    write(sink, 50)
    qdrant_server.fault("Points/Delete", bucket=15, per_s=10_000)
    sink.delete(ids_of(40))
    assert sink.count() == 10


def test_a_delete_that_is_refused_ends_the_run(sink: ServerSink, qdrant_server: QdrantServer) -> None:
    qdrant_server.fault("Points/Delete", code="INVALID_ARGUMENT", detail="Bad request: not now", every=True)
    with pytest.raises(SinkError, match="refuses to delete points: Bad request: not now"):
        sink.delete(ids_of(40))
    assert qdrant_server.calls("Points/Delete") == 1
