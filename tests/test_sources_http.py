"""Shards on HTTP servers that do what servers do on bad days."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from aiohttp import InvalidUrlRedirectClientError
from backports import zstd
from pyarrow import parquet as pq

from ingestor.errors import ConfigError, SourceError, StoppedError
from ingestor.records import RawBlock
from ingestor.sources import range_file
from ingestor.sources.faults import library_errors, retry_after_s
from ingestor.sources.listing import Listing, list_shards
from ingestor.sources.read import read_blocks
from ingestor.sources.remote import Remote
from ingestor.sources.stores import PIECE_BYTES
from tests.reading import FIELDS, QUICK, Reading, read_paths, read_shards
from tests.web import WebServer, page, serve

MIB = 1 << 20


def lines(count: int, text: str = "Some text.") -> bytes:
    return b"".join(b'{"id": %d, "text": "%s"}\n' % (number, text.encode()) for number in range(count))


def noise(size: int) -> bytes:
    """Lines that cannot be packed."""
    dice, out = random.Random(1), bytearray()
    while len(out) < size:
        out += b'{"id": %d, "text": "%s"}\n' % (len(out), dice.randbytes(300).hex().encode())
    return bytes(out)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serve() as server:
        yield server


def listed(*urls: str) -> Listing:
    with Remote(QUICK) as remote:
        return list_shards(urls, None, remote)


def whole(found: Reading, content: bytes) -> bool:
    """Whether each line became a document, once and in order."""
    ids = [str(json.loads(line)["id"]) for line in content.splitlines()]
    [end] = found.ends.values()
    return found.ids == ids and end.finished and not found.failures


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
async def test_read_whole_whatever_the_packing(web: WebServer, pack) -> None:
    content = noise(3 * MIB)
    web.pages["/a"] = page(pack(content))
    assert whole(await read_paths(f"{web.url}/a"), content)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
async def test_read_whole_whatever_the_size(web: WebServer, size: int, sized: bool, ranges: bool) -> None:
    content = b"x" * size
    web.pages["/a.txt"] = page(content, sized=sized, ranges=ranges)
    found = await read_paths(f"{web.url}/a.txt")
    assert [document.text for document in found.documents] == [content.decode()] * bool(size)
    assert found.ends[f"{web.url}/a.txt"].finished


async def test_a_connection_that_breaks_is_taken_up_at_its_byte(web: WebServer) -> None:
    content = noise(4 * MIB)
    cuts = [100_000, MIB + 1, MIB + 700_000, 3 * MIB + 1]
    web.pages["/a.jsonl"] = page(content, cuts=list(cuts))
    assert whole(await read_paths(f"{web.url}/a.jsonl"), content)
    assert len(web.ranges("/a.jsonl")) == 2 + len(cuts)
    assert web.sent < 1.2 * len(content), "hardly anything is sent twice"


async def test_a_server_without_ranges_begins_again(web: WebServer) -> None:
    content = noise(2 * MIB)
    web.pages["/a.jsonl"] = page(content, cuts=[MIB + 9], ranges=False)
    assert whole(await read_paths(f"{web.url}/a.jsonl"), content)
    assert len(web.ranges("/a.jsonl")) == 3
    web.pages["/a.jsonl"] = page(content, cuts=[500_000, MIB + 9], ranges=False, sized=False)
    assert whole(await read_paths(f"{web.url}/a.jsonl"), content)


@pytest.mark.parametrize("ranges", [True, False])
async def test_versions_are_never_mixed(web: WebServer, ranges: bool) -> None:
    """The object is replaced while it is being read."""
    old = noise(4 * MIB)
    web.pages["/a.jsonl"] = page(old)
    with Remote(QUICK) as remote:
        listing = await asyncio.to_thread(list_shards, [f"{web.url}/a.jsonl"], None, remote)
        new = page(old.replace(b"id", b"ID"), ranges=ranges)
        web.pages["/a.jsonl"] = page(old, cuts=[3 * MIB + 9], ranges=ranges, then=new)
        blocks = await read_shards(listing.shards, remote=remote)
    assert blocks[-1].end
    assert [kind for kind, _ in blocks[-1].end.errors] == ["changed"]
    read = b"".join(block.data for block in blocks)
    assert read
    assert old.startswith(read)


async def test_a_change_between_listing_and_reading_is_told(web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(lines(3))
    with Remote(QUICK) as remote:
        listing = await asyncio.to_thread(list_shards, [f"{web.url}/a.jsonl"], None, remote)
        web.pages["/a.jsonl"] = page(lines(4))
        assert await kinds(listing, remote) == ["changed"]
        del web.pages["/a.jsonl"]
        assert await kinds(listing, remote) == ["vanished"]
        web.pages["/a.jsonl"] = page(lines(3), users=("somebody",))
        assert await kinds(listing, remote) == ["unreadable"]


async def kinds(listing: Listing, remote: Remote) -> list[str]:
    """The errors that end the shards of a listing."""
    ends = [block.end for block in await read_shards(listing.shards, remote=remote) if block.end]
    return [kind for end in ends for kind, _ in end.errors]


async def test_without_a_version_nothing_is_taken_up_again(web: WebServer) -> None:
    content = noise(2 * MIB)
    web.pages["/a.jsonl"] = page(content, etag="")
    assert whole(await read_paths(f"{web.url}/a.jsonl"), content)
    web.pages["/a.jsonl"] = page(content, etag="", cuts=[MIB + 9])
    [end] = (await read_paths(f"{web.url}/a.jsonl")).ends.values()
    assert [kind for kind, _ in end.errors] == ["unreadable"]
    assert "names no version" in end.errors[0][1]


async def test_the_fingerprint_is_the_etag_or_date_and_size(web: WebServer) -> None:
    def fingerprint(**conduct: object) -> str:
        web.pages["/a.jsonl"] = page(lines(2), **conduct)
        return listed(f"{web.url}/a.jsonl").shards[0].fingerprint

    date = "Mon, 01 Jan 2026 00:00:00 GMT"
    assert await asyncio.to_thread(fingerprint, etag='"x"', modified=date) == '"x"'
    assert await asyncio.to_thread(fingerprint, etag="", modified=date) == f"{date} {len(lines(2))}"
    unknown = [await asyncio.to_thread(fingerprint, etag="") for _ in range(2)]
    assert unknown[0] != unknown[1], "what has no version is always read again"


async def test_a_server_that_is_busy_is_asked_again_when_it_says(web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(lines(2), first=[(503, {"Retry-After": "1"}), (429, {})])
    begun = time.monotonic()
    found = await read_paths(f"{web.url}/a.jsonl")
    assert found.ids == ["0", "1"]
    assert time.monotonic() - begun > 1


async def test_a_server_that_stays_busy_is_an_error_of_its_shard(web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(lines(2))
    web.pages["/b.jsonl"] = page(lines(2))
    with Remote(QUICK) as remote:
        listing = await asyncio.to_thread(
            list_shards, [f"{web.url}/{name}.jsonl" for name in "ab"], None, remote
        )
        web.pages["/a.jsonl"].first = [(503, {})] * 100
        assert await kinds(listing, remote) == ["unreachable"]
    assert len(web.ranges("/a.jsonl")) == 1 + QUICK.tries


async def test_a_server_that_hangs_is_given_up(web: WebServer) -> None:
    content = noise(2 * MIB)
    web.pages["/a.jsonl"] = page(content, hang_at=MIB + 5)
    [end] = (await read_paths(f"{web.url}/a.jsonl")).ends.values()
    assert [kind for kind, _ in end.errors] == ["unreachable"]


async def test_a_hanging_server_is_called_off(web: WebServer) -> None:
    """What a stop does: whatever waits for the server ends at once."""
    web.pages["/a.jsonl"] = page(noise(3 * MIB), hang_at=MIB + 5)
    stop = asyncio.Event()
    async with asyncio.timeout(20):
        with Remote() as remote, ThreadPoolExecutor(1) as unpack:
            listing = await asyncio.to_thread(list_shards, [f"{web.url}/a.jsonl"], None, remote)
            reading = read_blocks(
                listing.shards,
                format="auto",
                fields=FIELDS,
                block_bytes=1 << 18,
                max_line_bytes=1 << 20,
                unpack=unpack,
                stop=stop,
                remote=remote,
            )

            async def read() -> list[RawBlock]:
                return [block async for block in reading]

            async def call_off() -> None:
                await asyncio.to_thread(web.hanging.wait)
                stop.set()

            async with asyncio.TaskGroup() as group:
                group.create_task(call_off())
                blocks = await remote.until(stop, read())
    assert not [block for block in blocks if block.end]


async def test_what_is_awaited_until_a_stop_fails_as_it_does() -> None:
    with Remote(QUICK) as remote:
        assert await remote.until(asyncio.Event(), asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ConfigError, match="ftp"):
            await remote.until(asyncio.Event(), asyncio.to_thread(list_shards, ["ftp://x"], None, remote))


async def test_a_hanging_server_is_called_off_while_shards_are_listed(web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(b"x", hang_before=True)
    with Remote() as remote, ThreadPoolExecutor(1) as threads:
        looking = threads.submit(list_shards, [f"{web.url}/a.jsonl"], None, remote)
        await asyncio.to_thread(web.hanging.wait)
        remote.abort()
        with pytest.raises(StoppedError):
            await asyncio.wrap_future(looking)


def write_parquet(path: Path, rows: int, group: int) -> pa.Table:
    dice = random.Random(2)
    table = pa.table(
        {
            "id": list(range(rows)),
            "text": [dice.randbytes(200).hex() for _ in range(rows)],
            "other": [dice.randbytes(500) for _ in range(rows)],
        }
    )
    pq.write_table(table, path, row_group_size=group)
    return table


async def test_parquet_is_read_by_ranges_and_only_what_is_asked_for(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_file, "BLOCK_BYTES", 256 << 10)
    table = write_parquet(tmp_path / "a.parquet", 20_000, 10_000)
    content = (tmp_path / "a.parquet").read_bytes()
    web.pages["/a"] = page(content, cuts=[len(content) - 100, 3 * MIB + 7])
    found = await read_paths(f"{web.url}/a")
    assert [document.text for document in found.documents] == table["text"].to_pylist()
    assert web.sent < 0.75 * len(content)
    assert not web.pages["/a"].cuts


async def test_parquet_needs_ranges(web: WebServer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 10, 10)
    web.pages["/a"] = page((tmp_path / "a.parquet").read_bytes(), ranges=False)
    write_parquet(tmp_path / "b.parquet", 10_000, 10_000)
    web.pages["/b"] = page((tmp_path / "b.parquet").read_bytes(), ranges=False)
    [end] = (await read_paths(f"{web.url}/b")).ends.values()
    assert [kind for kind, _ in end.errors] == ["unreadable"]
    assert "no ranges" in end.errors[0][1]
    assert len((await read_paths(f"{web.url}/a")).documents) == 10, "a small one is had whole"


async def test_parquet_that_changes_is_no_mixture(web: WebServer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 20_000, 5_000)
    web.pages["/a"] = page((tmp_path / "a.parquet").read_bytes())
    with Remote(QUICK) as remote:
        listing = await asyncio.to_thread(list_shards, [f"{web.url}/a"], None, remote)
        web.pages["/a"].etag = '"another"'
        assert await kinds(listing, remote) == ["changed"]


INDEX = """<html><a href="?C=N;O=D">Name</a> <a href="../">up</a> <a href="a.jsonl">a</a>
<a href="b.jsonl">b</a> <a href=".hidden">h</a> <a href="c.jsonl.tmp">t</a> <a href="d.txt">d</a></html>"""


def test_an_index_is_a_folder_and_patterns_match_it(web: WebServer) -> None:
    web.pages["/in/"] = web.pages["/in"] = page(INDEX.encode(), kind="text/html")
    for name in ("a.jsonl", "b.jsonl", ".hidden", "c.jsonl.tmp"):
        web.pages[f"/in/{name}"] = page(lines(1))

    def names(*paths: str) -> list[str]:
        return [shard.name.removeprefix(web.url) for shard in listed(*paths).shards]

    assert names(f"{web.url}/in/") == ["/in/a.jsonl", "/in/b.jsonl"]
    assert listed(f"{web.url}/in/").warnings == [(f"{web.url}/in/d.txt", "vanished", "404 Not Found")]
    assert names(f"{web.url}/in/*.jsonl", f"{web.url}/in/a.jsonl") == ["/in/a.jsonl", "/in/b.jsonl"]
    assert names(f"{web.url}/in/c.jsonl.tmp") == ["/in/c.jsonl.tmp"]
    assert [kind for _, kind, _ in listed(f"{web.url}/in/*.csv").warnings] == ["no_match"]


def test_secrets_are_used_and_not_shown(web: WebServer) -> None:
    user = "Basic " + base64.b64encode(b"me:secret-1").decode()
    web.pages["/a.jsonl"] = page(lines(1), users=(user,))
    host = web.url.removeprefix("http://")
    [shard] = listed(f"http://me:secret-1@{host}/a.jsonl?X-Amz-Signature=secret-2&part=3#secret-3").shards
    assert shard.name == f"{web.url}/a.jsonl?part=3"
    assert web.requests[-1][0] == "/a.jsonl?X-Amz-Signature=secret-2&part=3"
    listing = listed(f"http://me:secret-4@{host}/a.jsonl?sig=secret-5")
    assert listing.warnings[0][:2] == (f"{web.url}/a.jsonl", "unreadable")
    assert "secret" not in str(listing.warnings)
    with pytest.raises(ConfigError, match=r"b\.jsonl does not exist") as raised:
        listed(f"http://me:secret-6@{host}/b.jsonl?sig=secret-7")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("value", ["\u00b2", "soon", "Wed, 21 Oct 99999 07:28:00 GMT", ""])
def test_a_pause_that_cannot_be_read_is_none(value: str) -> None:
    assert retry_after_s(value) is None


def test_a_redirection_to_no_url_is_not_tried_again() -> None:
    with pytest.raises(SourceError) as raised, library_errors("http://host/a"):
        raise InvalidUrlRedirectClientError("http://me:pass@secret@[bad?sig=secret")
    assert (raised.value.kind, type(raised.value)) == ("unreadable", SourceError)
    assert "secret" not in raised.value.detail


def test_one_object_by_several_signatures_is_one_shard(web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(lines(1))
    assert len(listed(f"{web.url}/a.jsonl?sig=1", f"{web.url}/a.jsonl?sig=2").shards) == 1
    web.pages["/a.jsonl"].etag = ""
    with pytest.raises(ConfigError, match="differ only in what may be secret"):
        listed(f"{web.url}/a.jsonl?sig=1", f"{web.url}/a.jsonl?sig=2")


def test_a_server_that_is_not_there_is_a_warning_beside_other_shards(web: WebServer) -> None:
    web.pages["/a.jsonl"] = page(lines(1))
    listing = listed(f"{web.url}/a.jsonl", "http://127.0.0.1:9/b.jsonl")
    assert [shard.name for shard in listing.shards] == [f"{web.url}/a.jsonl"]
    [(name, kind, detail)] = listing.warnings
    assert (name, kind) == ("http://127.0.0.1:9/b.jsonl", "unreadable")
    assert "Connect" in detail


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("http://x/y", "aiohttp", "http"),
        ("s3://x/y", "s3fs", "s3"),
        ("gs://x/y", "gcsfs", "gcs"),
        ("az://x/y", "adlfs", "azure"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{package} is not installed.*ingestor\[{extra}\]"):
        listed(url)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/a", "file:///a", "s3://key:secret@bucket/a", "http:///a", "http://[::1/a?sig=secret"),
        *(
            "https://me:pass@secret@host:port/a",
            "https://host:99999/a",
            "ftp://me:pass@secret@host/a?sig=secret",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        listed(url)
    assert "secret" not in str(raised.value)
