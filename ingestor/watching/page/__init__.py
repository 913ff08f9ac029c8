"""The report as one page: for a look at how a run went, offline, on a phone, on paper.

It has no script, so it opens where scripts are forbidden, in the artefacts of a CI server for instance.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from ingestor import __version__
from ingestor.config.settings import Settings
from ingestor.errors import ConfigError, installing
from ingestor.sources.urls import without_secrets
from ingestor.watching.progress import Progress
from ingestor.watching.report import Refused, Remark, replace_file
from ingestor.watching.words import duration, short

LIBRARIES = ("matplotlib", "jinja2")
ROWS = 100
"""Of each table; the JSON report and the state file have all."""


def require_libraries() -> None:
    """Refuse to go on without what draws the page.

    Raises:
        ConfigError: it is not installed.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"--html needs {' and '.join(missing)}: {installing('html')}")


def write_page(path: Path, progress: Progress, settings: Settings | None, failure: str) -> None:
    """Replace the file by the page about a run.

    Args:
        path: of the file.
        progress: all that is known of the run, which has ended.
        settings: None if they could not be read.
        failure: why the run failed; "" if it did not.

    Raises:
        OSError: the file cannot be written.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    here = files(__package__)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=lambda number: f"{number:,}", duration=duration, short=short)
    template = environment.from_string((here / "page.html").read_text("utf-8"))
    style = Markup((here / "page.css").read_text("utf-8"))
    replace_file(path, template.render(style=style, **_content(progress, settings, failure)))


def _content(progress: Progress, settings: Settings | None, failure: str) -> dict[str, Any]:
    """What the template shows."""
    report, tally = progress.report, progress.tally
    computed = tally.tokens + tally.padding
    return {
        "report": report,
        "tally": tally,
        "failure": failure,
        "version": __version__,
        "began": _moment(progress.began),
        "ended": _moment(progress.began + report.seconds),
        "tiles": list(_tiles(progress)),
        "padding": tally.padding / computed if computed else None,
        "refused": [(_link(progress, found), found) for found in report.refused[:ROWS]],
        "refused_in_all": sum(report.rejected_by_kind.values()),
        "shard_errors": [(_link(progress, found), found) for found in report.shard_errors[:ROWS]],
        "warnings": [(_link(progress, found), found) for found in report.warnings[:ROWS]],
        "chosen": _chosen(progress),
        "settings": _settings(settings),
        "rows": ROWS,
        **_drawings(progress),
    }


def _chosen(progress: Progress) -> dict[str, Any]:
    """What the vectors are made with, in words; a model in a folder by its name, beside the hash."""
    others = dict(progress.chosen)
    vector = dict(others.pop("identity", {}).get("vector", {}))
    if name := others.pop("model", None):
        vector["model"] = name
    words = {None: "", True: "yes", False: "no"}
    return {
        name: words.get(value, value) if value is None or isinstance(value, bool) else value
        for name, value in (vector | others).items()
    }


def _tiles(progress: Progress) -> Iterator[tuple[str, str, str]]:
    """The numbers to see first: what, how many, and a remark."""
    report, tally = progress.report, progress.tally
    documents, rates = report.documents, report.rates
    done = documents.indexed or documents.would_index
    yield "documents", f"{done:,}", f"{short(rates['documents_per_s'])} a second"
    yield "unchanged", f"{documents.unchanged:,}", f"of {documents.read:,} read"
    yield "tokens", short(tally.tokens), f"{short(rates['tokens_per_s'])} a second"
    yield (
        "points",
        f"{report.points.upserted:,}",
        f"{report.points.deleted:,} {'to delete' if report.dry_run else 'deleted'}",
    )
    yield "failures open", f"{report.failures_open:,}", "of this run and earlier ones"
    if report.bottleneck:
        share = report.stages[report.bottleneck].busy_s / max(report.seconds, 1e-9)
        yield "bottleneck", report.bottleneck, f"busy {share:.0%} of the time"


def _drawings(progress: Progress) -> dict[str, Any]:
    """Those for which there is something to draw."""
    from markupsafe import Markup

    from ingestor.watching.page import charts

    drawn: dict[str, Any] = {}
    tally, samples = progress.tally, progress.history.whole()
    if len(samples) > 2 and (tally.settled or tally.tokens):
        drawn["speed"] = Markup(charts.speed(samples))
    if progress.report.stages:
        drawn["stages"] = Markup(charts.stages(progress.report.stages))
    window = progress.timeline.window() if progress.timeline else None
    if window and window.spans:
        order = [*progress.report.stages]
        drawn["timeline"] = Markup(charts.timeline(window, order))
        drawn["window"] = window
    lengths, sizes = tally.chunk_tokens.counts, tally.document_chunks.counts
    if lengths.any():
        drawn["lengths"] = Markup(charts.histogram("lengths", lengths, "tokens", "chunks"))
        drawn["lengths_said"] = charts.spread(lengths)
    if sizes.any():
        drawn["sizes"] = Markup(charts.histogram("sizes", sizes, "chunks", "documents"))
        drawn["sizes_said"] = charts.spread(sizes)
    return drawn


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _link(progress: Progress, found: Refused | Remark) -> str:
    """Where the shard lies, for those who look at the page on the same machine; "" if that is unknown."""
    path = progress.paths.get(found.shard, "")
    if path.startswith(("https://", "http://")):
        return without_secrets(path)
    try:
        return Path(path).absolute().as_uri() if path and "://" not in path else ""
    except ValueError:
        return ""


def _settings(settings: Settings | None) -> str:
    """All settings as YAML, without what is secret."""
    if settings is None:
        return ""
    plain = settings.model_dump(mode="json")  # pydantic hides what is a SecretStr
    return without_secrets(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
