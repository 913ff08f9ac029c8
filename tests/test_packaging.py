"""A fresh machine gets what the package imports, in the versions that were tried."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"ingestor", "tests", "benchmarks", "parts", "memory"}
NOT_ASKED_FOR = {
    "_typeshed",  # for type checkers alone
    "compression",  # the standard library's, from 3.14 on
    "torchvision",  # the ladder's own model, on a machine with a GPU
}


def imported(*folders: str) -> dict[str, str]:
    """Each top-level module that a file under `folders` imports, with one such file."""
    found: dict[str, str] = {}
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], str(path.relative_to(ROOT)))
    return {
        name: place
        for name, place in found.items()
        if name not in OURS | NOT_ASKED_FOR | sys.stdlib_module_names
    }


def declared(*extras: str) -> set[str]:
    """The distributions that pyproject.toml asks for by name, for the package and its extras."""
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        wanted += [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
    return {canonicalize_name(requirement.name) for requirement in wanted}


EXTRAS = sorted(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (("ingestor",), [e for e in EXTRAS if e != "dev"]),
        (("tests", "benchmarks", "configs", "docs"), EXTRAS),
    ],
)
@pytest.mark.whole
def test_what_is_imported_is_asked_for(folders, extras) -> None:
    """What only another package brings along today may be gone tomorrow."""
    distributions = metadata.packages_distributions()
    unasked = {
        name: place
        for name, place in imported(*folders).items()
        if not {canonicalize_name(d) for d in distributions.get(name, [])} & declared(*extras)
    }
    assert not unasked


def test_everything_is_pinned() -> None:
    """constraints.txt names the version of each package that the development set-up brings."""
    lines = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#", "-")
    ]
    pinned = {canonicalize_name(r.name): r.specifier for r in map(Requirement, lines)}
    seen: set[str] = set()
    left = [(Requirement("ingestor[dev]"), "")]
    unpinned: dict[str, str] = {}
    while left:
        requirement, wanted_by = left.pop()
        name = canonicalize_name(requirement.name)
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in seen:
            continue
        seen.add(key)
        found = metadata.distribution(name)
        if name != "ingestor" and not (name in pinned and pinned[name].contains(found.version)):
            unpinned[name] = f"{found.version}, wanted by {wanted_by}; pinned: {pinned.get(name)}"
        for text in found.requires or []:
            needed = Requirement(text)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append((needed, name))
    assert not unpinned
