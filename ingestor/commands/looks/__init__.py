"""What `check` looks at: a module a part of the set-up, a generator of findings a look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec

from ingestor.commands.common import Finding
from ingestor.commands.looks.sample import Sample
from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.errors import IngestorError, full_reason
from ingestor.sources.listing import Listing

P = ParamSpec("P")
Look = Iterator[tuple[str, str]]
"""(verdict, detail) of each finding: `OK` or `WARN`; what would end a run is raised."""

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(slots=True)
class Known:
    """What the looks so far have found, for those that come later.

    Attributes:
        settings: as they are; behind an alias the ones that name the collection itself.
        tokens_per_s: of the encoder, alone; 0 while that is unknown.
    """

    settings: Settings
    listing: Listing | None = None
    spec: ModelSpec | None = None
    sample: Sample | None = None
    tokens_per_s: float = 0.0


def looked_at(name: str, look: Callable[P, Look], *args: P.args, **kwargs: P.kwargs) -> Iterator[Finding]:
    """The findings of one look; where it raises, a run would end."""
    try:
        for verdict, detail in look(*args, **kwargs):
            yield Finding(name, verdict, detail)
    except IngestorError as error:
        text = ": ".join(str(part) for part in error.args)
        yield Finding(name, FAIL, text.replace("\n", "; "), error.exit_code)
    except OSError as error:
        yield Finding(name, FAIL, full_reason(error), 1)
