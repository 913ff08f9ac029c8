"""Whole runs over shards on a web server: what is read, what is said, and how they are stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestor import cli
from tests.running import Ended, Workplace, documents
from tests.web import WebServer, page, serve

pytestmark = pytest.mark.whole

MIB = 1 << 20


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serve() as server:
        yield server


def place_for(folder: Path, *urls: str, **source: object) -> Workplace:
    return Workplace(folder, source={"paths": list(urls), **source})


def jsonl(rows: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def large(count: int = 2 * MIB // 10_000) -> list[dict[str, object]]:
    """Documents whose texts are short; what they have besides is read and left out."""
    return [document | {"filler": "x" * 10_000} for document in documents(count, words=5)]


def ingest(place: Workplace, *options: str, code: int = 0) -> Ended:
    """Run, expecting an exit code."""
    ended = place.end(place.start_warm_run(*options))
    assert ended.code == code, ended.err
    return ended


def written_by(place: Workplace) -> bytes:
    """All that runs left in the folder, but for what they were told."""
    files = (path for path in place.folder.rglob("*") if path.is_file() and path.name != "c.yaml")
    return b"".join(path.read_bytes() for path in files)


def test_broken_connections_change_nothing_and_secrets_stay_out(
    tmp_path: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = large()
    url = f"{web.url.replace('//', '//me:hunter-1@')}/a.jsonl?X-Amz-Signature=hunter-2"
    web.pages["/a.jsonl"] = page(jsonl(rows), cuts=[70_000, MIB + 5, MIB + 400_000])
    place = place_for(tmp_path, url)
    ended = ingest(place)
    assert ended.documents == {"read": len(rows), "indexed": len(rows)}
    assert "retry" in ended.err
    assert not web.pages["/a.jsonl"].cuts
    kept = {payload["document"]: payload["text"] for _, payload in place.points().values()}
    assert kept == {row["id"]: row["text"] for row in rows}

    web.requests.clear()
    again = ingest(place, "--log-format", "json")
    assert again.documents == {"read": len(rows), "unchanged": len(rows)}
    assert web.ranges("/a.jsonl") == ["bytes=0-0"], "an unchanged shard is looked at, not read"
    monkeypatch.chdir(place.folder)
    assert cli.execute(["check", "--config", "c.yaml"]) == 0
    checked = "".join(capfd.readouterr())
    assert "a.jsonl" in checked
    assert "hunter" not in ended.err + again.err + checked
    assert b"hunter" not in written_by(place)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_stop_does_not_wait_for_a_server_that_hangs(tmp_path: Path, web: WebServer, format: str) -> None:  # noqa: A002
    rows = large()
    content = jsonl(rows)
    if format == "parquet":
        import pyarrow as pa
        from pyarrow import parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a", compression="none", use_dictionary=False)
        content = (tmp_path / "a").read_bytes()
    web.pages["/a"] = page(content, hang_at=MIB + 70_000)
    place = place_for(tmp_path, f"{web.url}/a")
    stop_when_it_hangs(place, web)
    web.pages["/a"].hang_at = None
    assert ingest(place).documents["read"] == len(rows)
    assert len(place.recorded()) == len(rows)


def test_a_stop_does_not_wait_for_a_listing_that_hangs(tmp_path: Path, web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(b"x", hang_before=True)
    stop_when_it_hangs(place_for(tmp_path, f"{web.url}/a.jsonl"), web)


def stop_when_it_hangs(place: Workplace, web: WebServer) -> None:
    """Stop a run that waits for the server; it gives up the server before its patience has ended once."""
    running = place.start_warm_run()
    assert web.hanging.wait(60)
    running.send_signal(signal.SIGTERM)
    ended = place.end(running)
    assert (ended.code, ended.report["status"]) == (143, "stopped"), ended.err
    assert "retry" not in ended.err


def test_what_cannot_be_had_deletes_nothing(tmp_path: Path, web: WebServer) -> None:
    """Under `mirror`, a shard that is refused is an error of its own, and one that is gone ends the run."""
    web.pages["/a.jsonl"] = page(jsonl(documents(5)))
    web.pages["/b.jsonl"] = page(jsonl(documents(5, start=5)))
    place = place_for(tmp_path, f"{web.url}/a.jsonl", f"{web.url}/b.jsonl", sync="mirror")
    ingest(place)
    web.pages["/b.jsonl"].users = ("somebody",)
    ended = ingest(place, code=3)
    assert [(error["shard"], error["kind"]) for error in ended.report["shard_errors"]] == [
        (f"{web.url}/b.jsonl", "unreadable")
    ]
    del web.pages["/b.jsonl"]
    [error] = ingest(place, code=2).errors
    assert error.startswith(f"error: source.paths: {web.url}/b.jsonl does not exist; ")
    assert len(place.recorded()) == 10
    web.pages["/a.jsonl"].users = ("somebody",)
    place.configure(source={"paths": [f"{web.url}/a.jsonl"]})
    [error] = ingest(place, code=2).errors
    assert f"no shard matches {web.url}/a.jsonl; {web.url}/a.jsonl: 401 Unauthorized" in error
