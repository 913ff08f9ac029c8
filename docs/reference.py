"""Write what can be derived: the reference of settings and commands, the list of decisions.

`python docs/reference.py` writes them; `tests/test_docs.py` says when that was forgotten.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ingestor.cli import app
from ingestor.config.settings import Settings

DOCS = Path(__file__).parent
BEGIN = "<!-- What follows is made by `python docs/reference.py`; `make docs` runs it. -->"
UNITS = ("B", "KiB", "MiB", "GiB")
WORDS = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text", SecretStr: "text"}
DEFAULTS = {"state": "`.ingestor/COLLECTION.sqlite3`"}
"""Where the default is no fixed value."""


def main() -> None:
    for name, page in pages().items():
        (DOCS / name).write_text(page, "utf-8")


def pages() -> dict[str, str]:
    """What each page should hold, by its name: its own beginning, then the reference."""
    references = {
        "configuration.md": settings_tables(Settings),
        "commands.md": command_tables(typer.main.get_command(app)),
        "adr/README.md": decisions(),
    }
    return {name: page(name, reference) for name, reference in references.items()}


def page(name: str, reference: Iterator[str]) -> str:
    beginning, marker, _ = (DOCS / name).read_text("utf-8").partition(BEGIN)
    assert marker, f"{name}: no {BEGIN}"
    return f"{beginning}{BEGIN}\n\n{chr(10).join(reference).strip()}\n"


def settings_tables(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """A heading and a table for each section, then one for the settings that lie in none."""
    loose: list[str] = []
    for name, field in model.model_fields.items():
        if section := section_of(field):
            yield from section_table(section, f"{prefix}{name}")
        else:
            loose.append(row(f"{prefix}{name}", field))
    if loose:
        yield from ["## Without a section", "", *table(loose)]


def section_table(section: type[BaseModel], name: str) -> Iterator[str]:
    yield from [f"## {name}", "", *([section.__doc__, ""] if section.__doc__ else [])]
    yield from table(rows(section, f"{name}."))


def rows(section: type[BaseModel], prefix: str) -> list[str]:
    """A section's settings, those of inner sections after the others."""
    own, inner = [], []
    for name, field in section.model_fields.items():
        if found := section_of(field):
            inner += rows(found, f"{prefix}{name}.")
        else:
            own.append(row(f"{prefix}{name}", field))
    return own + inner


def table(lines: list[str]) -> list[str]:
    return ["| setting | values | default | |", "| --- | --- | --- | --- |", *lines, ""]


def row(name: str, field: FieldInfo) -> str:
    kinds = type_in_words(field.annotation, field.metadata)
    return line(f"`{name}`", kinds, default_of(name, field), field.description or "")


def line(*cells: str) -> str:
    """One line of a table."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    kinds = [field.annotation, *get_args(field.annotation)]
    found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return found[0] if found else None


def default_of(name: str, field: FieldInfo) -> str:
    if name in DEFAULTS:
        return DEFAULTS[name]
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**required**"
    return f"`{value_in_words(value)}`"


def value_in_words(value: Any) -> str:
    """A value as it would be written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, ByteSize):
        return size_in_words(value)
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else f"[{', '.join(map(str, value))}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def size_in_words(size: int) -> str:
    power = max(power for power in range(len(UNITS)) if size % 1024**power == 0)
    return f"{size // 1024**power}{UNITS[power]}"


def type_in_words(kind: Any, constraints: Any = ()) -> str:
    """What may be written, from a setting's annotation."""
    origin, inner = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return type_in_words(kind.__origin__, (*kind.__metadata__, *constraints))
    if origin in (Union, types.UnionType):
        known = [part for part in inner if part is not type(None)]
        return ", ".join(type_in_words(part, constraints) for part in known)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin is tuple:
        return "text, or a list of it"
    if origin in (dict, Mapping):
        return f"mapping to {type_in_words(inner[1])}"
    if kind is ByteSize:
        return "size like `64MiB`"
    if kind in (int, float):
        return WORDS[kind] + bounds(constraints)
    return WORDS[kind]


def bounds(constraints: Any) -> str:
    """The limits of a number in words."""
    found = list(constraints)
    for constraint in constraints:
        found += getattr(constraint, "metadata", [])
    said = [
        f"{sign} {getattr(limit, name):g}"
        for limit in found
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if getattr(limit, name, None) is not None
    ]
    return f" {' and '.join(dict.fromkeys(said))}" if said else ""


def command_tables(group: Any) -> Iterator[str]:
    """A heading, what it does, the usage and a table of options for each command, as `--help` has them."""
    for name, command in group.commands.items():
        context = command.context_class(command, info_name=f"python -m ingestor {name}")
        yield from [f"## {name}", "", (command.help or "").partition("\b")[0].strip(), ""]
        yield from ["```text", command.get_usage(context).removeprefix("Usage: "), "```", ""]
        yield from ["| option | |", "| --- | --- |"]
        records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
        for option, text in filter(None, records):
            if option != "--help":
                yield line(f"`{option}`", text)
        yield ""


def decisions() -> Iterator[str]:
    """A link to each decision, by its own heading."""
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        yield f"- [{title}]({path.name})"


if __name__ == "__main__":
    main()
