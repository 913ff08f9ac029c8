"""Whole runs over Google's and Azure's stores: the real clients, and servers that play the stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clouds import BUCKET, Azure, Cloud, CloudHandler, Google, play
from tests.running import Workplace

SECRET = "dmVyeS1zZWNyZXQ="


def google(cloud: Cloud) -> dict[str, str]:
    return {
        "STORAGE_EMULATOR_HOST": cloud.url,
        "FSSPEC_GS": json.dumps({"token": "anon"}),
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else it asks Google what kind of bucket it is
    }


def azure(cloud: Cloud) -> dict[str, str]:
    account = f"AccountName=me;AccountKey={SECRET};BlobEndpoint={cloud.url}/me"
    return {"AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;{account}"}


def jsonl(count: int, first: int = 0) -> bytes:
    filler = "x" * 1000
    return b"".join(
        json.dumps({"id": number, "text": f"Text {number}", "filler": filler}).encode() + b"\n"
        for number in range(first, first + count)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "environment", "schemes"),
    [(Google, google, ("gs", "gcs")), (Azure, azure, ("az", "abfs"))],
    ids=["google", "azure"],
)
def test_runs_over_a_bucket(
    tmp_path: Path,
    handler: type[CloudHandler],
    environment: Callable[[Cloud], dict[str, str]],
    schemes: tuple[str, str],
) -> None:
    protocol, other = schemes
    with play(handler) as cloud:
        cloud.put(
            **{
                "in/a.jsonl": jsonl(3000),
                "in/deep/b.jsonl": jsonl(5, 3000),
                "in/.hidden": b"x",
                "c.jsonl": b"",
            },
            **{"in/changing.jsonl": jsonl(3000, 4000)},
        )
        place = Workplace(
            tmp_path, source={"paths": [f"{protocol}://{BUCKET}/in/", f"{other}://{BUCKET}/*.jsonl"]}
        )
        place.environment |= environment(cloud)
        ended = place.run()
        assert ended.documents == {"read": 6005, "indexed": 6005}
        assert ended.report["shards"]["seen"] == 4
        cloud.reads.clear()
        cloud.put(**{"in/changing.jsonl": jsonl(3000, 4000)})
        cloud.replaced["in/changing.jsonl"] = jsonl(3000, 8000)
        ended = place.run(code=3)
        name = f"{protocol}://{BUCKET}/in/changing.jsonl"
        assert [(error["shard"], error["kind"]) for error in ended.report["shard_errors"]] == [
            (name, "changed")
        ]
        assert {read for read, _ in cloud.reads} == {"in/changing.jsonl"}, "what did not change is not read"
        assert "indexed" not in ended.documents, "nothing of the new version"
        ended = place.run("--set", f"source.paths=[{protocol}://{BUCKET}/none]", code=2)
        [error] = ended.errors
        assert error.startswith(f"error: source.paths: {protocol}://{BUCKET}/none does not exist; ")
