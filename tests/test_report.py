"""The report: its JSON, its lines, and the exit code it stands for."""

import json
import os
import stat
import threading

import pytest

from ingestor.channel import StageTime
from ingestor.errors import IngestorError
from ingestor.watching.report import Documents, Remark, Report


@pytest.fixture
def report() -> Report:
    made = Report(status="complete", target="http://h:6333", collection="wiki", seconds=12.3)
    made.documents = Documents(
        read=907, indexed=850, unchanged=40, duplicates=10, failed=7, skipped=3, rejected=5
    )
    made.rejected_by_kind = {"bad_json": 5, "non_finite": 7}
    made.skipped_by_kind = {"redirect": 3}
    made.tokens.embedded, made.points.upserted = 512_000, 4_100
    made.stages = {"encode": StageTime(11.0, 0.2, 0.1), "prepare": StageTime(3.0, 0.0, 8.0)}
    return made


def test_json_has_the_keys_of_the_contract_in_order(report):
    report.shard_errors = [Remark("a.gz", "truncated_input", "ends at byte 7")]
    found = json.loads(report.to_json())
    assert list(found) == [
        *("status", "exit_code", "target", "collection", "seconds", "shards", "documents", "failures_open"),
        *("rejected_by_kind", "skipped_by_kind", "shard_errors", "warnings", "refused"),
        *("chunks", "points", "tokens"),
        *("replaced_characters", "quality", "rates", "stages", "bottleneck"),
    ]
    assert found["shard_errors"] == [{"shard": "a.gz", "kind": "truncated_input", "detail": "ends at byte 7"}]
    assert found["stages"]["encode"] == {
        "busy_s": 11.0,
        "waiting_for_input_s": 0.2,
        "waiting_for_room_s": 0.1,
    }
    assert found["rates"] == {"documents_per_s": 69.1, "tokens_per_s": 41626.0, "points_per_s": 333.3}
    assert found["bottleneck"] == "encode"
    assert list(found["documents"]) == [
        *("read", "indexed", "would_index", "unchanged", "duplicates", "failed", "skipped", "rejected"),
        *("deleted", "left", "withheld"),
    ]


def test_empty_report_is_a_failed_one():
    found = json.loads(Report().to_json())
    assert (found["status"], found["exit_code"], found["bottleneck"]) == ("failed", 1, None)
    assert found["rates"] == {"documents_per_s": 0.0, "tokens_per_s": 0.0, "points_per_s": 0.0}


@pytest.mark.parametrize(
    ("failures_open", "tolerate", "withheld", "code"),
    [(0, 0, 0, 0), (1, 0, 0, 3), (5, 5, 0, 0), (6, 5, 0, 3), (0, 9, 1, 3)],
)
def test_exit_code_of_a_complete_run(report, failures_open, tolerate, withheld, code):
    report.failures_open, report.documents.withheld = failures_open, withheld
    report.close(tolerate=tolerate)
    assert report.exit_code == code


@pytest.mark.parametrize(("signal", "code"), [(2, 130), (15, 143)])
def test_exit_code_of_a_stopped_run(report, signal, code):
    report.status = "stopped"
    report.documents.read = 10_000  # much is under way when a run is stopped
    report.close(tolerate=0, signal=signal)
    assert report.exit_code == code


@pytest.mark.parametrize("name", ["read", "indexed", "would_index", "unchanged", "duplicates", "failed"])
def test_a_lost_document_fails_the_run(report, name):
    setattr(report.documents, name, getattr(report.documents, name) + 1)
    with pytest.raises(IngestorError, match="do not add up"):
        report.close(tolerate=0)


def test_kinds_must_add_up(report):
    report.rejected_by_kind["bad_json"] += 1
    with pytest.raises(IngestorError, match="5 rejected \\+ 7 failed, but 13 by kind"):
        report.close(tolerate=0)


def test_text_says_what_happened_and_what_to_do(report):
    report.failures_open = 12
    report.documents.left = 2
    report.warnings = [Remark(f"{n}.gz", "vanished", "") for n in range(5)]
    lines = report.text().splitlines()
    assert lines[0] == "complete    collection wiki, http://h:6333, in 12.3 s"
    assert (
        "documents   907 read, 850 indexed, 40 unchanged, 10 duplicates, 7 failed, 3 skipped, 5 rejected,"
        " 2 left the source, kept (source.sync: append)" in lines
    )
    assert "refused     5 bad json, 7 non finite" in lines
    assert "bottleneck  encode, busy 11.0 s of 12.3 s" in lines
    assert "warning     and 2 more; --report FILE has all" in lines
    assert lines[-1].startswith("failures    12 open; ")


def test_text_of_a_dry_run_claims_nothing(report):
    """Nothing was embedded or deleted, and no command can list what was not kept."""
    report.dry_run, report.failures_open, report.documents.deleted, report.points.deleted = True, 12, 50, 52
    lines = report.text().splitlines()
    assert "points      none written, a dry run; 52 to delete; 512,000 tokens to embed" in lines
    assert json.loads(report.to_json())["dry_run"] is True
    assert any("50 would delete" in line for line in lines)
    assert lines[-1] == "failures    12 open; mend the shards and run again, or raise failures.tolerate"


def test_written_whole_or_not_at_all(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    report.write(path)
    assert json.loads(path.read_text())["documents"]["indexed"] == 850
    assert os.listdir(tmp_path) == ["report.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    report.warnings = [object()]  # cannot be told in JSON
    with pytest.raises(TypeError):
        report.write(path)
    assert json.loads(path.read_text())["documents"]["indexed"] == 850
    assert os.listdir(tmp_path) == ["report.json"]


def test_written_to_a_pipe(report, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=report.write, args=(path,))
    writer.start()
    assert json.loads(path.read_text())["status"] == "complete"
    writer.join()
    assert path.is_fifo()


def test_names_that_are_no_text(report, tmp_path):
    report.warnings = [Remark("odd\udcff", "unreadable", "")]
    report.write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["warnings"][0]["shard"] == "odd?"
