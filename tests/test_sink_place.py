"""Where the embedded engine may be, and what is said of targets."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from ingestor.errors import ConfigError, ResourceError
from ingestor.sink import check_target, place
from ingestor.sink.remarks import remarks
from tests.running import Workplace, documents
from tests.sinks import embedded, make

pytestmark = pytest.mark.whole

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
36 22 0:30 / /proc rw,nosuid - proc proc rw
40 22 0:41 / /home rw,relatime shared:20 master:2 - nfs4 filer:/export/home rw,vers=4.2,addr=10.0.0.5
41 40 254:16 / /home/local rw - xfs /dev/vdb rw
42 22 0:42 / /mnt/with\040space rw - cifs //host/share rw
43 22 0:43 / /mnt/ssh rw - fuse.sshfs me@host:/ rw,user_id=0
44 22 0:44 / /mnt/fuse rw - fuse.ntfs-3g /dev/sdb1 rw
45 22 0:45 / /data rw - nfs filer:/data rw
46 45 254:32 / /data rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/things", None),
        ("/home/me/things", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/me", None),
        ("/home/local/things", None),
        ("/mnt/with space/things", "cifs"),
        ("/mnt/ssh/things", "fuse.sshfs"),
        ("/mnt/fuse/things", None),
        ("/data/things", None),  # a disk is mounted over it
    ],
)
def test_network_file_systems_are_known(path: str, kind: str | None) -> None:
    assert place.network_file_system(MOUNTS, path) == kind


def test_a_folder_over_the_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"40 22 0:41 / {tmp_path} rw - nfs4 filer:/export rw\n")
    monkeypatch.setattr(place, "MOUNTS", mounts)
    target = embedded(tmp_path / "engine")
    for look in (make, check_target):
        with pytest.raises(ConfigError, match=r"qdrant.path: .*network file system \(nfs4\).*local disk"):
            look(target)
    assert not (tmp_path / "engine").exists()


def test_a_system_that_tells_no_mounts_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "MOUNTS", tmp_path / "nothing")
    make(embedded(tmp_path / "engine"))


Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """Sets how much room there is."""

    def set_free(nbytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10 * nbytes, 9 * nbytes, nbytes))

    return set_free


def test_a_full_disk_is_refused_and_a_nearly_full_one_told(tmp_path: Path, free) -> None:
    target = embedded(tmp_path)
    free(100 << 20)
    with pytest.raises(ResourceError, match="100 MiB are free, and the embedded engine needs 128 MiB"):
        make(target)
    free(500 << 20)
    make(target)
    [(kind, detail)] = remarks(target)
    assert kind == "little_room"
    assert "500 MiB are free" in detail
    free(5 << 30)
    assert list(remarks(target)) == []


def test_a_collection_needs_room_for_itself_once_more(
    tmp_path: Path, free, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = embedded(tmp_path)
    make(target)
    (tmp_path / "things" / "vectors").write_bytes(bytes(8 << 20))
    monkeypatch.setattr(place, "LITTLE_BYTES", 0)
    free(12 << 20)
    assert [kind for kind, _ in remarks(target)] == ["little_room"]
    free(64 << 20)
    assert list(remarks(target)) == []


def test_settings_of_servers_are_told_to_be_idle(tmp_path: Path) -> None:
    target = embedded(tmp_path, shard_number=2, replication_factor=1)
    assert [detail.split(":")[0] for _, detail in remarks(target)] == [
        "qdrant.shard_number",
        "qdrant.replication_factor",
    ]
    assert list(remarks(replace(target, url="http://host", path=None))) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://qdrant.example.org:6333", True),
        ("qdrant:6333", True),
        ("http://10.0.0.7", True),
        ("http://[2001:db8::1]:6333", True),
        ("https://qdrant.example.org:6333", False),
        ("http://localhost:6333", False),
        ("http://127.0.0.1:6333", False),
        ("http://[::1]:6333", False),
    ],
)
def test_a_key_that_anybody_can_read_is_told(url: str, told: bool) -> None:
    target = replace(embedded(Path()), url=url, path=None, api_key="sesame")
    kinds = [kind for kind, detail in remarks(target)]
    assert kinds == (["key_in_clear"] if told else [])
    assert "sesame" not in str(list(remarks(target)))
    assert list(remarks(replace(target, api_key=None))) == []


@pytest.mark.parametrize("url", [None, "http://localhost:6333"])
@pytest.mark.parametrize(("datatype", "told"), [("uint8", True), ("float16", False), (None, False)])
def test_vectors_that_would_become_zero_are_told(
    tmp_path: Path, url: str | None, datatype: str | None, told: bool
) -> None:
    kinds = [kind for kind, _ in remarks(embedded(tmp_path, url=url, datatype=datatype))]
    assert ("lossy_datatype" in kinds) == told


def test_a_run_warns_at_once_and_in_its_report(tmp_path: Path) -> None:
    place_ = Workplace(tmp_path, qdrant={"shard_number": 3})
    place_.write("a.jsonl", documents(3))
    ended = place_.run()
    assert "shard_number" in ended.err.split("documents")[0]
    [warning] = ended.report["warnings"]
    assert (warning["shard"], warning["kind"]) == ("things", "setting_ignored")
    assert "qdrant.shard_number" in place_.ask("check").out
