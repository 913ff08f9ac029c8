"""Where Prometheus finds the counters: on a port while a run goes on, in a file also after it."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ingestor.errors import ConfigError
from ingestor.lock import Lock
from ingestor.watching import publish as publish_module
from ingestor.watching.progress import Progress
from ingestor.watching.publish import publish, read_past, write_last
from tests.running import Workplace, documents, eventually
from tests.test_metrics import value


@pytest.fixture
def progress() -> Progress:
    made = Progress()
    made.report.collection = "wiki"
    return made


@pytest.fixture
def port() -> int:
    """One that is free."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_a_port_is_served_as_long_as_the_run_goes_on(progress, port):
    with publish(progress, port, None):
        assert value(scrape(port), "ingestor_points_upserted_total") == 0
        progress.tally.points = 12
        assert value(scrape(port), "ingestor_points_upserted_total") == 12
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_a_port_that_is_taken_is_refused(progress, port):
    with (
        publish(progress, port, None),
        pytest.raises(ConfigError, match=rf"metrics.port: {port} cannot be used: .*; name another"),
        publish(progress, port, None),
    ):
        pass


def test_a_file_that_cannot_be_written_is_refused(progress, tmp_path):
    with (
        pytest.raises(ConfigError, match=r"metrics.textfile: .*/no/a.prom: cannot be written: No such file"),
        publish(progress, None, str(tmp_path / "no" / "a.prom")),
    ):
        pass


def test_the_file_is_written_at_once_and_again(progress, tmp_path, monkeypatch):
    monkeypatch.setattr(publish_module, "INTERVAL_S", 0.01)
    file = tmp_path / "wiki.prom"
    with publish(progress, None, str(file)):
        assert value(file.read_text(), "ingestor_running") == 1
        progress.tally.points = 7
        eventually(lambda: value(file.read_text(), "ingestor_points_upserted_total") == 7)  # whole each time
    assert os.listdir(tmp_path) == ["wiki.prom"]


def end(progress: Progress, file: Path, code: int) -> str:
    progress.report.exit_code = code
    write_last(progress, str(file))
    return file.read_text()


def test_the_last_success_survives_runs_that_fail(progress, tmp_path):
    file = tmp_path / "wiki.prom"
    before = time.time()
    succeeded = value(end(progress, file, 0), "ingestor_last_success_timestamp_seconds")
    assert before <= succeeded <= time.time()
    for code in (1, 3, 143):
        with publish(progress, None, str(file)):  # also while the next run goes on
            assert value(file.read_text(), "ingestor_last_success_timestamp_seconds") == succeeded
        text = end(progress, file, code)
        assert value(text, "ingestor_last_success_timestamp_seconds") == succeeded
        assert value(text, "ingestor_last_run_timestamp_seconds") > succeeded
        assert value(text, "ingestor_exit_code") == code
        assert value(text, "ingestor_running") == 0
    assert value(end(progress, file, 0), "ingestor_last_success_timestamp_seconds") > succeeded


def test_a_first_run_that_fails_has_no_success(progress, tmp_path):
    assert "ingestor_last_success_timestamp_seconds{" not in end(progress, tmp_path / "wiki.prom", 1)


def test_failures_stay_open_until_a_run_has_counted_again(progress, tmp_path):
    file = tmp_path / "wiki.prom"
    progress.accounted, progress.report.failures_open = True, 4
    assert value(end(progress, file, 3), "ingestor_failures_open") == 4
    assert value(end(Progress(report=progress.report), file, 2), "ingestor_failures_open") == 4
    progress.report.failures_open = 0
    assert value(end(progress, file, 0), "ingestor_failures_open") == 0


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"ingestor_exit_code{", b"other 7\n"])
def test_a_file_that_says_nothing(tmp_path, content):
    (tmp_path / "a.prom").write_bytes(content)
    assert read_past(str(tmp_path / "a.prom")) == {}
    assert read_past(str(tmp_path / "none.prom")) == {}
    assert read_past(None) == {}


@pytest.mark.whole
def test_a_whole_run_leaves_its_counters(tmp_path):
    place = Workplace(tmp_path, metrics={"textfile": "things.prom"})
    place.write("a.jsonl", [*documents(30), {"id": "bad"}])
    place.run(code=3)
    text = (tmp_path / "things.prom").read_text()
    assert value(text, "ingestor_documents", outcome="indexed") == 30
    assert value(text, "ingestor_rejected", kind="missing_text") == 1
    assert value(text, "ingestor_failures_open") == 1
    assert value(text, "ingestor_progress_ratio") == 1
    assert value(text, "ingestor_exit_code") == 3
    assert value(text, "ingestor_stage_seconds_total", stage="upsert", state="busy") > 0
    place.run("--dry-run", code=3)  # which is none of Prometheus' business
    with Lock.acquire(tmp_path / "state.sqlite3.lock"):
        place.run(code=5)  # and this leaves the file to the run that goes on
    assert (tmp_path / "things.prom").read_text() == text


@pytest.mark.whole
def test_the_exit_code_is_that_which_holds(tmp_path):
    place = Workplace(tmp_path, metrics={"textfile": "things.prom"})
    place.write("a.jsonl", documents(3))
    (tmp_path / "out").mkdir()
    process = place.start_run("--report", "out/r.json")
    eventually(place.state.exists)
    (tmp_path / "out").rmdir()  # complete, but there is no place for the report any more
    assert place.end(process).code == 1
    text = (tmp_path / "things.prom").read_text()
    assert value(text, "ingestor_exit_code") == 1
    assert "ingestor_last_success_timestamp_seconds{" not in text
