"""The documentation says what is there, all of it, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


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
