"""Mistakes that people make, and what they are told: what happened, where, and what to do."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingestor import cli
from ingestor.lock import Lock
from tests.running import Workplace, documents


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command line and the words that its one error line must have.

    Attributes:
        command: after `python -m ingestor`; `CONFIG` stands for `--config c.yaml`.
        what: happened.
        where: a file with its line, a setting, an option, a folder or an address.
        do: what the reader can do next.
    """

    command: str
    code: int
    what: str
    where: str
    do: str

    def __str__(self) -> str:
        return self.command


M = Mistake
MISTAKES = [
    # the configuration
    M("--config none.yaml", 2, "no such file", "none.yaml", "name the configuration with --config"),
    M("--config shards", 2, "Is a directory", "shards", "name a YAML file with --config"),
    M("--config latin1.yaml", 2, "not UTF-8 text at byte 8", "latin1.yaml", "save it as UTF-8"),
    M("--config broken.yaml", 2, "not valid YAML", "broken.yaml, line 1", "needs quotes"),
    M("--config list.yaml", 2, "a mapping of sections", "list.yaml", "like 'source:'"),
    M("--config twice.yaml", 2, "'source' is given twice", "twice.yaml, line 2", "leave one"),
    M("--config variable.yaml", 2, "DATA is not set", "variable.yaml, line 1", "${DATA:-default}"),
    M("--config nothing.yaml", 2, "source.paths is missing", "nothing.yaml", "set it"),
    M("CONFIG --set qdrant.colection=a", 2, "not a known setting", "--set qdrant.colection", "did you mean"),
    M("CONFIG --set qdrant.collection", 2, "--set qdrant.collection", "--set", "write --set section.field="),
    M("CONFIG --set chunk.max_tokens=many", 2, "not 'many'", "chunk.max_tokens", "should be a whole number"),
    M("CONFIG --set source.format=xml", 2, "not 'xml'", "source.format", "should be 'auto', 'jsonl'"),
    M("CONFIG --set source.max_line_bytes=much", 2, "not 'much'", "max_line_bytes", "a size like 64MiB"),
    M("CONFIG --set qdrant.url=h:6333", 2, "should be", "qdrant.url", "like http://localhost:6333"),
    M("CONFIG --set qdrant.url=http://a:b@h", 2, "no secret", "qdrant.url", "key into QDRANT_API_KEY"),
    M("CONFIG --set qdrant.collection=a/b", 2, "without any of", "qdrant.collection", "should be 1 to"),
    # the command line
    M("walk", 2, "No such command", "'walk'", "see --help"),
    M("run", 2, "Missing option", "--config", "see --help"),
    M("CONFIG --reprot r.json", 2, "No such option", "--reprot", "--report"),
    M("CONFIG --limit 0", 2, "greater than or equal to 1", "--limit", "see --help"),
    M("CONFIG --chunks c.jsonl", 2, "of a --dry-run", "--chunks", "give both"),
    M("CONFIG --dry-run --recreate", 2, "--dry-run changes nothing", "--recreate", "leave either out"),
    M("CONFIG --profile p --dry-run", 2, "a --dry-run has none", "--profile", "leave either out"),
    M("CONFIG --profile-window 5", 2, "two numbers", "--profile-window 5", "as in 20,20"),
    M("CONFIG --html no/r.html", 2, "cannot be written", "--html no/r.html", "make its folder"),
    M("CONFIG --report no/r.json", 2, "cannot be written", "--report no/r.json", "make its folder"),
    M("CONFIG --report shards", 2, "cannot be written", "--report shards", "name another"),
    M("CONFIG --dry-run --chunks shards", 2, "cannot be written", "--chunks shards", "name another"),
    M("search CONFIG", 2, "either a text", "search", "--queries FILE"),
    M("search CONFIG x --filter y", 2, "y", "--filter", "write --filter field=value"),
    M("search CONFIG --queries none", 2, "No such file", "--queries none", "name a file"),
    M("search CONFIG --queries wordless.jsonl", 2, "not empty", "wordless.jsonl, line 1", "give it one"),
    # what there is to read
    M("CONFIG --set source.paths=none.jsonl", 2, "does not exist", "'none.jsonl'", "relative paths start at"),
    M("CONFIG --set source.paths=shards/*.csv", 2, "no shard matches", "shards/*.csv", "mend the pattern"),
    M(
        "CONFIG --set source.paths=ftp://x/y",
        2,
        "cannot be read",
        "ftp://x/y",
        "known are files and https://",
    ),
    # the model
    M("CONFIG --set encoder.model=./none", 2, "no such folder", "encoder.model: ./none", "name another"),
    M("CONFIG --set encoder.model=shards", 2, "no config.json", "encoder.model: shards", "name the folder"),
    M("CONFIG --set encoder.model=package:none/x", 2, "no Python package", "encoder.model", "install it"),
    M("CONFIG --set encoder.model=package:numpy/x", 2, "has no folder 'x'", "encoder.model", "see where"),
    M("CONFIG --set encoder.model=nobody/nothing", 2, "nor to be had", "encoder.model", "check the name"),
    M("CONFIG --set encoder.model=hash:x", 2, "the vector's size", "encoder.model: hash:x", "as in hash:384"),
    M("CONFIG --set chunk.max_tokens=9999", 2, "more than hash:8 takes", "chunk.max_tokens", "set 256"),
    M("CONFIG --set encoder.token_budget=9", 2, "less than one chunk", "encoder.token_budget", "raise it"),
    M("CONFIG --set encoder.device=cuda:99", 2, "CUDA", "encoder.device: cuda:99", "auto"),
    M("CONFIG --set encoder.compile=on", 2, "gains nothing on a CPU", "encoder.compile", "set auto or off"),
    M(
        "CONFIG --set encoder.precision=int8 --set encoder.device=cuda",
        2,
        "int8 is for the CPU",
        "encoder",
        "set device",
    ),
    M("CONFIG --set encoder.truncate_dim=99", 2, "is for real models", "encoder.truncate_dim", "set hash:99"),
    # the machine
    M(
        "CONFIG --set pipeline.prepare_processes=99999",
        2,
        "not '99999'",
        "pipeline.prepare_processes",
        "to 1024",
    ),
    M("CONFIG --set pipeline.buffer_bytes=9", 2, "hold no vector", "pipeline.buffer_bytes", "at least 32"),
    M("CONFIG --set pipeline.buffers=999999999", 1, "of shared memory", "/dev/shm", "lower pipeline"),
    M("CONFIG --set state=c.yaml/s", 2, "lock file cannot be made", "c.yaml/s.lock", "name a folder"),
    M("CONFIG --set state=c.yaml", 2, "not a state file", "state c.yaml", "name another one under `state`"),
    M("CONFIG --set metrics.textfile=no/m", 2, "cannot be written", "textfile: no/m", "make its folder"),
    M("CONFIG --set metrics.port=BUSY", 2, "cannot be used", "metrics.port", "name another"),
    # the collection
    M("promote CONFIG", 2, "nothing to switch", "qdrant.alias", "set it and qdrant.url"),
    M(
        "CONFIG --set qdrant.alias=live",
        2,
        "which only servers know",
        "qdrant",
        "set url, or leave alias out",
    ),
    M("search CONFIG x", 1, "there is none yet", "'things'", "a run makes it"),
    M("status CONFIG", 1, "not there yet", "state state.sqlite3", "run it first"),
    M("CONFIG --set qdrant.path=foreign", 1, "no collection of this", "foreign/things", "name another"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a configuration, and files that are no configurations."""
    monkeypatch.chdir(tmp_path)
    for name in ("QDRANT_URL", "QDRANT_API_KEY", "DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = Workplace(tmp_path, encoder={"model": "hash:8", "device": "cpu"})
    made.write("a.jsonl", documents(3))
    texts = {
        "broken.yaml": "source: {paths: [a}",
        "list.yaml": "- a",
        "twice.yaml": "source: {paths: x}\nsource: {paths: y}",
        "variable.yaml": "source: {paths: ['${DATA}/a']}",
        "nothing.yaml": "",
        "wordless.jsonl": '{"_id": 1}',
        "foreign/things/of-somebody": "else",
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path("latin1.yaml").write_bytes(b"source: \xff")
    return made


def words(command: str) -> list[str]:
    return command.replace("CONFIG", "--config c.yaml").split()


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_says_what_happened_where_and_what_to_do(place, capfd, mistake):
    with socket.create_server(("", 0)) as busy:
        command = mistake.command.replace("BUSY", str(busy.getsockname()[1]))
        assert cli.execute(words(command)) == mistake.code
    out, err = capfd.readouterr()
    said = [line for line in (err + out).splitlines() if line.startswith(("error: ", "FAIL"))]
    assert "Traceback" not in err
    assert len(said) == 1, err
    for part in (mistake.what, mistake.where, mistake.do):
        assert part in said[0]
    assert not re.search(r"\[Errno \d+\]|<class|0x[0-9a-f]{6}", said[0]), "words of the machine"


def test_another_holds_the_lock(place, capfd):
    with Lock.acquire(Path("state.sqlite3.lock")):
        assert cli.execute(words("CONFIG --no-progress")) == 5
    [said] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "state.sqlite3.lock: held by process" in said
    assert "--lock-wait" in said


def test_a_run_that_waited_in_vain_is_not_told_to_wait(place, capfd):
    with Lock.acquire(Path("state.sqlite3.lock")):
        assert cli.execute(words("CONFIG --no-progress --lock-wait 0.1")) == 5
    assert "--lock-wait" not in capfd.readouterr().err


@pytest.mark.slow
def test_no_server_is_there(place, capfd):
    """Port 1 is nobody's; a run would be told the same, with exit code 1."""
    assert (
        cli.execute(words("check CONFIG --set qdrant.url=http://localhost:1 --set qdrant.grpc_port=1")) == 1
    )
    said, summary = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert "a run would end: qdrant" in summary
    for part in ("no Qdrant server can be reached", "http://localhost:1 (gRPC port 1)", "is it running"):
        assert part in said


@pytest.mark.slow
def test_collections_of_others_are_refused(place):
    """Other vectors, another state file, a collection that is gone: each names the way out."""
    place.run()
    stored = place.points().keys()
    other_model = place.run("--set", "encoder.model=hash:16", code=4).errors
    other_state = place.run("--set", "state=other.sqlite3", code=4).errors
    gone = place.run("--set", "qdrant.collection=gone", code=4).errors
    for [said], what, do in (
        (other_model, "vectors of another model (model: 'hash:8' there, 'hash:16' here", "--recreate"),
        (other_state, "written from another state file", "--adopt"),
        (gone, "there is no such collection", "--recreate"),
    ):
        assert what in said
        assert "nothing was written" in said
        assert do in said
    assert place.points().keys() == stored


@pytest.mark.whole
def test_what_was_refused_is_named(place):
    """The last lines name shard, line and reason, and what to do."""
    place.shards.joinpath("b.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 2\n{"id": 3}\n')
    place.shards.joinpath("c.jsonl").write_text(json.dumps({"id": "4", "text": "a"}) + "\n")
    ended = place.run(code=3)
    lines = [re.sub(" +", " ", line) for line in ended.err.splitlines()]
    assert any(line.startswith("refused b.jsonl:2: bad_json: ") for line in lines)
    assert any(line.startswith("refused b.jsonl:3: missing_text: ") for line in lines)
    assert any(line.startswith("failures 2 open; `failures` lists them: mend the shards") for line in lines)
