"""The settings, and the only reader of configuration file and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from ingestor.config.layers import (
    Layers,
    read_environment,
    read_file,
    read_overrides,
    read_qdrant_environment,
    read_yaml,
)
from ingestor.config.mistakes import describe
from ingestor.config.sections import Chunk, Encoder, Failures, Metrics, Pipeline, Qdrant, Source
from ingestor.config.values import Section, Text
from ingestor.errors import ConfigError


class Settings(Section):
    """Everything a run can be told; relative paths start at the working directory."""

    source: Source
    chunk: Chunk = Chunk()
    encoder: Encoder = Encoder()
    pipeline: Pipeline = Pipeline()
    qdrant: Qdrant = Qdrant()
    failures: Failures = Failures()
    state: Text = ""
    """The file that remembers what is done; keep it as long as the collection."""
    metrics: Metrics = Metrics()

    @model_validator(mode="before")
    @classmethod
    def fill_up(cls, values: Any) -> Any:
        """An empty section is one without settings; the state is named after the collection."""
        if not isinstance(values, dict):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        qdrant = given.get("qdrant")
        collection = qdrant.get("collection") if isinstance(qdrant, dict) else None
        return {"source": {}, "state": f".ingestor/{collection or 'wiki'}.sqlite3"} | given


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says about this one run.

    Attributes:
        limit: documents to read at most; finishes no shard, deletes nothing.
        full: embed everything again, in place.
        recreate: drop the collection and its state first.
        adopt: take over a collection that was written from another state file.
        retry: read also the shards again that open failures are in.
        allow_deletes: mirror may delete more than `max_delete_fraction`.
        dry_run: read, chunk and count only.
        chunks: file for the chunks of a dry run, as JSON Lines.
        lock_wait_s: how long to wait for another run to end.
        drain_timeout_s: how long a stopped run may take to write what is packed.
        profile: folder for a trace of some batches.
        profile_window: how many batches go before those, and how many are in the trace.
    """

    limit: int | None = None
    full: bool = False
    recreate: bool = False
    adopt: bool = False
    retry: bool = False
    allow_deletes: bool = False
    dry_run: bool = False
    chunks: Path | None = None
    lock_wait_s: float = 0.0
    drain_timeout_s: float = 8.0
    profile: Path | None = None
    profile_window: tuple[int, int] = (20, 20)


def load(path: Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: `overrides` cover the environment, which covers the file, which covers the defaults.

    Args:
        path: the YAML file.
        overrides: `section.field=value`, the value as YAML.
        environ: the process's own if None.

    Raises:
        ConfigError: with a line for each mistake: where it is, what it is, what would be right.
    """
    environ = os.environ if environ is None else environ
    layers = Layers()
    layers.add(*read_yaml(read_file(path), str(path), environ))
    for dotted, value, origin in read_qdrant_environment(environ, layers):
        layers.add_value(dotted, value, origin)
    for dotted, value, origin in (*read_environment(environ), *read_overrides(overrides)):
        layers.add_value(dotted, value, origin)
    try:
        return Settings.model_validate(layers.values)
    except ValidationError as error:
        raise ConfigError("\n".join(describe(error, Settings, layers))) from None
