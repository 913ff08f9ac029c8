"""Containers, as far as they can be checked without a container engine: what they name, and what they run."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from ingestor.buffers import BufferLayout
from ingestor.config.settings import RunOptions, Settings
from ingestor.lock import Lock
from ingestor.running.engine import CPU_SLOT_ROWS, gpu_rows
from tests.running import Workplace, documents, eventually

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LIMIT_S = 60
ISSUES = [f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "wish")]
RUNS = ("ingestor", "ingestor-gpu", "cron")
LARGE_DIMENSION, LARGE_BUDGET = 1024, 131_072


def size(text: str) -> int:
    return TypeAdapter(ByteSize).validate_python(text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def dockerfile() -> list[str]:
    """The instructions, each on one line."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def tool(name: str) -> str:
    """A checker's path; without it the test is skipped, for it is not needed to run anything."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if not found:
        pytest.skip(f"{name} is not installed (pip install -e '.[docs]')")
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"),
        ("check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *ISSUES),
        ("hadolint", "Dockerfile"),
    ],
    ids=lambda command: command[-1],
)
def test_checkers_find_nothing(command):
    name, *arguments = command
    subprocess.run([tool(name), *arguments], check=True, cwd=ROOT, timeout=LIMIT_S)


def test_images_are_pinned(compose, dockerfile):
    built = {service["image"] for name, service in compose["services"].items() if "build" in service}
    images = {service["image"] for service in compose["services"].values()} - built
    assert images
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image) for image in images), images
    stages = {line.split(" AS ")[1] for line in dockerfile if " AS " in line}
    bases = {line.split()[1] for line in dockerfile if line.startswith("FROM ")} - stages
    assert bases == {"python:3.12-slim"}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_may_do_no_more_than_it_has_to(compose, name):
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    written = {volume.split(":")[1] for volume in service["volumes"] if not volume.endswith(":ro")}
    made = (ROOT / "Dockerfile").read_text().partition("install -d -o 10001")[2].partition("\n")[0].split()
    assert written <= set(made), "a new volume takes its owner from the image's folder"


@pytest.mark.parametrize("name", RUNS)
def test_a_stop_leaves_time_to_drain(compose, name):
    service = compose["services"][name]
    assert int(service["stop_grace_period"].removesuffix("s")) >= 2 * RunOptions().drain_timeout_s
    assert service["init"] is True


def test_shared_memory_is_enough(compose):
    slots = Settings(source={"paths": ["x"]}).pipeline.buffers
    for name, rows in (("ingestor", CPU_SLOT_ROWS), ("ingestor-gpu", gpu_rows(LARGE_BUDGET, LARGE_BUDGET))):
        needed = BufferLayout("", slots, rows, LARGE_DIMENSION).nbytes
        assert needed <= size(compose["services"][name]["shm_size"].replace("gb", "GB")), name


def test_the_image_takes_the_extras_that_are_asked_for(dockerfile):
    [extras] = [line.removeprefix("ARG EXTRAS=") for line in dockerfile if line.startswith("ARG EXTRAS=")]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)
    [install] = [
        line for line in dockerfile if line.startswith("RUN pip install") and "-c constraints" in line
    ]
    assert '".[$EXTRAS]"' in install


def test_the_image_has_a_user_and_takes_signals(dockerfile):
    users = [line.split()[1] for line in dockerfile if line.startswith("USER ")]
    assert users[-1] == users[0] == "10001:10001"
    entry = next(line for line in dockerfile if line.startswith("ENTRYPOINT "))
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["python", "-m", "ingestor"]  # exec form
    assert "STOPSIGNAL SIGTERM" in dockerfile
    copied = [line.split()[1:-1] for line in dockerfile if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / source).exists() for sources in copied for source in sources)


@pytest.mark.slow
def test_the_package_builds_from_what_is_copied(tmp_path, dockerfile):
    """The files that the image gets make the package, whole."""
    for line in dockerfile:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, target = line.split()[1:]
            for source in sources:
                place = tmp_path / (target if len(sources) == 1 else source)
                copy(ROOT / source, place / source if target == "ingestor/" else place)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    made = subprocess.run(pip, cwd=tmp_path, timeout=LIMIT_S, capture_output=True, text=True)
    if "Cannot import" in made.stderr or "No module named" in made.stderr:
        pytest.skip("setuptools is not new enough here to build without a network")
    assert made.returncode == 0, made.stderr
    [wheel] = tmp_path.glob("*.whl")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    tracked = subprocess.run(
        ["git", "ls-files", "ingestor"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {name for name in tracked.stdout.split() if f"{name} " not in listed}


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def as_run(text: str) -> str:
    """What compose makes of `$$`."""
    return text.replace("$$", "$")


@contextmanager
def answering(status: int) -> Iterator[int]:
    """An HTTP server with one answer; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_qdrant_is_healthy_when_it_is_ready(compose, status, healthy):
    command = [as_run(word) for word in compose["services"]["qdrant"]["healthcheck"]["test"][1:]]
    with answering(status) as port:
        command[-1] = command[-1].replace("6333", str(port))
        assert (subprocess.run(command, timeout=LIMIT_S).returncode == 0) is healthy


def test_qdrant_is_not_healthy_when_nobody_answers(compose):
    command = [as_run(word) for word in compose["services"]["qdrant"]["healthcheck"]["test"][1:]]
    command[-1] = command[-1].replace("6333", "1")
    assert subprocess.run(command, timeout=LIMIT_S, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.parametrize(("key", "passed"), [("s3cret", "<s3cret>"), ("", "<none>")])
def test_qdrant_is_given_a_key_that_is_not_empty(compose, tmp_path, key, passed):
    entry = tmp_path / "entrypoint.sh"
    entry.write_text('#!/bin/sh\necho "<${QDRANT__SERVICE__API_KEY-none}>"\n')
    entry.chmod(0o755)
    command = [as_run(word) for word in compose["services"]["qdrant"]["entrypoint"]]
    said = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "QDRANT_API_KEY": key},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert said.stdout == f"{passed}\n"


def test_prometheus_and_grafana_are_given_files_that_are_there(compose):
    for name in ("prometheus", "grafana"):
        for volume in compose["services"][name]["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), source
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert all((ROOT / "deploy/prometheus" / name).exists() for name in prometheus["rule_files"])
    targets = {
        target
        for job in prometheus["scrape_configs"]
        for config in job["static_configs"]
        for target in config["targets"]
    }
    assert {target.split(":")[0] for target in targets} <= set(compose["services"])
    port = compose["services"]["cron"]["environment"]["INGESTOR_METRICS__PORT"]
    assert f"cron:{port}" in targets


@pytest.fixture
def again(tmp_path):
    """Starts `again.sh` over some documents; what it says goes to a file."""
    started = []

    def start(every: str, count: int = 20) -> tuple[subprocess.Popen, Path]:
        Workplace(tmp_path).write("a.jsonl", documents(count))
        said = tmp_path / "said"
        with said.open("w") as file:
            process = subprocess.Popen(
                ["/bin/sh", str(ROOT / "deploy/again.sh"), every, "--config", "c.yaml", "--no-progress"],
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
                stderr=file,
            )
        started.append(process)
        return process, said

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_runs_again_and_again(again):
    process, said = again("0")
    eventually(lambda: said.read_text().count("exit code 0; next run") >= 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) in (0, 143)  # it may have been between two runs


@pytest.mark.whole
def test_a_stop_between_runs_ends_it_at_once(again):
    process, said = again("3600")
    eventually(lambda: "next run in 3600 s" in said.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_a_stop_reaches_the_run(again):
    process, said = again("3600", count=20_000)
    eventually(lambda: "into collection" in said.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143
    assert "run again: what is done is kept" in said.read_text()


# Schedules: the example lines are run as they stand, but for the places that they name

FINE = {0, 5, 143}
"""Exit codes that nobody has to be told of."""
TRY_NO_MORE = {2, 3, 4, 6}
"""Those that another try would give again."""


@pytest.fixture
def search(tmp_path) -> Workplace:
    """What stands in for /srv/search."""
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(20))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "wiki.yaml").symlink_to(tmp_path / "c.yaml")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return place


def crontab_line() -> str:
    [line] = [
        line for line in (ROOT / "configs/crontab.example").read_text().splitlines() if line[:1].isdigit()
    ]
    times = line.split(maxsplit=5)
    assert all(re.fullmatch(r"[\d*/,-]+", time) for time in times[:5])
    assert "%" not in times[5]
    return times[5]


def by_cron(place: Workplace) -> str:
    """Run the line as cron does; what it would mail."""
    command = crontab_line().replace("/srv/search", str(place.folder))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.whole
def test_cron_mails_what_somebody_must_look_at_and_nothing_else(search):
    assert by_cron(search) == ""
    assert json.loads((search.folder / "last.json").read_text())["documents"]["indexed"] == 20
    with Lock.acquire(search.folder / "state.sqlite3.lock"):
        assert by_cron(search) == ""
    (search.shards / "b.jsonl").write_text("no object\n")
    assert "exit code 3; see" in by_cron(search)
    logged = [json.loads(line) for line in (search.folder / "ingestor.log").read_text().splitlines()]
    assert any("held by process" in line.get("text", "") for line in logged)


def unit(name: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((ROOT / "deploy/systemd" / name).read_text())
    return {section: dict(parser[section]) for section in parser.sections()}


@pytest.mark.parametrize("name", ["ingestor@.service", "ingestor@.timer"])
def test_systemd_knows_all_that_the_units_say(name):
    command = [tool("systemd-analyze"), "verify", "--recursive-errors=no", ROOT / "deploy/systemd" / name]
    said = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S).stderr.splitlines()
    assert [line for line in said if "python is not executable" not in line and "man" not in line] == []


def test_systemd_starts_a_run_and_knows_its_exit_codes(search):
    service = unit("ingestor@.service")["Service"]
    assert set(map(int, service["SuccessExitStatus"].split())) | {0} == FINE | {130}
    assert set(map(int, service["RestartPreventExitStatus"].split())) == TRY_NO_MORE
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"].removesuffix("s")) >= 2 * RunOptions().drain_timeout_s
    command = service["ExecStart"].replace("%i", "wiki").replace("/srv/search", str(search.folder))
    command = command.replace("/var/lib/ingestor", str(search.folder))
    subprocess.run(
        command.split(), cwd=search.folder, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=LIMIT_S
    )
    assert json.loads((search.folder / "wiki.json").read_text())["exit_code"] == 0


def test_kubernetes_starts_a_run_and_knows_its_exit_codes(search):
    claim, job = yaml.safe_load_all((ROOT / "deploy/kubernetes/cronjob.yaml").read_text())
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    spec = job["spec"]["jobTemplate"]["spec"]
    codes = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert set(codes["values"]) == TRY_NO_MORE | {5}
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # else the policy is refused
    assert pod["terminationGracePeriodSeconds"] >= 2 * RunOptions().drain_timeout_s
    [container] = pod["containers"]
    assert codes["containerName"] == container["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    [shm] = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if volume["name"] == "shm"]
    slots = Settings(source={"paths": ["x"]}).pipeline.buffers
    assert BufferLayout("", slots, gpu_rows(LARGE_BUDGET, LARGE_BUDGET), LARGE_DIMENSION).nbytes <= size(
        shm + "B"
    )
    (search.folder / ".ingestor").mkdir()
    arguments = [word.replace("/configs", "configs") for word in container["args"]]
    assert search.end(search.start(*arguments)).code == 0
    assert json.loads((search.folder / ".ingestor/last.json").read_text())["documents"]["indexed"] == 20
