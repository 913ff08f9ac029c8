"""A refused configuration in words: where each mistake is, what it is, what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ingestor.config.layers import Layers, Place

EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "byte_size": "a size like 64MiB",
    "byte_size_unit": "a size like 64MiB",
    "dict_type": "a mapping",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "model_type": "a section with settings of its own",
    "string_too_short": "text",
    "string_type": "text",
    "too_short": "a list with at least one entry",
    "tuple_type": "a list",
}

IN_URL = "put it into qdrant.url, like http://host:6333; the port of gRPC is qdrant.grpc_port (6334)"
ELSEWHERE: dict[Place, str] = {("qdrant", "host"): IN_URL, ("qdrant", "port"): IN_URL}
"""Where a setting is that others call so."""


def describe(error: ValidationError, model: type[BaseModel], layers: Layers) -> Iterator[str]:
    """One line for each setting that was refused."""
    known = dict(settings_of(model, ()))
    by_place: dict[Place, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_place.setdefault(place_of(details["loc"], known, layers.values), []).append(details)
    for place, found in by_place.items():
        yield f"{layers.origin(place)}: {complaint(place, found, known, layers.values)}"


def settings_of(model: type[BaseModel], place: Place) -> Iterator[tuple[Place, bool]]:
    """The place of every setting and section, and whether it is a section."""
    for name, field in model.model_fields.items():
        sections = [
            inner
            for inner in (field.annotation, *get_args(field.annotation))  # X, or one of X | None
            if isinstance(inner, type) and issubclass(inner, BaseModel)
        ]
        yield (*place, name), bool(sections)
        for section in sections:
            yield from settings_of(section, (*place, name))


def place_of(location: Place, known: dict[Place, bool], values: Any) -> Place:
    """An error's location without the branches of a union that pydantic adds to it."""
    for length, part in enumerate(location):
        keys = values if isinstance(values, dict) else range(len(values) if isinstance(values, list) else 0)
        if part not in keys and location[: length + 1] not in known:
            return location[:length]
        values = values[part] if part in keys else None
    return location


def complaint(place: Place, found: list[ErrorDetails], known: dict[Place, bool], values: Any) -> str:
    name = ".".join(str(part) for part in place)
    kinds = {details["type"] for details in found}
    if "extra_forbidden" in kinds:
        return f"{name} is not a known setting; {nearest(place, known)}"
    if "missing" in kinds:
        return f"{name} is missing, and has no default; set it"
    if "value_error" in kinds:
        return f"{name} {found[0]['msg'].removeprefix('Value error, ')}"
    wanted = dict.fromkeys(
        EXPECTED.get(d["type"]) or d["msg"].removeprefix("Input should be ") for d in found
    )
    return f"{name} should be {' or '.join(wanted)}{but_got(place, values)}"


def nearest(place: Place, known: dict[Place, bool]) -> str:
    """Name the setting that was meant: one of the same section, or one of that name elsewhere."""
    if place in ELSEWHERE:
        return ELSEWHERE[place]
    section, key = place[:-1], str(place[-1])
    siblings = [str(other[-1]) for other in known if other[:-1] == section]
    if close := difflib.get_close_matches(key, siblings, 1, 0.6):
        return f"did you mean {'.'.join(map(str, (*section, close[0])))}?"
    everywhere = {str(other[-1]): other for other in known}
    if close := difflib.get_close_matches(key, everywhere, 1, 0.75):
        return f"did you mean {'.'.join(map(str, everywhere[close[0]]))}?"
    return f"known here: {', '.join(siblings)}"


def but_got(place: Place, values: Any) -> str:
    """The value that was refused, when it is short and can be no secret."""
    for part in place:
        values = values[part]
    return f", not {values!r}" if isinstance(values, str) and len(values) <= 60 and "url" not in place else ""
