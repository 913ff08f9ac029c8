"""The metrics: values, names as promtool wants them, and that dashboard and alerts ask for no others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ingestor.channel import Channel
from ingestor.watching.metrics import PAST, RunCollector
from ingestor.watching.progress import Progress

DEPLOY = Path(__file__).parent.parent / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "ingestor.json"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


@pytest.fixture
def progress() -> Progress:
    """A run in the middle of its work, with something of everything."""
    made = Progress(shards_total=4, bytes_total=1_000)
    made.report.collection, made.report.target = "wiki", "http://h:6333"
    channel = Channel[int](2)
    for name in ("read", "prepare", "encode", "settle"):
        made.stages.begin(name, channel, channel)
    made.sample()
    tally = made.tally
    tally.read, tally.indexed, tally.unchanged, tally.duplicates, tally.failed = 100, 60, 30, 8, 2
    tally.chunks, tally.tokens, tally.padding, tally.points, tally.points_deleted = 180, 9_000, 300, 170, 5
    tally.taken, tally.tokens_found, tally.shards_done = 500, 9_000, 2
    tally.rejected.update(bad_json=3, non_finite=2)
    tally.skipped["redirect"] = 7
    made.waited = lambda: {"rate_limited": (3, 4.5)}
    tally.shard_errors.append(("a.gz", "truncated_input", "ends at byte 7"))
    made.sample()
    return made


def exposition(progress: Progress) -> str:
    registry = CollectorRegistry()
    registry.register(RunCollector(progress, dict.fromkeys(PAST, 7.0)))
    return generate_latest(registry).decode()


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def value(text: str, name: str, **labels: str) -> float:
    [found] = [
        number for named, has, number in samples(text) if named == name and labels.items() <= has.items()
    ]
    return found


def test_values(progress):
    text = exposition(progress)
    assert value(text, "ingestor_documents", outcome="unchanged") == 30
    assert value(text, "ingestor_documents_read_total") == 100
    assert value(text, "ingestor_tokens_embedded_total") == 9_000
    assert value(text, "ingestor_rejected", kind="bad_json") == 3
    assert value(text, "ingestor_shard_errors_total") == 1
    assert value(text, "ingestor_sink_wait_seconds_total", kind="rate_limited") == 4.5
    assert value(text, "ingestor_progress_ratio") == 0.5
    assert value(text, "ingestor_running") == 1
    assert value(text, "ingestor_exit_code") == 7
    assert value(text, "ingestor_queue_size", queue="encode") == 2
    assert value(text, "ingestor_stage_seconds_total", stage="encode", state="busy") > 0
    assert {labels["collection"] for _, labels, _ in samples(text)} == {"wiki"}


def test_before_the_first_sample_nothing_is_known_of_stages():
    text = exposition(Progress())
    assert value(text, "ingestor_tokens_embedded_total") == 0
    assert "ingestor_stage_seconds_total{" not in text


def test_every_name_has_the_prefix_and_an_explanation(progress):
    text = exposition(progress)
    assert {name.partition("_")[0] for name, _, _ in samples(text)} == {"ingestor"}
    for line in text.splitlines():
        if line.startswith("# HELP"):
            assert line.endswith("."), line


@needs_promtool
def test_promtool_has_nothing_to_say_of_the_metrics(progress):
    check = ["promtool", "check", "metrics"]
    done = subprocess.run(check, input=exposition(progress), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.whole
@needs_promtool
@pytest.mark.parametrize("command", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]])
def test_promtool_runs_the_alerts(command):
    done = subprocess.run(
        ["promtool", *command], cwd=ALERTS.parent, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def queries() -> list[str]:
    """Everything that dashboard and alerts ask Prometheus for."""
    board = json.loads(DASHBOARD.read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked += [note["expr"] for note in board["annotations"]["list"]]
    asked += [variable["definition"] for variable in board["templating"]["list"] if "definition" in variable]
    rules = yaml.safe_load(ALERTS.read_text("utf-8"))
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return asked


def test_dashboard_and_alerts_ask_for_what_there_is(progress):
    there: dict[str, list[dict[str, str]]] = {}
    progress.history.recent[-1].stages["encode"].busy_s += 1
    for name, labels, _ in samples(exposition(progress)):
        there.setdefault(name, []).append(labels)
    there.setdefault("ingestor_remaining_seconds", [{"collection": "wiki"}])  # not known in the first second
    asked = queries()
    assert len(asked) > 30
    for query in asked:
        for name, matchers in re.findall(r"(ingestor_\w+)(?:\{([^}]*)\})?", query):
            assert name in there, f"{query}: there is no {name}"
            for label, sign, wanted in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
                values = [labels.get(label) for labels in there[name]]
                assert None not in values, f"{query}: {name} has no label {label}"
                pattern = ".*" if wanted == "$collection" else wanted if sign == "=~" else re.escape(wanted)
                assert any(re.fullmatch(pattern, has or "") for has in values), f"{query}: {wanted}"
        for group in re.findall(r"\bby \(([^)]*)\)", query):
            first = re.search(r"ingestor_\w+", query[query.index(f"by ({group})") :])
            assert first
            for label in group.split(", "):
                assert label in there[first[0]][0], f"{query}: {first[0]} has no label {label}"


@needs_promtool
def test_the_dashboard_s_queries_are_promql(tmp_path):
    def plain(query: str) -> str:
        return query.replace("$collection", ".*").replace("$__rate_interval", "1m")

    rules: list[dict[str, Any]] = [
        {"record": f"query:{number}", "expr": plain(query)}
        for number, query in enumerate(queries())
        if not query.startswith("label_values(")
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_no_two_panels_overlap():
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
