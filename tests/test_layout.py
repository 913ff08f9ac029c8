"""Who may import whom: the table below is the architecture, and this test is what keeps it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ingestor"
ALWAYS = {"errors", "records", "telemetry"}
HEAVY = {"torch", "transformers", "tokenizers", "qdrant_client", "qdrant_edge"}
EVERYTHING = {"*"}

# module or folder: what it may import of the package (its own row and ALWAYS beside that), and of HEAVY
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "__init__": (set(), set()),
    "__main__": ({"cli"}, set()),
    # the command line
    "cli": ({"__init__", "commands", "config", "ending", "launch", "running", "usage", "watching"}, set()),
    "usage": ({"config"}, set()),
    "ending": (set(), set()),
    "launch": ({"config", "ending", "pipeline", "watching"}, set()),
    "commands": (EVERYTHING, set()),
    # one run
    "pipeline": (EVERYTHING, set()),
    "running": (EVERYTHING, set()),
    # the stages, in order; the first is sources.read, the last but one sink.upsert
    "prepare": ({"channel", "preparing", "worker"}, set()),
    "pack": (set(), set()),
    "prefetch": ({"device"}, {"torch"}),
    "encode": ({"device", "encoding"}, {"torch"}),
    "copy_out": ({"buffers", "device"}, {"torch"}),
    "settle": ({"book", "state", "watching"}, set()),
    "book": ({"state", "watching"}, set()),
    # what the stages work with
    "sources": ({"__init__"}, set()),
    "preparing": ({"encoding", "framing", "sources", "state"}, {"tokenizers"}),
    "encoding": ({"buffers", "config", "device", "lock", "worker"}, {"torch", "transformers"}),
    "device": ({"buffers", "cuda"}, {"torch"}),
    "cuda": ({"buffers", "device"}, {"torch"}),
    "sink": ({"buffers", "framing", "worker"}, {"qdrant_client", "qdrant_edge"}),
    "state": ({"config", "encoding"}, set()),
    "watching": ({"__init__", "channel", "config", "device", "encoding", "sources"}, {"torch"}),
    "config": (set(), set()),
    # what everything stands on
    "buffers": (set(), set()),
    "channel": (set(), set()),
    "errors": (set(), set()),
    "framing": (set(), set()),
    "lock": (set(), set()),
    "records": (set(), set()),
    "telemetry": (set(), set()),
    "worker": (set(), set()),
}
STAGES = {"prepare", "pack", "prefetch", "encode", "copy_out", "settle"}
RUN = {"pipeline", "running"}


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
            assert not found & ((STAGES | RUN | {"config"}) - {row}), path


def test_commands_do_not_run_the_pipeline() -> None:
    for row, path in _modules():
        if row == "commands":
            assert not {"ingestor.pipeline", "ingestor.running.passes"} & set(_imports(path)), path


@pytest.mark.parametrize(
    "module",
    [
        "ingestor.worker",
        "ingestor.prepare",
        "ingestor.preparing.preparer",
        "ingestor.sink.worker",
        "ingestor.sink.pool",
        "ingestor.sink.embedded",
        "ingestor.running.engine",
        "ingestor.encoding.model",
        "ingestor.cli",
        "ingestor.pipeline",
    ],
)
def test_loads_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


FORBIDDEN = (".cpu()", ".item()", ".tolist()", "torch.cuda.synchronize(")


@pytest.mark.parametrize(
    "place",
    [
        *("device", "cuda", "prefetch", "encode", "copy_out"),
        *("encoding/encoder", "encoding/packed", "encoding/padded", "encoding/head"),
    ],
)
def test_nothing_on_the_way_through_the_device_waits_for_it(place: str) -> None:
    text = (PACKAGE / f"{place}.py").read_text("utf-8")
    assert not [call for call in FORBIDDEN if call in text]
