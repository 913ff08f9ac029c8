"""A run from the command line: signals, what people and programs are told, and the exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ingestor.ending import Signals, in_words, root_cause
from ingestor.errors import ConfigError, LockedError, reason
from ingestor.watching import trace

if TYPE_CHECKING:
    from ingestor.config.settings import RunOptions, Settings
    from ingestor.watching.report import Report


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is written and shown beside the collection.

    Attributes:
        report: the report as JSON.
        html: the report as a page.
        progress: show how the run is going.
        log_format: how messages are written.
    """

    report: Path | None = None
    html: Path | None = None
    progress: bool = True
    log_format: Literal["text", "json"] = "text"


class Launch:
    """One run, from its settings to its exit code."""

    def __init__(self, file: Path, overrides: list[str], options: RunOptions, outputs: Outputs) -> None:
        from ingestor.watching.progress import Progress
        from ingestor.watching.timeline import Timeline

        self._file, self._overrides = file, overrides
        self._options, self._outputs = options, outputs
        self._settings: Settings | None = None
        self._progress = Progress(timeline=Timeline() if outputs.html else None)

    def run(self) -> int:
        """Run the pipeline; whatever its end, the reports are written and the last lines say how it ended."""
        from ingestor import telemetry
        from ingestor.config.settings import load

        check_options(self._options, self._outputs)
        telemetry.configure_logging(self._outputs.log_format)
        signals = Signals(say=partial(self._say, "stopping"), kill=_kill_workers)
        progress, report, failure = self._progress, self._progress.report, None
        try:
            settings = self._settings = load(self._file, self._overrides)
            report.target, report.collection = settings.qdrant.target, settings.qdrant.collection
            self._say("run", f"into collection {settings.qdrant.named}, {report.target}")
            asyncio.run(self._ingest(settings, signals))
            report.seconds = progress.elapsed_s
            report.close(tolerate=settings.failures.tolerate, signal=signals.received)
        except* Exception as group:
            failure = root_cause(group)
            report.seconds = progress.elapsed_s
            report.status, report.exit_code = "failed", getattr(failure, "exit_code", 1)
            if isinstance(failure, LockedError) and signals.received:  # it was told to wait no longer
                report.status, report.exit_code = "stopped", 128 + signals.received
        progress.sample()
        code = self._tell(report, failure)
        if not isinstance(failure, LockedError):  # else the file is that of the other run
            self._write_metrics()  # with the exit code that holds
        return code

    async def _ingest(self, settings: Settings, signals: Signals) -> Report:
        from ingestor import pipeline, telemetry
        from ingestor.watching import display, history

        progress, outputs, stop = self._progress, self._outputs, asyncio.Event()
        signals.tell(stop)
        shown = display.show(progress, log_format=outputs.log_format) if outputs.progress else nullcontext()
        with telemetry.repeat(history.SAMPLE_S, progress.sample), shown:
            return await pipeline.run(settings, options=self._options, stop=stop, progress=progress)

    def _write_metrics(self) -> None:
        """Leave the last counters in the textfile; that this fails is no failure of the run."""
        textfile = self._settings and self._settings.metrics.textfile
        if textfile and not self._options.dry_run:
            from ingestor import telemetry
            from ingestor.watching import publish

            try:
                publish.write_last(self._progress, textfile)
            except OSError as error:
                telemetry.logger().warning("metrics", textfile=textfile, error=reason(error))

    def _tell(self, report: Report, failure: BaseException | None) -> int:
        """Say how the run ended; a report that cannot be written makes it a failed one."""
        told = in_words(failure) if failure else ""
        if failure is None:
            self._say("report", report.text(), **report.to_dict())
            if self._options.chunks and not self._options.full and (kept := report.documents.unchanged):
                self._say(
                    "chunks", f"{kept:,} unchanged documents are not cut again; --full shows all chunks"
                )
        else:
            self._say("error", told)
        for problem in self._write_reports(report, told):
            self._say("error", problem)
            report.exit_code = report.exit_code or 1
        return report.exit_code

    def _write_reports(self, report: Report, failure: str) -> Iterator[str]:
        """Write what is asked for; gives what went wrong."""
        if path := self._outputs.report:
            try:
                report.write(path)
            except OSError as error:
                yield f"--report {path}: {reason(error)}"
        if path := self._outputs.html:
            from ingestor.watching.page import write_page

            try:
                write_page(path, self._progress, self._settings, failure)
            except OSError as error:
                yield f"--html {path}: {reason(error)}"

    def _say(self, event: str, text: str, **values: Any) -> None:
        from ingestor import telemetry

        if self._outputs.log_format == "json":
            log = telemetry.logger().error if event == "error" else telemetry.logger().info
            log(event, **(values or {"text": text}))
        elif event == "error":
            complain(text)
        else:
            telemetry.say(text)


def check_options(options: RunOptions, outputs: Outputs) -> None:
    """Refuse what cannot be done before anything takes long.

    Raises:
        ConfigError: options that exclude each other, or a file that cannot be written.
    """
    if options.chunks and not options.dry_run:
        raise ConfigError("--chunks writes the chunks of a --dry-run; give both")
    if options.dry_run and (options.recreate or options.adopt):
        raise ConfigError(
            "--dry-run changes nothing, so it excludes --recreate and --adopt; leave either out"
        )
    if options.profile:
        if options.dry_run:
            raise ConfigError("--profile traces the encoder, and a --dry-run has none; leave either out")
        trace.prepare_folder(options.profile)
    if outputs.html:
        from ingestor.watching.page import require_libraries

        require_libraries()
    for option, path in (("report", outputs.report), ("html", outputs.html), ("chunks", options.chunks)):
        if path and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            raise ConfigError(f"--{option} {path}: cannot be written; make its folder, or name another")


def _kill_workers() -> None:
    if pipeline := sys.modules.get("ingestor.pipeline"):
        pipeline.kill_workers()


def complain(text: str, label: str = "error") -> None:
    for line in text.splitlines():
        sys.stderr.write(f"{label}: {line}\n")
