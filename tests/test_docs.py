"""The documentation says what is there, all of it, and nothing else."""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml

from ingestor import cli, usage
from ingestor.config.mistakes import settings_of
from ingestor.config.settings import Settings, load
from ingestor.encoding.families import FAMILIES
from tests.running import Workplace, documents

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
GENERATED = {"configuration.md", "commands.md"}
RUNS_US = re.compile(
    r"(?:(?:\.venv/bin/)?python -m ingestor|docker compose run --rm(?: -T)? (?:ingestor|ingestor-gpu))\s+(.*)"
)
COMMAND: Any = typer.main.get_command(cli.app)
OPTIONS = {
    name for command in COMMAND.commands.values() for option in command.params for name in option.opts
} | {*usage.OWN_OPTIONS}
OTHERS = {
    *(
        "--build-arg",
        "--capture-range",
        "--long",
        "--profile",
        "--report",
        "--rm",
        "--shm-size",
        "--strict",
        "--target",
    ),
    *(
        "--cuda",
        "--device",
        "--shapes",
        "--seconds",
        "--peer-seconds",
        "--checksum",
        "--kernels",
        "--peer",
        "--passages",
        "--rounds",
    ),
}
"""Options of other programs, of the benchmarks too, that pages name by themselves."""
SETTINGS = {".".join(map(str, place)) for place, _ in settings_of(Settings, ())}
SECTIONS = {name for name, field in Settings.model_fields.items() if name != "state"}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """`docs/reference.py`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["configuration.md", "commands.md", "adr/README.md"])
def test_reference_is_up_to_date(reference, name):
    made = reference.pages()[name]
    assert (DOCS / name).read_text("utf-8") == made, "run: python docs/reference.py"


def test_every_setting_has_a_description(reference):
    for line in reference.pages()["configuration.md"].splitlines():
        if line.startswith("| `"):
            assert line.split(" | ")[-1].strip(" |"), line


def test_site_builds_and_its_links_lead_somewhere(tmp_path):
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    assert "qdrant.bulk" in (tmp_path / "configuration/index.html").read_text("utf-8")


def blocks(page: Path, *languages: str) -> list[str]:
    """The page's code blocks in these languages."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def command_lines(page: Path) -> list[str]:
    """What follows the program's name in each command line of the page."""
    lines = [
        line.partition(" #")[0].partition(" 2>>")[0].strip()
        for block in blocks(page, "sh", "text")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [found[1] for line in lines if (found := RUNS_US.search(line)) and "[OPTIONS]" not in line]


def spans(page: Path) -> list[str]:
    """Inline code, outside code blocks."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def own(pages: list[Path]) -> list[Path]:
    """Those that people wrote."""
    return [page for page in pages if page.name not in GENERATED]


def test_command_lines_are_found():
    assert len(command_lines(ROOT / "README.md")) >= 4
    assert sum(len(command_lines(page)) for page in PAGES) >= 15


@pytest.mark.parametrize("page", own(PAGES), ids=lambda page: page.name)
def test_command_lines_hold(page):
    """Each is one that the program takes."""
    for line in command_lines(page):
        name, *words = usage.with_command(shlex.split(line))
        if name not in OPTIONS:
            COMMAND.commands[name].make_context(name, words)


@pytest.mark.parametrize("page", own(PAGES), ids=lambda page: page.name)
def test_options_that_are_named_exist(page):
    named = {word for span in spans(page) for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)}
    assert named <= OPTIONS | OTHERS


@pytest.mark.parametrize("page", own(PAGES), ids=lambda page: page.name)
def test_settings_that_are_named_exist(page):
    named = {
        found[0]
        for span in spans(page)
        if (found := re.match(rf"(?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+", span))
        and not found[0].endswith(".py")
    }
    assert named <= SETTINGS


@pytest.mark.parametrize("page", own(PAGES), ids=lambda page: page.name)
def test_configurations_that_are_shown_are_valid(page, tmp_path):
    for block in blocks(page, "yaml"):
        shown = yaml.safe_load(block)
        shown.setdefault("source", {}).setdefault("paths", ["x"])
        path = tmp_path / "shown.yaml"
        path.write_text(json.dumps(shown))
        load(path, environ={})


def test_the_table_of_families_holds():
    row = re.compile(r"^\| `([\w-]+)` \| .+ \| (packed|padded)\b.* \| (\w+) \|$", re.MULTILINE)
    assert row.findall((DOCS / "models.md").read_text("utf-8")) == [
        (name, "packed" if family.packs else "padded", "float16" if family.float16_is_safe else "bfloat16")
        for name, family in FAMILIES.items()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rows_of_tables_have_all_cells(page):
    """One that lacks a cell shows the others in the wrong columns."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, *rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert set(rows) == {head}, table


def texts_of(path: Path) -> Iterator[str]:
    """The texts in a module, with … for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_that_are_explained_are_said():
    """Each piece of a message in the tables of the troubleshooting page is in the code, word by word."""
    said = "\n".join(text for path in (ROOT / "ingestor").rglob("*.py") for text in texts_of(path))
    rows = re.findall(r"^\| (`.*?) \| ", (DOCS / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    pieces = {
        piece.strip(" ()")
        for row in rows
        for message in re.findall(r"`([^`]+)`", row)
        for piece in message.split("…")
    }
    assert len(pieces) > 50
    assert not {piece for piece in pieces if piece not in said}


def test_all_that_there_is_is_documented():
    """By name, on the pages that are made from the code."""
    configuration = (DOCS / "configuration.md").read_text("utf-8")
    leaves = {name for name in SETTINGS if not any(other.startswith(f"{name}.") for other in SETTINGS)}
    assert not {name for name in leaves - SECTIONS if f"| `{name}` |" not in configuration}
    commands = (DOCS / "commands.md").read_text("utf-8")
    assert all(f"\n## {name}\n" in commands for name in COMMAND.commands)
    options = {
        name for command in COMMAND.commands.values() for option in command.params for name in option.opts
    }
    assert not {name for name in options if name.startswith("-") and name not in commands}


@pytest.mark.parametrize("page", own(PAGES), ids=lambda page: page.name)
def test_shell_lines_are_known(page):
    """What else is in the pages' shell blocks: targets of make, services of compose, variables."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        match words:
            case ["make", target]:
                assert target in targets
            case ["docker", "compose", "up", "-d", name] | ["docker", "compose", "run", "--rm", name, *_]:
                assert name in services
            case ["docker", "compose", "--profile", *rest]:
                assert {word for word in rest if word not in ("--profile", "up", "-d")} <= profiles
            case [first, *_]:
                assert first in ("export", "nsys", ".venv/bin/python"), line


def made(*targets: str) -> str:
    """The commands that make would run."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "BIN=nowhere", *targets],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_clean_leaves_what_is_the_users_own():
    assert made("clean").split()[:2] == ["rm", "-rf"]
    assert ".ingestor/quickstart" in made("clean").split()
    assert ".ingestor" not in made("clean").split()


@pytest.mark.parametrize("target", ["quickstart", "test"])
def test_minutes_of_installation_are_announced(target):
    lines = made(target).splitlines()
    [install] = [number for number, line in enumerate(lines) if "pip install" in line]
    assert re.search(r"echo .*GB.*minutes", lines[install - 1])


@pytest.mark.slow
def test_readme_runs(tmp_path):
    """The README's own configuration and commands, over documents, with a model that needs no hub."""
    [shown] = blocks(ROOT / "README.md", "yaml")
    place = Workplace(tmp_path)
    (tmp_path / "my.yaml").write_text(shown)
    (tmp_path / "data").mkdir()
    packed = gzip.compress("".join(json.dumps(one) + "\n" for one in documents(20)).encode())
    (tmp_path / "data/a.jsonl.gz").write_bytes(packed)
    first = next(block for block in blocks(ROOT / "README.md", "sh") if "my.yaml" in block)
    lines = [found[1] for line in first.splitlines() if (found := RUNS_US.search(line))]
    assert [usage.with_command(shlex.split(line))[0] for line in lines] == ["check", "run", "search"]
    for line in lines:
        ended = place.end(place.start(*shlex.split(line), "--set", "encoder.model=hash:64"))
        assert ended.code == 0, ended.err
    assert "1." in ended.out
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_quickstart_runs(tmp_path):
    """`make quickstart` as it is, apart from the installation, and with a model that needs no minutes."""
    shards, binaries = tmp_path / "shards", Path(sys.executable).parent
    settings = {
        "INGESTOR_ENCODER__MODEL": "hash:64",
        "INGESTOR_SOURCE__PATHS": f"[{shards}/*.jsonl]",
        "INGESTOR_QDRANT__PATH": str(tmp_path / "qdrant"),
        "INGESTOR_STATE": str(tmp_path / "state.sqlite3"),
    }
    made = subprocess.run(
        ["make", "-o", f"{binaries}/.quickstart", "quickstart", f"BIN={binaries}", f"QUICKSTART={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert made.returncode == 0, made.stderr
    assert list(shards.glob("*.jsonl"))
    assert "complete" in made.stderr
    assert "  3. " in made.stdout
