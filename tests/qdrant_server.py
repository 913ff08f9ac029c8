"""A gRPC server that answers as Qdrant does, over the embedded engine, in a process of its own.

    python tests/qdrant_server.py --port 0 --path DIR [--api-key KEY] [--read-only-key KEY]
        [--version 1.17.0] [--certificate PEM]

It prints its port. `/control/Fault` takes a fault as JSON. A fault strikes one call of a method, in order
(`times`: so many of them, `skip`: after so many others):

    {"method": "Points/Upsert", "code": "UNAVAILABLE"}                  refused, nothing applied
    {..., "code": "RESOURCE_EXHAUSTED", "metadata": {"retry-after": "1"}}
    {..., "code": "UNAVAILABLE", "after": true}                         applied, the answer is lost
    {..., "status": "WaitTimeout"}                                      applied, but said to be unfinished
    {..., "exit": true}                                                 applied, then the server is killed
    {..., "delay": 0.5}                                                 applied later, in any case

`detail` is what the server says of it. Every call is struck by a fault with `"every": true`, and by one that
depends on what is asked:

    {..., "code": "INVALID_ARGUMENT", "document": "d7"}                 whenever a point is of this document
    {..., "code": "RESOURCE_EXHAUSTED", "most": 10}                     whenever there are more points
    {..., "bucket": 100, "per_s": 50}                                   so many points, then so many a second

`/control/Status` takes what the next `Collections/Get` are to answer before the collection itself is asked
again: {"updates": 2, "answers": [{"status": "Yellow", "queue": 3}, {"status": "Red", "error": "no space"}]};
they begin after so many calls of `Collections/Update`. Grey stays until an update, and so does Red, for good
where nothing follows: the server has tried again, and failed again.

`/control/Calls` answers with how often each method was called; `/control/Mend` forgets faults,
`/control/Reset` also calls, collections and aliases. The optimizer is a pretence: where `m` rises from 0, the
collection is yellow the next few times that it is looked at. Not here: update queue, replicas, and
most of strict mode.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import numpy as np
import qdrant_edge as edge
from google.protobuf import message_factory
from qdrant_client import grpc as qdrant
from qdrant_client.conversions.conversion import GrpcToRest, payload_to_grpc
from qdrant_client.grpc import collections_service_pb2, points_service_pb2, qdrant_pb2

Code = grpc.StatusCode
HNSW = {
    "m": 16,
    "ef_construct": 100,
    "full_scan_threshold": 10_000,
    "max_indexing_threads": 0,
    "on_disk": False,
}
OPTIMIZERS = {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "flush_interval_sec": 5}
YELLOW_LOOKS = 3
"""For so many looks a collection is yellow while its index is built."""


class RefusedError(Exception):
    """What a real server would answer in place of a result."""

    def __init__(self, code: grpc.StatusCode, detail: str, metadata: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.metadata = tuple((metadata or {}).items())


class Collection:
    """One collection: how it was asked for, and a directory of the engine."""

    def __init__(self, path: Path, create: qdrant.CreateCollection | None = None) -> None:
        self.path = path
        self.unindexed = 0  # looks until it is green
        place, self._kept = path / "edge", path / "collection.pb"
        if create is not None:
            self.asked = create
            place.mkdir(parents=True)
            self.shard = edge.EdgeShard.create(str(place), self._config())
            self.keep()
        else:
            self.asked = qdrant.CreateCollection.FromString(self._kept.read_bytes())
            self.shard = edge.EdgeShard.load(str(place))

    def hnsw(self) -> qdrant.HnswConfigDiff:
        """With the server's defaults for what nobody asked for."""
        found = qdrant.HnswConfigDiff(**HNSW)
        found.MergeFrom(self.asked.hnsw_config)
        return found

    def change(self, asked: qdrant.UpdateCollection) -> None:
        """Take over what an update says, field by field; what it does not say stays."""
        before = self.hnsw().m
        self.asked.hnsw_config.MergeFrom(asked.hnsw_config)
        self.asked.optimizers_config.MergeFrom(asked.optimizers_config)
        self.asked.strict_mode_config.MergeFrom(asked.strict_mode_config)
        for name in ("replication_factor", "write_consistency_factor"):
            if asked.params.HasField(name):
                setattr(self.asked, name, getattr(asked.params, name))
        for key, value in asked.metadata.items():
            if value.HasField("null_value"):
                del self.asked.metadata[key]
            else:
                self.asked.metadata[key].CopyFrom(value)
        if self.hnsw().m and not before and self.shard.count(edge.CountRequest(exact=True)):
            self.unindexed = YELLOW_LOOKS
        self.keep()

    def keep(self) -> None:
        new = self._kept.with_suffix(".new")
        new.write_bytes(self.asked.SerializeToString())
        new.rename(self._kept)

    def vectors(self) -> dict[str, qdrant.VectorParams]:
        """Vector name ("" for the unnamed one) to its parameters."""
        config = self.asked.vectors_config
        return {"": config.params} if config.HasField("params") else dict(config.params_map.map)

    def _config(self) -> edge.EdgeConfig:
        params = {
            name: edge.EdgeVectorParams(
                size=one.size, distance=getattr(edge.Distance, qdrant.Distance.Name(one.distance))
            )
            for name, one in self.vectors().items()
        }
        return edge.EdgeConfig(vectors=params.get("", params))

    def check_strictly(self, points: int) -> None:
        """Refuse more points than strict mode lets pass at a time: the one limit of it that is kept here."""
        strict = self.asked.strict_mode_config
        if strict.enabled and 0 < (most := strict.upsert_max_batchsize) < points:
            said = f'Limit exceeded {points} > {most} for "upsert limit"'
            advice = f'Reduce the "upsert limit" parameter to or below {most}.'
            raise RefusedError(Code.INVALID_ARGUMENT, f"Bad request: {said}. Help: {advice}")

    def point(self, point: qdrant.PointStruct) -> edge.Point:
        """A point as the engine takes it; refuses other dimensions, as servers do since 1.18.3."""
        named = point.vectors.WhichOneof("vectors_options") == "vectors"
        given = dict(point.vectors.vectors.vectors) if named else {"": point.vectors.vector}
        vectors = {name: np.asarray(vector.dense.data, np.float32) for name, vector in given.items()}
        for name, vector in vectors.items():
            if name not in self.vectors():
                raise RefusedError(
                    Code.INVALID_ARGUMENT, f"Wrong input: Not existing vector name error: {name}"
                )
            if len(vector) != self.vectors()[name].size:
                size = self.vectors()[name].size
                raise RefusedError(
                    Code.INVALID_ARGUMENT,
                    f"Wrong input: Vector dimension error: expected dim: {size}, got {len(vector)}",
                )
        rows = {name: vector.data for name, vector in vectors.items()}
        payload = GrpcToRest.convert_payload(point.payload)
        return edge.Point(id_of(point.id), rows if named else rows[""], payload)


def id_of(point: qdrant.PointId) -> Any:
    if point.WhichOneof("point_id_options") == "num":
        return point.num
    try:
        return UUID(point.uuid)
    except ValueError:
        raise RefusedError(Code.INVALID_ARGUMENT, f"Unable to parse UUID: {point.uuid}") from None


def point_id(point: Any) -> qdrant.PointId:
    return qdrant.PointId(num=point) if isinstance(point, int) else qdrant.PointId(uuid=str(point))


def filter_of(asked: qdrant.Filter) -> edge.Filter:
    """A filter of equalities, all that the tests ask for."""
    must = []
    for condition in asked.must:
        match = condition.field.match
        value = getattr(match, match.WhichOneof("match_value"))
        must.append(edge.FieldCondition(key=condition.field.key, match=edge.MatchValue(value=value)))
    return edge.Filter(must=must)


def vectors_output(vector: Any) -> qdrant.VectorsOutput:
    def one(values: list[float]) -> qdrant.VectorOutput:
        return qdrant.VectorOutput(dense=qdrant.DenseVector(data=values))

    if isinstance(vector, dict):
        named = {name: one(values) for name, values in vector.items()}
        return qdrant.VectorsOutput(vectors=qdrant.NamedVectorsOutput(vectors=named))
    return qdrant.VectorsOutput(vector=one(vector))


def selected(asked: qdrant.WithPayloadSelector) -> Any:
    """Which fields of a payload are asked for."""
    if asked.WhichOneof("selector_options") == "include":
        return list(asked.include.fields)
    return asked.enable


def retrieved(point: Any) -> qdrant.RetrievedPoint:
    return qdrant.RetrievedPoint(
        id=point_id(point.id),
        payload=payload_to_grpc(point.payload or {}),
        vectors=None if point.vector is None else vectors_output(point.vector),
    )


class Service:
    """The calls, by name; each takes and gives protobuf messages."""

    def __init__(self, path: Path, version: str) -> None:
        self._path = path
        self._version = version
        self._collections = {
            folder.name: Collection(folder)
            for folder in path.iterdir()
            if (folder / "collection.pb").exists()
        }
        self._kept = path / "aliases.json"
        self._aliases: dict[str, str] = json.loads(self._kept.read_text()) if self._kept.exists() else {}
        self.answers: list[dict[str, Any]] = []  # scripted, for the next looks at a collection,
        self.updates = 0  # when there were so many more of these

    def _of(self, request: Any) -> Collection:
        name = self._aliases.get(request.collection_name, request.collection_name)
        if name not in self._collections:
            raise RefusedError(Code.NOT_FOUND, f"Not found: Collection `{name}` doesn't exist!")
        return self._collections[name]

    def health_check(self, request: qdrant.HealthCheckRequest) -> qdrant.HealthCheckReply:
        return qdrant.HealthCheckReply(title="qdrant test server", version=self._version)

    def exists(self, request: Any) -> qdrant.CollectionExistsResponse:
        exists = self._aliases.get(request.collection_name, request.collection_name) in self._collections
        return qdrant.CollectionExistsResponse(result=qdrant.CollectionExists(exists=exists))

    def list_all(self, request: Any) -> qdrant.ListCollectionsResponse:
        names = [qdrant.CollectionDescription(name=name) for name in sorted(self._collections)]
        return qdrant.ListCollectionsResponse(collections=names)

    def create(self, request: qdrant.CreateCollection) -> qdrant.CollectionOperationResponse:
        name = request.collection_name
        if name in self._collections:
            raise RefusedError(Code.ALREADY_EXISTS, f"Wrong input: Collection `{name}` already exists!")
        if name in self._aliases:
            said = f"Can't create collection with name {name}. Alias with the same name already exists"
            raise RefusedError(Code.INVALID_ARGUMENT, f"Wrong input: {said}")
        self._collections[name] = Collection(self._path / name, request)
        return qdrant.CollectionOperationResponse(result=True)

    def drop(self, request: qdrant.DeleteCollection) -> qdrant.CollectionOperationResponse:
        collection = self._collections.pop(request.collection_name, None)
        if collection is not None:
            collection.shard.close()
            shutil.rmtree(collection.path)
            self._keep_aliases({k: v for k, v in self._aliases.items() if v != request.collection_name})
        return qdrant.CollectionOperationResponse(result=collection is not None)

    def update(self, request: qdrant.UpdateCollection) -> qdrant.CollectionOperationResponse:
        self._of(request).change(request)
        first = self.answers[0]["status"] if self.answers and not self.updates else ""
        if first == "Grey" or (first == "Red" and len(self.answers) > 1):
            self.answers.pop(0)
        self.updates = max(0, self.updates - 1)
        return qdrant.CollectionOperationResponse(result=True)

    def info(self, request: qdrant.GetCollectionInfoRequest) -> qdrant.GetCollectionInfoResponse:
        collection = self._of(request)
        asked, shard = collection.asked, collection.shard
        optimizers = qdrant.OptimizersConfigDiff(indexing_threshold=10_000, **OPTIMIZERS)
        optimizers.MergeFrom(asked.optimizers_config)
        config = qdrant.CollectionConfig(
            params=qdrant.CollectionParams(
                shard_number=asked.shard_number or 1,
                vectors_config=asked.vectors_config,
                replication_factor=asked.replication_factor or 1,
                write_consistency_factor=asked.write_consistency_factor or 1,
                on_disk_payload=True,
            ),
            hnsw_config=collection.hnsw(),
            optimizer_config=optimizers,
            metadata=asked.metadata,
        )
        if asked.HasField("quantization_config"):
            config.quantization_config.CopyFrom(asked.quantization_config)
        schema = {
            field: qdrant.PayloadSchemaInfo(
                data_type=qdrant.PayloadSchemaType.Value(str(one.data_type).rpartition(".")[2])
            )
            for field, one in shard.info().payload_schema.items()
        }
        found = self._condition(collection)
        error = found.get("error")
        points = shard.info().points_count
        return qdrant.GetCollectionInfoResponse(
            result=qdrant.CollectionInfo(
                status=qdrant.CollectionStatus.Value(found["status"]),
                optimizer_status=qdrant.OptimizerStatus(ok=not error, error=error or ""),
                segments_count=1,
                config=config,
                payload_schema=schema,
                points_count=points,
                indexed_vectors_count=0 if collection.unindexed or not collection.hnsw().m else points,
                update_queue=qdrant.UpdateQueueInfo(length=found.get("queue", 0)),
            )
        )

    def _condition(self, collection: Collection) -> dict[str, Any]:
        """What a look at a collection shows: as scripted, or how far the pretended optimizer is."""
        if self.answers and not self.updates:
            stays = self.answers[0]["status"] in ("Grey", "Red")
            return self.answers[0] if stays else self.answers.pop(0)
        collection.unindexed = max(0, collection.unindexed - 1)
        return {"status": "Yellow" if collection.unindexed else "Green"}

    def change_aliases(self, request: qdrant.ChangeAliases) -> qdrant.CollectionOperationResponse:
        """All of the actions or none, as seen by any other call."""
        new = dict(self._aliases)
        for action in request.actions:
            if action.HasField("delete_alias"):
                new.pop(action.delete_alias.alias_name, None)
                continue
            asked = action.create_alias
            if asked.collection_name not in self._collections:
                detail = f"Not found: Collection `{asked.collection_name}` doesn't exist!"
                raise RefusedError(Code.NOT_FOUND, detail)
            if asked.alias_name in self._collections:
                detail = f"Wrong input: Collection `{asked.alias_name}` already exists!"
                raise RefusedError(Code.ALREADY_EXISTS, detail)
            new[asked.alias_name] = asked.collection_name
        self._keep_aliases(new)
        return qdrant.CollectionOperationResponse(result=True)

    def list_aliases(self, request: Any) -> qdrant.ListAliasesResponse:
        return qdrant.ListAliasesResponse(
            aliases=[
                qdrant.AliasDescription(alias_name=alias, collection_name=name)
                for alias, name in self._aliases.items()
            ]
        )

    def _keep_aliases(self, aliases: dict[str, str]) -> None:
        self._aliases = aliases
        new = self._kept.with_suffix(".new")
        new.write_text(json.dumps(aliases))
        new.rename(self._kept)

    def create_index(self, request: Any) -> qdrant.PointsOperationResponse:
        kind = qdrant.FieldType.Name(request.field_type).removeprefix("FieldType")
        kind_of_engine = getattr(edge.PayloadSchemaType, kind)
        shard = self._of(request).shard
        shard.update(edge.UpdateOperation.create_field_index(request.field_name, kind_of_engine))
        return completed()

    def upsert(self, request: qdrant.UpsertPoints) -> qdrant.PointsOperationResponse:
        collection = self._of(request)
        collection.check_strictly(len(request.points))
        points = [collection.point(point) for point in request.points]
        collection.shard.update(edge.UpdateOperation.upsert_points(points))
        return completed() if request.wait else acknowledged()

    def delete(self, request: qdrant.DeletePoints) -> qdrant.PointsOperationResponse:
        ids = [id_of(point) for point in request.points.points.ids]
        self._of(request).shard.update(edge.UpdateOperation.delete_points(ids))
        return completed() if request.wait else acknowledged()

    def count(self, request: qdrant.CountPoints) -> qdrant.CountResponse:
        count = self._of(request).shard.count(edge.CountRequest(exact=True))
        return qdrant.CountResponse(result=qdrant.CountResult(count=count))

    def scroll(self, request: qdrant.ScrollPoints) -> qdrant.ScrollResponse:
        offset = id_of(request.offset) if request.HasField("offset") else None
        page, following = self._of(request).shard.scroll(
            edge.ScrollRequest(
                limit=request.limit or 10,
                offset=offset,
                with_vector=request.with_vectors.enable,
                with_payload=selected(request.with_payload),
            )
        )
        rest = None if following is None else point_id(following)
        return qdrant.ScrollResponse(result=map(retrieved, page), next_page_offset=rest)

    def get(self, request: qdrant.GetPoints) -> qdrant.GetResponse:
        ids = [id_of(point) for point in request.ids]
        payload, vectors = selected(request.with_payload), request.with_vectors.enable
        found = self._of(request).shard.retrieve(ids, payload, vectors)
        return qdrant.GetResponse(result=map(retrieved, found))

    def query_batch(self, request: qdrant.QueryBatchPoints) -> qdrant.QueryBatchResponse:
        shard = self._of(request).shard
        return qdrant.QueryBatchResponse(result=[self._query(shard, one) for one in request.query_points])

    def _query(self, shard: edge.EdgeShard, asked: qdrant.QueryPoints) -> qdrant.BatchResult:
        vector = list(asked.query.nearest.dense.data)
        found = shard.query(
            edge.QueryRequest(
                query=edge.Query.Nearest(vector, using=asked.using or None),
                limit=asked.limit,
                filter=filter_of(asked.filter),
                with_payload=True,
                params=edge.SearchParams(exact=asked.params.exact),
            )
        )
        points = [
            qdrant.ScoredPoint(
                id=point_id(point.id), score=point.score, payload=payload_to_grpc(point.payload or {})
            )
            for point in found
        ]
        return qdrant.BatchResult(result=points)


def completed() -> qdrant.PointsOperationResponse:
    return qdrant.PointsOperationResponse(result=qdrant.UpdateResult(status=qdrant.UpdateStatus.Completed))


def acknowledged() -> qdrant.PointsOperationResponse:
    return qdrant.PointsOperationResponse(result=qdrant.UpdateResult(status=qdrant.UpdateStatus.Acknowledged))


CALLS: dict[str, Callable[[Service, Any], Any]] = {
    "Qdrant/HealthCheck": Service.health_check,
    "Collections/CollectionExists": Service.exists,
    "Collections/List": Service.list_all,
    "Collections/Create": Service.create,
    "Collections/Delete": Service.drop,
    "Collections/Update": Service.update,
    "Collections/Get": Service.info,
    "Collections/UpdateAliases": Service.change_aliases,
    "Collections/ListAliases": Service.list_aliases,
    "Points/CreateFieldIndex": Service.create_index,
    "Points/Upsert": Service.upsert,
    "Points/Delete": Service.delete,
    "Points/Count": Service.count,
    "Points/Scroll": Service.scroll,
    "Points/Get": Service.get,
    "Points/QueryBatch": Service.query_batch,
}
READING = {
    *("Collections/CollectionExists", "Collections/List", "Collections/Get", "Collections/ListAliases"),
    *("Points/Count", "Points/Scroll", "Points/Get", "Points/QueryBatch"),
}
SERVICES = {
    name: service
    for module in (collections_service_pb2, points_service_pb2, qdrant_pb2)
    for name, service in module.DESCRIPTOR.services_by_name.items()
}


def points_in(request: Any) -> int:
    """How many points a call of writing is about."""
    return len(request.points.points.ids if isinstance(request, qdrant.DeletePoints) else request.points)


class Fault:
    """Something that goes wrong with calls of one method; see the module's docstring."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.method: str = asked["method"]
        self.after = any((asked.get("after"), asked.get("status"), asked.get("exit")))
        self.delay_s: float = asked.get("delay", 0.0)
        self._asked = asked
        self._left, self._at = asked.get("bucket", 0), time.monotonic()
        self._skip = int(asked.get("skip", 0))
        self._times = int(asked.get("times", 1))

    def is_spent(self) -> bool:
        """Whether this was the last call that it strikes."""
        self._times -= 1
        return self.once and self._times <= 0

    @property
    def once(self) -> bool:
        return not self._asked.keys() & {"document", "most", "every", "bucket"}

    def strikes(self, request: Any) -> bool:
        if self._skip:
            self._skip -= 1
            return False
        if "document" in self._asked:
            documents = [point.payload["document"].string_value for point in request.points]
            return self._asked["document"] in documents
        if "bucket" in self._asked:
            return self._limits(points_in(request))
        return "most" not in self._asked or points_in(request) > self._asked["most"]

    def _limits(self, points: int) -> bool:
        """Take tokens out of the bucket, or refuse as strict mode does."""
        bucket, per_s, now = self._asked["bucket"], self._asked["per_s"], time.monotonic()
        self._left, self._at = min(bucket, self._left + (now - self._at) * per_s), now
        if points > bucket:
            raise RefusedError(
                Code.RESOURCE_EXHAUSTED,
                "Rate limiting exceeded: Write rate limit exceeded, larger than the limit; try to split",
            )
        if points > self._left:
            wait_s = str(math.ceil((points - self._left) / per_s))
            raise RefusedError(
                Code.RESOURCE_EXHAUSTED, "Rate limiting exceeded: try again later", {"retry-after": wait_s}
            )
        self._left -= points
        return False

    def strike(self, answer: Any) -> Any:
        """What is answered in place of the right answer, or of None before the call was looked at."""
        if self._asked.get("exit"):
            os.kill(os.getpid(), signal.SIGKILL)
        if status := self._asked.get("status"):
            result = qdrant.UpdateResult(status=qdrant.UpdateStatus.Value(status))
            return qdrant.PointsOperationResponse(result=result)
        if "code" not in self._asked:
            return answer
        detail = self._asked.get("detail", "a fault that was asked for")
        raise RefusedError(grpc.StatusCode[self._asked["code"]], detail, self._asked.get("metadata"))


class Handler(grpc.GenericRpcHandler):
    """Finds the call that a path names, and answers for it; one call at a time, unless a fault delays it."""

    def __init__(self, service: Service, api_key: str | None, read_only_key: str | None) -> None:
        self._service = service
        self._api_key = api_key
        self._read_only_key = read_only_key
        self._faults: list[Fault] = []
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._under_way = 0
        self._idle = threading.Condition()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = handler_call_details.method.strip("/").removeprefix("qdrant.")
        if path == "control/Fault":
            return grpc.unary_unary_rpc_method_handler(self._add_fault)
        if path == "control/Status":
            return grpc.unary_unary_rpc_method_handler(self._script)
        if path == "control/Calls":
            return grpc.unary_unary_rpc_method_handler(self._say_calls)
        if path == "control/Mend":
            return grpc.unary_unary_rpc_method_handler(self._mend)
        if path == "control/Reset":
            return grpc.unary_unary_rpc_method_handler(self._reset)
        if path not in CALLS:
            return None
        service, method = path.split("/")
        asked = SERVICES[service].methods_by_name[method].input_type
        return grpc.unary_unary_rpc_method_handler(
            partial(self._answer, path),
            request_deserializer=message_factory.GetMessageClass(asked).FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _add_fault(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._faults.append(Fault(json.loads(request)))
        return b""

    def _script(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        asked = json.loads(request)
        self._service.answers, self._service.updates = asked["answers"], asked["updates"]
        return b""

    def _say_calls(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return json.dumps(self._calls).encode()

    def _mend(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._idle:
            self._idle.wait_for(lambda: not self._under_way)  # what is delayed belongs to what came before
        self._faults.clear()
        return b""

    def _reset(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._mend(request, context)
        self._calls.clear()
        self._service.answers = []
        for collection in self._service.list_all(None).collections:
            self._service.drop(qdrant.DeleteCollection(collection_name=collection.name))
        return b""

    def _answer(self, path: str, request: Any, context: grpc.ServicerContext) -> Any:
        with self._idle:
            self._under_way += 1
        try:
            self._check_key(path, context)
            return self._call(path, request)
        except RefusedError as refused:
            context.set_trailing_metadata(refused.metadata)
            context.abort(refused.code, refused.detail)
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()

    def _call(self, path: str, request: Any) -> Any:
        with self._lock:
            fault = self._fault_for(path, request)
        if fault:
            time.sleep(fault.delay_s)  # others are answered meanwhile
        with self._lock:
            if fault and not fault.after:
                fault.strike(None)
            answer = CALLS[path](self._service, request)
            return fault.strike(answer) if fault else answer

    def _fault_for(self, path: str, request: Any) -> Fault | None:
        self._calls[path] += 1
        found = next((one for one in self._faults if one.method == path and one.strikes(request)), None)
        if found and found.is_spent():
            self._faults.remove(found)
        return found

    def _check_key(self, path: str, context: grpc.ServicerContext) -> None:
        given = dict(context.invocation_metadata()).get("api-key")
        if not self._api_key or path == "Qdrant/HealthCheck" or given == self._api_key:
            return
        if given is None:
            said = "Must provide an API key or an Authorization bearer token"
            raise RefusedError(Code.UNAUTHENTICATED, said)
        if given != self._read_only_key:
            raise RefusedError(Code.UNAUTHENTICATED, "Invalid API key or JWT")
        if path not in READING:
            raise RefusedError(Code.PERMISSION_DENIED, "Forbidden: Global manage access is required")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--api-key")
    parser.add_argument("--read-only-key")
    parser.add_argument("--version", default="1.17.0")
    parser.add_argument(
        "--certificate", type=Path, help="a key and its certificates in PEM: speaks TLS alone"
    )
    asked = parser.parse_args()
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    service = Service(asked.path, asked.version)
    server.add_generic_rpc_handlers([Handler(service, asked.api_key, asked.read_only_key)])
    place = f"127.0.0.1:{asked.port}"
    if asked.certificate:
        pem = asked.certificate.read_bytes()
        port = server.add_secure_port(place, grpc.ssl_server_credentials([(pem, pem)]))
    else:
        port = server.add_insecure_port(place)
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
