"""What file, environment and command line say, laid over one another, and where each value came from.

Scalars stay text, apart from `null`: the schema says what becomes a number or a switch, so that a revision
`0123456` or a field called `no` is what was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ingestor.errors import ConfigError, one_line

Place = tuple[str | int, ...]
Tree = dict[str, Any]

NULL = "tag:yaml.org,2002:null"
MAX_DEPTH = 32
WITH_TAB = "use blanks in place of the tab"
OTHERWISE = "text with any of : # [ { in it, or one of * & ! % @ at its beginning, needs quotes"
VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?P<fallback>:-(?P<default>[^}]*))?\}|\$\{")


class Layers:
    """Settings as nested dicts; a later layer covers an earlier one.

    Attributes:
        values: what holds.
        origins: for each place in `values`, in words, who said so last.
    """

    def __init__(self) -> None:
        self.values: Tree = {}
        self.origins: dict[Place, str] = {}

    def add(self, tree: Tree, origins: Mapping[Place, str]) -> None:
        """Lay a layer over the others; mappings are merged, everything else is replaced."""
        forget_other_target(self.values, tree)
        merge(self.values, tree)
        self.origins.update(origins)

    def add_value(self, dotted: str, value: Any, origin: str) -> None:
        """Lay one value over the others."""
        *sections, name = dotted.split(".")
        tree: Tree = {name: value}
        for section in reversed(sections):
            tree = {section: tree}
        self.add(tree, {tuple(dotted.split(".")): origin})

    def origin(self, place: Place) -> str:
        """Who set the value at this place, or the nearest thing around it."""
        for length in range(len(place), 0, -1):
            if found := self.origins.get(place[:length]):
                return found
        return self.origins.get((), "configuration")


def forget_other_target(values: Tree, layer: Tree) -> None:
    """`qdrant.url` and `qdrant.path` exclude each other: one ends the other of lower layers."""
    below, above = values.get("qdrant"), layer.get("qdrant")
    if isinstance(below, dict) and isinstance(above, dict):
        for named, other in (("url", "path"), ("path", "url")):
            if above.get(named) is not None:
                below.pop(other, None)


def merge(below: Tree, above: Tree) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            merge(below[key], value)
        else:
            below[key] = value


def read_file(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; name the configuration with --config") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; name a YAML file with --config"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from None


def read_yaml(text: str, name: str, environ: Mapping[str, str]) -> tuple[Tree, dict[Place, str]]:
    """Parse one configuration file.

    Raises:
        ConfigError: no YAML, not a mapping, a key given twice, or a variable that is not set.
    """
    origins: dict[Place, str] = {(): name}
    node = compose(text, name)
    if node is None:
        return {}, origins
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{name}: a configuration is a mapping of sections, like 'source:' and 'qdrant:'")
    tree: Tree = plain(node, (), name, origins, environ)
    return tree, origins


def read_value(text: str) -> Any:
    """A value of `--set` or of a variable: YAML if it is null, in brackets or in quotes, else text as it is.

    So `encoder.prompt=query: ` is the prompt that it looks like.
    """
    if text in ("null", "~", ""):
        return None
    if text[0] not in "[{\"'":
        return text
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text
    return plain(node, (), "value", {}, None) if node else text


def compose(text: str, name: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        problem = error.problem or error.context or ""
        hint = WITH_TAB if "\\t" in problem else OTHERWISE
        raise ConfigError(f"{where}: not valid YAML: {problem}; {hint}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {one_line(error)}") from error


def plain(
    node: yaml.Node, place: Place, name: str, origins: dict[Place, str], environ: Mapping[str, str] | None
) -> Any:
    """A YAML node as dicts, lists, text and None; variables are filled in where an environment is given."""
    where = origins[place] = f"{name}, line {node.start_mark.line + 1}"
    if len(place) > MAX_DEPTH:
        raise ConfigError(f"{where}: nested too deeply")
    if isinstance(node, yaml.MappingNode):
        tree: Tree = {}
        for key, value in pairs(node, where, tree):
            tree[key] = plain(value, (*place, key), name, origins, environ)
        return tree
    if isinstance(node, yaml.SequenceNode):
        return [plain(item, (*place, index), name, origins, environ) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.ScalarNode) or node.tag == NULL:
        return None
    return node.value if environ is None else fill_in(node, where, environ)


def pairs(node: yaml.MappingNode, where: str, seen: Tree) -> Iterator[tuple[str, yaml.Node]]:
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{where}: a key must be a plain word")
        if key.value in seen:
            line = key.start_mark.line + 1
            raise ConfigError(
                f"{where.rpartition(', line ')[0]}, line {line}: {key.value!r} is given twice; leave one"
            )
        yield key.value, value


def fill_in(node: yaml.ScalarNode, where: str, environ: Mapping[str, str]) -> str | None:
    """Replace `${VAR}` and `${VAR:-default}`; `$${` stands for `${`. What leaves nothing is null."""

    def value_of(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        if found["name"] is None:
            raise ConfigError(f"{where}: cannot read {node.value!r}: write ${{NAME}} or ${{NAME:-default}}")
        value = environ.get(found["name"])
        if found["fallback"]:
            return value or found["default"]
        if value is None:
            raise ConfigError(
                f"{where}: the environment variable {found['name']} is not set;"
                f" set it, or write ${{{found['name']}:-default}}"
            )
        return value

    filled = VARIABLE.sub(value_of, node.value)
    return filled if filled or filled == node.value else None


def read_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, Any, str]]:
    """(dotted name, value, origin) of each `--set a.b=value`."""
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not all(dotted.split(".")):
            raise ConfigError(f"--set {override}: write --set section.field=value")
        yield dotted.strip(), read_value(text), f"--set {dotted}"


def read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """(dotted name, value, origin) of each INGESTOR_SECTION__FIELD; an empty one counts as not set.

    Apart from INGESTOR_STATE, a name without the double underscore is none of ours: Kubernetes sets
    INGESTOR_PORT for a service of this name.
    """
    for variable, text in sorted(environ.items()):
        name = variable.removeprefix("INGESTOR_")
        if text and name != variable and ("__" in name or name == "STATE"):
            yield name.lower().replace("__", "."), read_value(text), f"environment variable {variable}"


def read_qdrant_environment(environ: Mapping[str, str], file: Layers) -> list[tuple[str, Any, str]]:
    """Qdrant's own variables; a folder named in the file is not overruled by a URL that happens to be set."""
    section = file.values.get("qdrant")
    has_folder = isinstance(section, dict) and section.get("path") is not None
    names = [("QDRANT_API_KEY", "qdrant.api_key")] + ([] if has_folder else [("QDRANT_URL", "qdrant.url")])
    return [
        (dotted, environ[name], f"environment variable {name}") for name, dotted in names if environ.get(name)
    ]
