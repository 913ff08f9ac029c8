"""Paths to shards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingestor.errors import ConfigError
from ingestor.sources.listing import list_shards


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names(*paths: object, root: Path | None = None) -> list[str]:
    listing = list_shards([str(path) for path in paths], root and str(root))
    return [shard.name for shard in listing.shards]


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jsonl", "a/b/2.jsonl", "c/3.txt", "c/4.jsonl")
    assert names(tmp_path / "a") == ["1.jsonl", "b/2.jsonl"]
    assert names(tmp_path / "c/*.jsonl") == ["4.jsonl"]
    assert names(tmp_path / "a", tmp_path / "c/3.txt") == ["a/1.jsonl", "a/b/2.jsonl", "c/3.txt"]
    assert names(tmp_path / "**/*.jsonl") == ["a/1.jsonl", "a/b/2.jsonl", "c/4.jsonl"]
    assert names(tmp_path / "*/b", root=tmp_path.parent) == [f"{tmp_path.name}/a/b/2.jsonl"]


def test_names_do_not_depend_on_the_order_of_paths(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jsonl", "b/2.jsonl")
    assert names(tmp_path / "b", tmp_path / "a/*") == names(tmp_path / "a/*", tmp_path / "b")


def test_each_file_once_by_the_way_without_links(tmp_path: Path) -> None:
    make(tmp_path, "z/real/1.jsonl")
    (tmp_path / "a-link").symlink_to("z/real")
    (tmp_path / "b-link.jsonl").symlink_to("z/real/1.jsonl")
    assert names(tmp_path) == ["z/real/1.jsonl"]
    assert names(tmp_path / "a-link", tmp_path / "b-link.jsonl", tmp_path / "*/*/1.jsonl") == [
        "z/real/1.jsonl"
    ]
    assert names(tmp_path / "a-link") == ["1.jsonl"]


def test_what_is_none_of_the_users_is_passed_over_unless_named(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl", ".hidden", "_SUCCESS", "b.jsonl.tmp", ".a.jsonl.crc", ".git/config")
    assert names(tmp_path) == names(tmp_path / "*") == ["a.jsonl"]
    assert names(tmp_path / "b.jsonl.tmp") == ["b.jsonl.tmp"]


def test_a_name_that_exists_is_no_pattern(tmp_path: Path) -> None:
    make(tmp_path, "part[1].jsonl", "part1.jsonl")
    assert names(tmp_path / "part[1].jsonl") == ["part[1].jsonl"]


def test_names_are_text_and_distinct(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for name in (b"raw-\xff", b"raw-\\xff", b"raw-\xfe", "cafe\u0301".encode(), "caf\u00e9".encode()):
        with open(folder + b"/" + name, "w"):
            pass
    found = names(tmp_path)
    assert len(set(found)) == 5
    assert all(name.encode() for name in found)
    assert "./raw-\\xff" in found


def test_what_is_no_file_is_a_warning(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    listing = list_shards([str(tmp_path)])
    assert [shard.name for shard in listing.shards] == ["a.jsonl"]
    assert [warning[:2] for warning in listing.warnings] == [("gone", "vanished"), ("pipe", "not_a_file")]


def test_a_path_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        list_shards(["nowhere.jsonl"])


def test_a_pattern_may_match_nothing(tmp_path: Path) -> None:
    assert names(tmp_path / "*.jsonl") == []


def test_the_fingerprint_tells_a_change(tmp_path: Path) -> None:
    make(tmp_path, "a")
    (before,) = list_shards([str(tmp_path)]).shards
    (same,) = list_shards([str(tmp_path)]).shards
    os.utime(tmp_path / "a", ns=(1, 1))
    (after,) = list_shards([str(tmp_path)]).shards
    assert before == same != after
    assert before.size == 1
