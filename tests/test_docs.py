"""The documentation says what is there, all of it, and nothing else."""

from __future__ import annotations

import importlib.util
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


@pytest.mark.parametrize("name", ["configuration.md", "commands.md"])
def test_reference_is_up_to_date(reference, name):
    made = reference.pages()[name]
    assert (DOCS / name).read_text("utf-8") == made, "run: python docs/reference.py"


def test_every_setting_has_a_description(reference):
    for line in reference.pages()["configuration.md"].splitlines():
        if line.startswith("| `"):
            assert line.split(" | ")[-1].strip(" |"), line
