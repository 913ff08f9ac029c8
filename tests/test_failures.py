"""failures: what is kept of what was refused, what clears it, and trying again."""

from __future__ import annotations

import gzip
import json

import pytest

from ingestor.state.failures import OpenFailure, read_failures
from ingestor.state.lookup import read_status
from tests.running import Workplace, documents

pytestmark = pytest.mark.whole


@pytest.fixture
def place(tmp_path) -> Workplace:
    return Workplace(tmp_path)


def listed(place: Workplace) -> list[OpenFailure]:
    found = list(read_failures(place.state))
    assert read_status(place.state)["failures"] == len(found)
    return found


def where(place: Workplace) -> list[tuple[str, int | None, str, str | None]]:
    return [(one.shard, one.place, one.kind, one.document) for one in listed(place)]


@pytest.mark.slow
def test_what_was_refused_is_listed_until_it_is_mended(place):
    good = documents(6)
    lines = [json.dumps(document) for document in good]
    broken = [lines[0], "{no json", json.dumps(good[2] | {"text": " "}), *lines[3:]]
    (place.shards / "a.jsonl").write_text("\n".join(broken) + "\n")
    assert place.run(code=3).report["failures_open"] == 2
    assert where(place) == [("a.jsonl", 2, "bad_json", None), ("a.jsonl", 3, "empty_text", "d2")]
    first, second = map(json.loads, place.ask("failures", "--json").out.splitlines())
    assert list(first) == ["shard", "place", "offset", "document", "kind", "detail", "time"]
    assert first["time"].endswith("+00:00")
    assert (second["shard"], second["place"], second["document"]) == ("a.jsonl", 3, "d2")
    said = place.ask("failures").out.splitlines()
    assert said[0].startswith("a.jsonl:2: bad_json: ")
    assert "(document d2), " in said[1]
    assert said[2].startswith("2 open; ")

    assert place.run(code=3).report["shards"]["unchanged"] == 1
    place.run("--set", "failures.tolerate=2")
    retried = place.end(place.start("failures", "--config", "c.yaml", "--retry", "--report", "r.json"))
    assert (retried.code, retried.report["failures_open"]) == (3, 2)
    assert retried.documents == {"read": 4, "unchanged": 4, "rejected": 2}

    place.write("a.jsonl", good)
    assert place.run().documents == {"read": 6, "indexed": 2, "unchanged": 4}
    assert listed(place) == []
    assert place.ask("failures").out == "none open\n"


@pytest.mark.slow
def test_a_later_good_version_clears_what_was_refused(place):
    place.write("b.jsonl", [*documents(3), documents(1, start=3)[0] | {"text": ""}])
    place.run(code=3)
    assert where(place) == [("b.jsonl", 4, "empty_text", "d3")]
    place.write("a.jsonl", documents(1, start=3))  # comes before: the refused record is the last one
    place.run(code=3)
    assert len(listed(place)) == 1
    place.write("c.jsonl", documents(1, start=3))
    ended = place.run()
    assert ended.report["failures_open"] == 0
    assert listed(place) == []
    assert place.run("--full").report["failures_open"] == 0


@pytest.mark.slow
def test_documents_that_the_server_refused_are_tried_again(qdrant_server, tmp_path):
    server = {"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port}
    place = Workplace(tmp_path, qdrant=server)
    place.write("a.jsonl", documents(8))
    place.write("b.jsonl", documents(8, start=8))
    qdrant_server.fault(code="INVALID_ARGUMENT", document="d2")
    qdrant_server.fault(code="INVALID_ARGUMENT", document="d3")
    assert place.run(code=3).documents == {"read": 16, "indexed": 14, "failed": 2}
    assert where(place) == [("a.jsonl", 3, "refused", "d2"), ("a.jsonl", 4, "refused", "d3")]
    assert place.run(code=3).documents == {"read": 16, "unchanged": 14, "failed": 2}

    place.write("c.jsonl", [documents(1, start=2)[0] | {"text": "a good version of d2, which comes later"}])
    qdrant_server.mend()
    qdrant_server.fault(code="INVALID_ARGUMENT", document="d3")
    assert place.run(code=3).documents == {"read": 17, "indexed": 1, "unchanged": 14, "failed": 2}
    assert where(place) == [("a.jsonl", 4, "refused", "d3")]
    assert place.run(code=3).documents == {"read": 17, "duplicates": 1, "unchanged": 15, "failed": 1}

    qdrant_server.mend()
    ended = place.end(place.start("failures", "--config", "c.yaml", "--retry", "--report", "r.json"))
    assert (ended.code, ended.report["shards"]["unchanged"]) == (0, 2)
    assert ended.documents == {"read": 17, "indexed": 1, "duplicates": 1, "unchanged": 15}
    assert listed(place) == []
    place.ask("verify")


@pytest.mark.slow
def test_errors_of_shards_are_open_until_the_shard_is_read_well_or_gone(place):
    whole = gzip.compress("".join(json.dumps(document) + "\n" for document in documents(500)).encode())
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        (place.shards / name).write_bytes(whole[:-500])
    place.write("c.jsonl", documents(1, start=900))
    ended = place.run(code=3)
    assert (ended.report["failures_open"], ended.report["shards"]["failed"]) == (2, 2)
    assert where(place) == [
        ("a.jsonl.gz", None, "truncated_input", None),
        ("b.jsonl.gz", None, "truncated_input", None),
    ]
    assert place.ask("failures").out.startswith("a.jsonl.gz: truncated_input: ")
    assert place.run("--limit", "1", code=3).report["failures_open"] == 2

    (place.shards / "a.jsonl.gz").write_bytes(whole)
    assert place.run(code=3).report["failures_open"] == 1
    (place.shards / "b.jsonl.gz").unlink()
    assert place.run().report["failures_open"] == 0
    assert listed(place) == []


def test_a_shard_that_never_gave_a_record_and_is_gone(place):
    place.write("a.jsonl", documents(1))
    (place.shards / "b.jsonl.gz").write_bytes(gzip.compress(b"x" * 100)[:20])
    place.run(code=3)
    assert [one[0] for one in where(place)] == ["b.jsonl.gz"]
    (place.shards / "b.jsonl.gz").unlink()
    assert place.run().report["failures_open"] == 0


def test_before_the_first_run(place):
    for arguments in ([], ["--retry"]):
        ended = place.ask("failures", *arguments, code=1)
        assert ended.out == ""
        assert "not there yet" in ended.err
    assert not place.state.exists()
