"""Shards in Amazon's store, played by moto: its server, the real client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from backports import zstd
from moto.server import ThreadedMotoServer
from pyarrow import parquet as pq

from ingestor import cli
from ingestor.errors import ConfigError
from ingestor.sources.listing import list_shards
from ingestor.sources.remote import Remote
from ingestor.sources.stores import PIECE_BYTES
from tests.reading import QUICK, read_paths, read_shards
from tests.running import Workplace, documents

pytestmark = pytest.mark.whole

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIATEST",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """An empty bucket, and variables by which it is found."""
    for name, value in (*KEYS.items(), ("AWS_ENDPOINT_URL", endpoint)):
        monkeypatch.setenv(name, value)
    made = boto3.resource("s3").Bucket(f"bucket-{abs(hash(request.node.name))}")
    made.create()
    return made


def jsonl(count: int, start: int = 0) -> bytes:
    return b"".join(
        b'{"id": %d, "text": "Text of %d."}\n' % (number, number) for number in range(start, start + count)
    )


def put(bucket: Any, **objects: bytes) -> None:
    for name, content in objects.items():
        bucket.put_object(Key=name, Body=content)


def names(bucket: Any, *paths: str) -> list[str]:
    with Remote(QUICK) as remote:
        listing = list_shards([f"s3://{bucket.name}/{path}" for path in paths], None, remote)
    return [shard.name.removeprefix(f"s3://{bucket.name}/") for shard in listing.shards]


def test_objects_folders_and_patterns(bucket: Any) -> None:
    put(
        bucket,
        **{"a/1.jsonl": b"x", "a/b/2.jsonl": b"x", "c/3.txt": b"x", "c/4.jsonl": b"x", "part[1].jsonl": b"x"},
        **{
            "a/.hidden": b"x",
            "a/_SUCCESS": b"x",
            "a/x.tmp": b"x",
            "a/.git/config": b"x",
            "a/": b"",
            "a/b/": b"",
        },
    )
    assert names(bucket, "a/") == names(bucket, "a") == ["a/1.jsonl", "a/b/2.jsonl"]
    assert names(bucket, "c/*.jsonl") == ["c/4.jsonl"]
    assert names(bucket, "**/*.jsonl") == ["a/1.jsonl", "a/b/2.jsonl", "c/4.jsonl", "part[1].jsonl"]
    assert names(bucket, "a/*") == ["a/1.jsonl", "a/b/2.jsonl"], "a folder that matches is walked"
    assert names(bucket, "a/x.tmp", "a/1.jsonl", "a/", "a/*.jsonl") == ["a/1.jsonl", "a/b/2.jsonl", "a/x.tmp"]
    assert names(bucket, "part[1].jsonl") == ["part[1].jsonl"], "what exists is no pattern"
    assert names(bucket, "") == [
        *("a/1.jsonl", "a/b/2.jsonl", "c/3.txt", "c/4.jsonl", "part[1].jsonl"),
    ]
    assert names(bucket, "c/*.csv") == []


def test_what_is_not_there_is_named(bucket: Any) -> None:
    with pytest.raises(ConfigError, match=rf"s3://{bucket.name}/none\.jsonl does not exist"):
        names(bucket, "none.jsonl")
    with Remote(QUICK) as remote, pytest.raises(ConfigError, match="s3://no-such-bucket/a does not exist"):
        list_shards(["s3://no-such-bucket/a"], None, remote)


def test_without_credentials_it_is_said_which_are_missing(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, a=b"x")
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match=r"s3://.*no credentials"):
        names(bucket, "a")


@pytest.mark.parametrize("name", ["s3a://", "s3://"])
async def test_a_packed_shard_is_read_piece_by_piece(bucket: Any, name: str) -> None:
    dice = random.Random(3)
    rows = [json.dumps({"id": n, "text": dice.randbytes(400).hex()}) + "\n" for n in range(9_000)]
    packed = zstd.compress("".join(rows).encode())
    assert len(packed) > 3 * PIECE_BYTES
    put(bucket, **{"a.jsonl.zst": packed, "empty.jsonl": b""})
    found = await read_paths(f"{name}{bucket.name}/")
    assert found.ids == [str(number) for number in range(9_000)]
    assert all(end.finished for end in found.ends.values())
    assert set(found.ends) == {f"s3://{bucket.name}/a.jsonl.zst", f"s3://{bucket.name}/empty.jsonl"}


async def test_parquet_is_read_by_ranges(bucket: Any, tmp_path: Path) -> None:
    table = pa.table({"id": list(range(3_000)), "text": [f"Text of {number}." for number in range(3_000)]})
    pq.write_table(table, tmp_path / "a", row_group_size=700)
    put(bucket, a=(tmp_path / "a").read_bytes())
    found = await read_paths(f"s3://{bucket.name}/a")
    assert [document.text for document in found.documents] == table["text"].to_pylist()


async def test_an_object_that_changes_is_no_mixture(bucket: Any) -> None:
    put(bucket, **{"a.jsonl": jsonl(100_000), "b.jsonl": jsonl(1)})
    with Remote(QUICK) as remote:
        listing = await asyncio.to_thread(list_shards, [f"s3://{bucket.name}/"], None, remote)
        put(bucket, **{"a.jsonl": jsonl(100_000, start=1)})
        bucket.Object("b.jsonl").delete()
        ends = [block.end for block in await read_shards(listing.shards, remote=remote) if block.end]
    assert [kind for end in ends for kind, _ in end.errors] == ["changed", "vanished"]


@pytest.fixture
def place(tmp_path: Path, bucket: Any, endpoint: str) -> Workplace:
    """A configuration for the bucket's shards."""
    made = Workplace(tmp_path, source={"paths": [f"s3://{bucket.name}/in/*.jsonl.zst"]})
    made.environment |= {**KEYS, "AWS_ENDPOINT_URL": endpoint}
    return made


def shard(rows: list[dict[str, Any]]) -> bytes:
    return zstd.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


def test_runs_over_a_bucket(
    bucket: Any, place: Workplace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What did not change is not read again, what did is, and no secret is written anywhere."""
    put(bucket, **{"in/a.jsonl.zst": shard(documents(20)), "in/b.jsonl.zst": shard(documents(5, start=20))})
    monkeypatch.chdir(place.folder)
    assert cli.execute(["check", "--config", "c.yaml"]) == 0
    assert "2 shards" in capfd.readouterr().out
    assert place.end(place.start_warm_run("--dry-run")).documents == {"read": 25, "would_index": 25}
    assert place.end(place.start_warm_run()).documents == {"read": 25, "indexed": 25}
    put(bucket, **{"in/b.jsonl.zst": shard(documents(6, start=20))})
    ended = place.end(place.start_warm_run())
    assert ended.documents == {"read": 26, "indexed": 1, "unchanged": 25}
    assert ended.report["shards"] == {"seen": 2, "unchanged": 1, "failed": 0}
    assert len(place.recorded()) == 26
    ended = place.end(place.start_warm_run("--set", "source.paths=[s3://no-such-bucket/x]"))
    assert ended.code == 2
    [error] = ended.errors
    assert error.startswith("error: source.paths: s3://no-such-bucket/x does not exist; ")
    written = b"".join(path.read_bytes() for path in place.folder.rglob("*") if path.is_file())
    assert b"very-secret" not in written
