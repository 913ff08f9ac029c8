"""search and status over a small collection of its own, in the embedded engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingestor import cli
from ingestor.commands.status import model as model_named
from ingestor.lock import Lock
from ingestor.sink.folder import read_manifest, write_manifest
from ingestor.sink.server_reader import _equal

CONFIG = """
source: {paths: [shards], metadata_fields: [kind, year, dry, wet]}
chunk: {overlap_tokens: 0}
encoder: {model: "hash:64", device: cpu}
qdrant: {path: qdrant, collection: small}
state: state.sqlite3
"""
TEXTS = ["a river in the north", "a mountain in the south", "the history of salt"]
MORE: list[dict[str, Any]] = [{"dry": True}, {}, {"wet": "true"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("small")
    (made / "c.yaml").write_text(CONFIG)
    (made / "shards").mkdir()
    lines = [
        json.dumps({"id": n, "text": text, "kind": "odd" if n % 2 else "even", "year": 2000 + n} | more)
        for n, (text, more) in enumerate(zip(TEXTS, MORE, strict=True))
    ]
    (made / "shards" / "a.jsonl").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "ingestor", "--config", "c.yaml", "--no-progress"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def ask(folder, monkeypatch, capsys):
    """Runs a command on the collection: (exit code, stdout, stderr)."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        code = cli.execute([command, "--config", "c.yaml", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_search_finds_the_same_text_first(ask):
    code, out, _ = ask("search", TEXTS[1], "-k", "2", "--exact", "--json")
    [answer] = map(json.loads, out.splitlines())
    assert code == 0
    assert answer["id"] == "1"
    first, second = answer["hits"]
    assert list(first) == ["document", "chunk", "score", "text", "payload"]
    assert (first["document"], first["chunk"], first["text"]) == ("1", 0, TEXTS[1])
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert first["payload"]["kind"] == "odd"
    assert second["score"] < first["score"]


def test_search_for_people(ask):
    code, out, _ = ask("search", TEXTS[0], "-k", "1")
    assert code == 0
    assert out.splitlines()[0] == TEXTS[0]
    assert "1.000  0 (chunk 0)" in out


def test_search_with_many_queries_keeps_their_order(ask, folder):
    queries = [{"_id": f"q{n}", "text": TEXTS[n % 3] + " and" * (n % 7)} for n in range(70)]
    (folder / "q.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries) + "\n")
    code, out, _ = ask("search", "--queries", "q.jsonl", "-k", "1", "--exact", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [answer["id"] for answer in answers] == [query["_id"] for query in queries]
    for n in range(0, 70, 21):  # those that are a text of the collection, word for word
        assert answers[n]["hits"][0]["document"] == str(n % 3)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        *(("kind=even", {"0", "2"}), ("year=2001", {"1"}), ("year=1", set())),
        *(("document=1", set()), ('document="1"', {"1"}), ("wet=true", {"2"})),
    ],
)
def test_search_with_a_filter(ask, condition, found):
    _, out, _ = ask("search", "salt", "--exact", "--json", "--filter", condition)
    assert {hit["document"] for hit in json.loads(out)["hits"]} == found


def test_search_with_a_filter_by_a_number_that_is_kept_as_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    Path("shards").mkdir()
    large = 10**30
    lines = [json.dumps({"id": n, "text": "salt", "year": large + n}) for n in range(2)]
    Path("shards", "a.jsonl").write_text("\n".join(lines))
    assert cli.execute(["--config", "c.yaml", "--no-progress"]) == 0
    for year, documents in ((large + 1, ["1"]), (1 << 63, []), ("9" * 5000, [])):
        capsys.readouterr()
        assert (
            cli.execute(["search", "--config", "c.yaml", "salt", "--json", "--filter", f"year={year}"]) == 0
        )
        assert [hit["document"] for hit in json.loads(capsys.readouterr().out)["hits"]] == documents


def test_search_warns_of_a_filter_by_a_field_that_is_not_there(ask):
    code, out, err = ask("search", "salt", "--filter", "knid=even", "--filter", "year=1")
    assert (code, out.splitlines()[1]) == (0, "  nothing found")
    [said] = err.splitlines()
    assert said.startswith("warning: --filter: none of the first 3 points has 'knid' (there are: chunk, ")
    assert "kind" in said
    assert ask("search", "salt", "--filter", "year=1")[2] == ""


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("document=01", "'document' is text there; write --filter 'document=\"01\"'"),
        ("dry=true", "the embedded engine cannot compare 'dry' with true; a server can"),
    ],
)
def test_search_says_how_to_ask_for_what_is_kept_otherwise(ask, condition, said):
    """Ids are text in payloads, and so is each cell of a CSV file."""
    code, out, err = ask("search", "salt", "--filter", condition)
    assert (code, out.splitlines()[1]) == (0, "  nothing found")
    assert err == f"warning: --filter: {said}\n"


def test_a_server_compares_truth_values():
    assert _equal("dry", True).field.match.boolean is True


def test_search_warns_of_a_long_query(ask):
    code, out, err = ask("search", "salt " * 500, "--json")
    assert code == 0
    assert json.loads(out)["hits"]
    assert err.startswith("warning: query 1: only its first ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"_id": 1}', "line 2: a query needs a text"),
        ('{"text": "a"}', "line 2: a query needs an _id"),
        ("[1]", "line 2: a query needs a text"),
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_search_with_a_bad_query(ask, folder, line, said):
    (folder / "bad.jsonl").write_text('{"_id": "a", "text": "b"}\n' + line)
    code, _, err = ask("search", "--queries", "bad.jsonl")
    assert code == 2
    assert said in err


def test_search_with_another_model(ask):
    code, out, err = ask("search", "salt", "--set", "encoder.model=hash:32")
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1


def test_search_in_a_collection_of_eight_bits_with_a_model_of_more(ask, folder):
    """Vectors in eight bits are a class of their own, whichever side names them."""
    place = folder / "qdrant" / "small"
    manifest = read_manifest(place) or {}
    vector = manifest["identity"]["vector"] | {"precision": "int8"}
    try:
        write_manifest(place, manifest | {"identity": manifest["identity"] | {"vector": vector}})
        code, out, err = ask("search", "salt")
    finally:
        write_manifest(place, manifest)
    assert (code, out) == (4, "")
    assert "precision: 'int8' there, 16 or 32 bits here" in err


def test_where_nothing_is_yet(ask, folder):
    for command in (["search", "salt"], ["verify"], ["status"]):
        code, out, err = ask(*command, "--set", "qdrant.path=elsewhere", "--set", "state=elsewhere/s")
        assert (code, out) == (1, "")
        assert "there is none yet" in err or "not there yet" in err
        assert len(err.splitlines()) == 1
    assert not (folder / "elsewhere").exists()


def test_search_while_another_has_the_collection(ask, folder):
    with Lock.acquire(folder / "qdrant" / "small.lock"):
        code, _, err = ask("search", "salt")
    assert code == 5
    assert "small.lock: held by process" in err
    assert "--lock-wait" not in err  # which is an option of runs


def test_status(ask):
    code, out, _ = ask("status", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["documents"], found["points"], found["failures"]) == (3, 3, 0)
    assert found["identity"]["size"] == 64
    assert found["last_run"]["status"] == "complete"
    assert "documents   3" in ask("status")[1]
    assert found["model"] == found["identity"]["model"] == "hash:64"


def test_a_model_in_a_folder_is_named_beside_its_hash():
    assert model_named({"model": "sha256:01"}, "models/mine") == "models/mine (sha256:01)"
    assert model_named({"model": "sha256:01"}, None) == "sha256:01"  # of an older state file
    assert model_named({"model": "hash:8"}, "hash:8") == "hash:8"
    assert model_named({"model": "hash:8", "precision": "int8"}, "hash:8") == "hash:8, int8"
    assert model_named(None, None) == "not known yet"
