"""The command line: what is run, how it ends, what is said; over a stand-in for the pipeline."""

import json
import os
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from ingestor import __version__, cli, ending, usage
from ingestor.errors import (
    ConfigError,
    IdentityMismatchError,
    IngestorError,
    LockedError,
    SinkError,
    WorkerDiedError,
)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_text("source: {paths: [shards]}\nencoder: {model: hash:8}\n")
    return str(path)


@pytest.fixture
def pipeline(monkeypatch):
    """Stands in for the pipeline; its `run` is what the test makes it."""
    stand_in = SimpleNamespace(calls=[], error=None, status="complete", on_run=lambda report: None)

    async def run(settings, *, options, stop, progress):
        stand_in.calls.append((settings, options))
        progress.report.status = stand_in.status
        stand_in.on_run(progress.report)
        if stand_in.error:
            raise stand_in.error
        return progress.report

    stand_in.run = run
    monkeypatch.setitem(sys.modules, "ingestor.pipeline", stand_in)
    monkeypatch.setattr(sys.modules["ingestor"], "pipeline", stand_in, raising=False)
    yield stand_in
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_help_names_every_command(capsys):
    assert cli.execute(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {command} " in said for command in ("run", "search", "check", "status"))


def test_help_has_the_options_of_a_run(capsys):
    assert cli.execute(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(option in said for option in ("--config FILE", "--dry-run", "--drain-timeout SECONDS"))


GROUP: Any = typer.main.get_command(cli.app)
COMMANDS = [*GROUP.commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_hold(command, capsys):
    """What is shown is a command line that the program takes."""
    assert cli.execute([command, "--help"]) == 0
    shown = capsys.readouterr().out.partition("Examples:")[2].splitlines()
    examples = [line.removeprefix("    ") for line in shown if line.startswith("    python -m ingestor ")]
    assert examples
    for example in examples:
        words = usage.with_command(shlex.split(example.removeprefix("python -m ingestor ")))
        assert words[0] == command
        GROUP.commands[command].make_context(command, words[1:])


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_help_fits_any_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.execute(["--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out


def test_shells_can_complete(capsys, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    with pytest.raises(SystemExit, match="0"):
        cli.execute(["--show-completion", "bash"])
    assert "complete -o default -F _ingestor_completion ingestor" in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "offered"), [("ver", "verify"), ("run --dry", "--dry-run")])
def test_completions(typed, offered, capsys, monkeypatch):
    """What the script of `--show-completion` asks, and what it is told."""
    monkeypatch.setenv("COMP_WORDS", f"ingestor {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    monkeypatch.setenv(usage.COMPLETION, "complete_bash")
    with pytest.raises(SystemExit):
        cli.execute([])
    assert capsys.readouterr().out.split() == [offered]


def test_help_is_there_at_once():
    """In the processor's time, which others on the machine do not lengthen."""

    def seconds(*arguments: str) -> float:
        start = os.times()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        end = os.times()
        return end.children_user + end.children_system - start.children_user - start.children_system

    bare = min(seconds("-c", "pass") for _ in range(3))
    assert min(seconds("-m", "ingestor", "--help") for _ in range(3)) - bare < 0.5


def test_help_loads_nothing_heavy():
    script = "import sys, ingestor.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "transformers", "numpy", "pydantic", "qdrant_client", "rich"} & set(loaded.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_is_no_traceback(tmp_path, number):
    (tmp_path / "typer.py").write_text(f"import os; os.kill(os.getpid(), {int(number)})")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ingestor.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (ended.returncode, ended.stderr) == (128 + number, b"")


def test_version(capsys):
    assert cli.execute(["--version"]) == 0
    assert capsys.readouterr().out == f"ingestor {__version__}\n"


def test_run_is_the_default(config, pipeline):
    assert cli.execute(["--config", config, "--set", "qdrant.collection=a", "--limit", "3", "--full"]) == 0
    assert (
        cli.execute(["run", "--config", config, "--set", "qdrant.collection=a", "--limit", "3", "--full"])
        == 0
    )
    first, second = pipeline.calls
    assert first == second
    settings, options = first
    assert settings.qdrant.collection == "a"
    assert (options.limit, options.full, options.recreate, options.drain_timeout_s) == (3, True, False, 8.0)


def test_first_line_names_the_target(config, pipeline, capsys):
    cli.execute(["--config", config, "--set", "qdrant.url=http://h:6333"])
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == "into collection wiki, http://h:6333"
    assert said.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage:"),
        (["--config", "none.yaml"], "error: none.yaml: there is no such file"),
        (["run"], "error: Missing option '--config'"),
        (["--config"], "error: Option '--config' requires an argument"),
        (["--config", "CONFIG", "--frobnicate"], "error: No such option: --frobnicate"),
        (["--config", "CONFIG", "--limit", "0"], "error: Invalid value for '--limit'"),
        (["--config", "CONFIG", "--log-format", "xml"], "error: Invalid value for '--log-format'"),
        (["--config", "CONFIG", "--set", "qdrant.kep=1"], "did you mean qdrant.keep?"),
        (["--config", "CONFIG", "--set", "qdrant.alias=a"], "which only servers know"),
        (["--config", "CONFIG", "--chunks", "c.jsonl"], "error: --chunks writes the chunks of a --dry-run"),
        (["--config", "CONFIG", "--dry-run", "--recreate"], "error: --dry-run changes nothing"),
        (["--config", "CONFIG", "--report", "no/r.json"], "error: --report no/r.json: cannot be written"),
        (["walk"], "error: No such command 'walk'"),
        (["search", "--config", "CONFIG"], "error: give either a text"),
        (
            ["search", "--config", "CONFIG", "--queries", "none.jsonl"],
            "error: --queries none.jsonl: cannot be read",
        ),
        (["search", "--config", "CONFIG", "a", "--filter", "b"], "error: --filter b: write"),
    ],
)
def test_usage_errors(config, pipeline, capsys, arguments, said):
    assert cli.execute([config if argument == "CONFIG" else argument for argument in arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1 or not arguments
    assert arguments or "error:" not in err  # the help, as it is
    assert not pipeline.calls


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no shard matches x"), 2),
        (SinkError("server gone"), 1),
        (IdentityMismatchError("another model"), 4),
        (LockedError("held by process 7"), 5),
        (OSError(28, "No space left on device", "state"), 1),
        (MemoryError(), 1),
    ],
)
def test_failed_run_says_one_line_and_writes_its_report(config, pipeline, capsys, tmp_path, error, code):
    pipeline.error = ExceptionGroup("stages", [ExceptionGroup("inner", [error])])
    pipeline.on_run = lambda report: setattr(report.documents, "read", 5)
    assert cli.execute(["--config", config, "--report", "r.json", "--no-progress"]) == code
    announced, said = capsys.readouterr().err.splitlines()
    assert announced.startswith("into collection")
    assert said.startswith("error: ")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], report["exit_code"], report["documents"]["read"]) == ("failed", code, 5)


def test_wrong_configuration_replaces_an_old_report(config, tmp_path):
    (tmp_path / "r.json").write_text("the report of yesterday")
    assert cli.execute(["--config", config, "--report", "r.json", "--set", "a=b"]) == 2
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 2


def test_unforeseen_error_keeps_its_traceback(config, pipeline, capsys):
    pipeline.error = ZeroDivisionError("oops")
    assert cli.execute(["--config", config]) == 1
    assert "ZeroDivisionError: oops" in capsys.readouterr().err


def test_complete_run(config, pipeline, capsys, tmp_path):
    def on_run(report):
        report.documents.read = report.documents.indexed = 2

    pipeline.on_run = on_run
    assert cli.execute(["--config", config, "--report", "r.json"]) == 0
    assert "documents   2 read, 2 indexed" in capsys.readouterr().err
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "complete"


def test_open_failures(config, pipeline):
    pipeline.on_run = lambda report: setattr(report, "failures_open", 1)
    assert cli.execute(["--config", config]) == 3
    assert cli.execute(["--config", config, "--set", "failures.tolerate=1"]) == 0


def test_lost_documents_fail_the_run(config, pipeline, capsys, tmp_path):
    pipeline.on_run = lambda report: setattr(report.documents, "read", 1)
    assert cli.execute(["--config", config, "--report", "r.json"]) == 1
    assert "the totals do not add up" in capsys.readouterr().err
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "failed"


def test_json_log(config, pipeline, capsys):
    assert cli.execute(["--config", config, "--log-format", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["event"] for event in events] == ["run", "report"]
    assert events[1]["exit_code"] == 0


def test_json_log_of_a_failure(config, pipeline, capsys):
    pipeline.error = SinkError("server gone")
    assert cli.execute(["--config", config, "--log-format", "json"]) == 1
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (last["event"], last["text"]) == ("error", "server gone")


def test_root_cause():
    died, first = WorkerDiedError("gone"), SinkError("no room")
    assert ending.root_cause(ExceptionGroup("", [died, ValueError(), ExceptionGroup("", [first])])) is first
    assert ending.root_cause(ExceptionGroup("", [died])) is died


STOPPED_RUN = """
import asyncio, sys
from types import SimpleNamespace
import ingestor
from ingestor import cli, ending

ending.SAME_SIGNAL_S = float(sys.argv[1])

async def run(settings, *, options, stop, progress):
    print("running", flush=True)
    await stop.wait()
    print("draining", flush=True)
    if sys.argv[2] == "hangs":
        await asyncio.Event().wait()
    await asyncio.to_thread(sys.stdin.readline)
    progress.report.status = "stopped"
    return progress.report

def kill_workers():
    print("killed", flush=True)

ingestor.pipeline = sys.modules["ingestor.pipeline"] = SimpleNamespace(run=run, kill_workers=kill_workers)
cli.main(["--config", "c.yaml", "--report", "r.json"])
"""


@pytest.fixture
def stopped_run(config):
    """Starts a run whose pipeline waits for a stop."""
    started = []

    def start(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", STOPPED_RUN, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "running\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_first_signal_drains(stopped_run, tmp_path, number, code):
    process = stopped_run("1", "ends")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "stopping: " in said
    assert "Traceback" not in said
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], report["exit_code"]) == ("stopped", code)


def test_second_signal_ends_it_at_once(stopped_run):
    process = stopped_run("0", "hangs")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "killed\n"
    assert process.returncode == 143


def test_a_signal_that_comes_twice_at_once_is_one(stopped_run):
    process = stopped_run("600", "ends")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 143


def test_closed_pipe_is_no_error(config):
    process = subprocess.Popen(
        [sys.executable, "-m", "ingestor", "check", "--config", config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait(60)
    process.stderr.close()


def test_error_tree_is_known_to_the_ending():
    assert ending.in_words(IngestorError("a")) == "a"
    assert ending.in_words(OSError(13, "Permission denied", "f")) == "f: Permission denied"
    assert ending.in_words(MemoryError()) == "out of memory"
