"""Who may import whom: the table below is the architecture, and this test is what keeps it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ingestor"
ALWAYS = {"errors", "telemetry"}
HEAVY = {"torch", "transformers", "tokenizers", "qdrant_client", "qdrant_edge"}
EVERYTHING = {"*"}

# module or folder: what it may import of the package (its own row and ALWAYS beside that), and of HEAVY
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "__init__": (set(), set()),
    "__main__": ({"cli"}, set()),
    "cli": ({"__init__", "commands", "config", "generations", "ending", "launch", "trace", "usage"}, set()),
    "usage": ({"config"}, set()),
    "launch": (
        {
            *("config", "display", "ending", "history", "page", "pipeline", "progress", "publish"),
            *("report", "timeline", "trace"),
        },
        set(),
    ),
    "page": (
        {"__init__", "channel", "config", "history", "progress", "report", "sources", "timeline", "words"},
        set(),
    ),
    "ending": (set(), set()),
    "forms": (set(), set()),
    "config": ({"layers", "mistakes", "sections", "values"}, set()),
    "sections": ({"forms", "index_settings", "values"}, set()),
    "index_settings": ({"values"}, set()),
    "layers": (set(), set()),
    "mistakes": ({"layers"}, set()),
    "values": (set(), set()),
    "errors": (set(), set()),
    "records": (set(), set()),
    "channel": (set(), set()),
    "buffers": ({"records"}, set()),
    "sources": ({"records"}, set()),
    "framing": (set(), set()),
    "model": ({"model_files", "model_modules"}, set()),
    "model_files": ({"model_modules"}, set()),
    "model_modules": (set(), set()),
    "tokenizer": ({"model", "records", "word_memo"}, {"tokenizers"}),
    "word_memo": ({"records"}, {"tokenizers"}),
    "chunk": ({"records", "tokenizer"}, set()),
    "payloads": ({"chunk", "framing", "records"}, set()),
    "preparer": (
        {"chunk", "identity", "lookup", "model", "payloads", "records", "sources", "tokenizer"},
        set(),
    ),
    "prepare": ({"channel", "preparer", "records", "worker"}, set()),
    "pack": ({"records"}, set()),
    "device": ({"buffers", "cuda", "records"}, {"torch"}),
    "cuda": ({"buffers", "device", "records"}, {"torch"}),
    "prefetch": ({"device", "records"}, {"torch"}),
    "encoder": (
        {"buffers", "device", "float8", "head", "model", "packed", "padded", "records"},
        {"torch", "transformers"},
    ),
    "head": ({"model", "model_modules"}, {"torch"}),
    "padded": ({"device", "head", "model"}, {"torch"}),
    "packed": ({"device", "head", "model"}, {"torch", "transformers"}),
    "runtimes": ({"encoder", "lock", "model", "records"}, {"torch"}),
    "quality": (set(), set()),
    "calibration": ({"quality", "records"}, set()),
    "loading": (
        {
            *("calibration", "device", "encoder", "forms", "head", "model", "padded", "quality", "sections"),
            *("records", "runtimes", "worker"),
        },
        set(),
    ),
    "float8": (set(), {"torch"}),
    "encode": ({"device", "encoder"}, {"torch"}),
    "budget": ({"device", "encoder", "records"}, {"torch"}),
    "compiling": ({"budget", "device", "encoder"}, {"torch"}),
    "copy_out": ({"buffers", "device", "records"}, {"torch"}),
    "sink": ({"buffers", "framing", "records", "worker"}, {"qdrant_client", "qdrant_edge"}),
    "worker": (set(), set()),
    "identity": ({"forms", "model", "records"}, set()),
    "lookup": (set(), set()),
    "failures": ({"identity", "lookup", "records"}, set()),
    "holdings": ({"identity", "lookup"}, set()),
    "writes": ({"records"}, set()),
    "leaving": ({"lookup", "records"}, set()),
    "ledger": ({"failures", "leaving", "lookup", "records", "touched", "writes"}, set()),
    "touched": ({"records"}, set()),
    "book": ({"records", "tally", "writes"}, set()),
    "settle": ({"book", "identity", "ledger", "records", "tally", "writes"}, set()),
    "telemetry": (set(), set()),
    "tally": ({"records"}, set()),
    "history": ({"channel"}, set()),
    "spans": (set(), set()),
    "timeline": ({"spans"}, set()),
    "progress": ({"channel", "history", "report", "tally", "timeline"}, set()),
    "words": ({"history", "progress"}, set()),
    "metrics": ({"__init__", "progress"}, set()),
    "publish": ({"metrics", "progress"}, set()),
    "display": ({"history", "progress", "words"}, set()),
    "report": ({"channel", "quality"}, set()),
    "lock": (set(), set()),
    "dry_run": ({"lookup", "records"}, set()),
    "wiring": ({"config", "identity", "model", "sink", "sources"}, set()),
    "engine": (
        {
            *("buffers", "calibration", "config", "device", "encoder", "float8", "forms", "loading"),
            *("model", "quality", "trial", "tuning", "wiring", "worker"),
        },
        set(),
    ),
    "trial": ({"calibration", "loading", "quality", "records"}, set()),
    "tuning": ({"budget", "compiling", "config", "device", "encoder", "packed", "records"}, set()),
    "profiling": ({"device", "spans", "trace"}, {"torch"}),
    "trace": (set(), set()),
    "job": (EVERYTHING, set()),
    "account": (EVERYTHING, set()),
    "adoption": (EVERYTHING, set()),
    "bulk": (EVERYTHING, set()),
    "generations": ({"config", "model", "sink", "wiring"}, set()),
    "opening": (EVERYTHING, set()),
    "sampling": (EVERYTHING, set()),
    "passes": (EVERYTHING, set()),
    "planning": (EVERYTHING, set()),
    "pipeline": (EVERYTHING, set()),
    "commands": (EVERYTHING, set()),
}
STAGES = {"prepare", "pack", "prefetch", "encode", "copy_out", "settle"}
RUN = {"pipeline", "passes", "planning", "opening", "sampling", "job", "account"}


def _modules() -> list[tuple[str, Path]]:
    return [(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path) for path in PACKAGE.rglob("*.py")]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            if node.module == "ingestor":
                yield from (f"ingestor.{alias.name}" for alias in node.names)


def test_every_module_has_its_row() -> None:
    assert {row for row, _ in _modules()} == set(TABLE)


@pytest.mark.parametrize(("row", "path"), _modules(), ids=lambda value: getattr(value, "stem", value))
def test_imports(row: str, path: Path) -> None:
    allowed, heavy = TABLE[row]
    for name in _imports(path):
        top, _, rest = name.partition(".")
        if top == "ingestor" and rest and rest != "__version__":
            part = rest.partition(".")[0]
            ok = part in allowed | ALWAYS | {row} or allowed is EVERYTHING
            assert ok, f"{path.name} imports {name}"
        assert top not in HEAVY - heavy, f"{path.name} imports {name}"


def test_no_stage_imports_another_nor_the_settings() -> None:
    for row, path in _modules():
        if row in STAGES:
            found = {
                name.partition(".")[2].partition(".")[0] for name in _imports(path) if "ingestor." in name
            }
            assert not found & ((STAGES | RUN | {"config", "sections"}) - {row}), path


def test_commands_do_not_run_the_pipeline() -> None:
    for row, path in _modules():
        if row == "commands":
            assert not {"ingestor.pipeline", "ingestor.passes"} & set(_imports(path)), path


@pytest.mark.parametrize(
    "module",
    [
        "ingestor.worker",
        "ingestor.prepare",
        "ingestor.preparer",
        "ingestor.sink.worker",
        "ingestor.sink.pool",
        "ingestor.sink.embedded",
        "ingestor.cli",
        "ingestor.pipeline",
    ],
)
def test_loads_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


FORBIDDEN = (".cpu()", ".item()", ".tolist()", "torch.cuda.synchronize(")


@pytest.mark.parametrize(
    "stage", ["device", "cuda", "prefetch", "encode", "copy_out", "encoder", "packed", "padded", "head"]
)
def test_nothing_on_the_way_through_the_device_waits_for_it(stage: str) -> None:
    text = (PACKAGE / f"{stage}.py").read_text("utf-8")
    assert not [call for call in FORBIDDEN if call in text]
