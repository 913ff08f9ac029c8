"""A run from the command line: signals, what people and programs are told, and the exit code."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ingestor import trace
from ingestor.ending import Signals, in_words, root_cause
from ingestor.errors import ConfigError, LockedError, reason

if TYPE_CHECKING:
    from ingestor.config import RunOptions, Settings
    from ingestor.progress import Progress
    from ingestor.report import Report


@dataclass(frozen=True, slots=True)
class Launch:
    """One run, from its settings to its exit code."""

    config: Path
    overrides: list[str]
    options: RunOptions
    report: Path | None
    progress: bool
    log_format: Literal["text", "json"]

    def run(self) -> int:
        """Run the pipeline; however that ends, the report is written and the last lines say how it ended."""
        from ingestor import config, telemetry
        from ingestor.progress import Progress

        self.check_options()
        telemetry.configure_logging(self.log_format)
        signals = Signals(say=partial(self.say, "stopping"), kill=kill_workers)
        progress, started = Progress(), time.perf_counter()
        report, failure, settings = progress.report, None, None
        try:
            settings = config.load(self.config, self.overrides)
            config.refuse_unbuilt(settings)
            report.target, report.collection = settings.qdrant.target, settings.qdrant.collection
            self.say("run", f"into collection {settings.qdrant.named}, {report.target}")
            report = asyncio.run(self.ingest(settings, progress, signals))
            report.seconds = time.perf_counter() - started
            report.close(tolerate=settings.failures.tolerate, signal=signals.received)
        except* Exception as group:
            failure = root_cause(group)
            report.seconds = time.perf_counter() - started
            report.status, report.exit_code = "failed", getattr(failure, "exit_code", 1)
        progress.sample()
        if settings and not isinstance(failure, LockedError):  # else the file is that of the other run
            self.write_metrics(settings, progress)
        return self.tell(report, failure)

    def check_options(self) -> None:
        if self.options.chunks and not self.options.dry_run:
            raise ConfigError("--chunks writes the chunks of a --dry-run; give both")
        if self.options.dry_run and (self.options.recreate or self.options.adopt):
            raise ConfigError("--dry-run changes nothing, so it excludes --recreate and --adopt")
        if self.options.profile:
            if self.options.dry_run:
                raise ConfigError("--profile traces the encoder, and a --dry-run has none")
            trace.prepare_folder(self.options.profile)
        for option, path in (("--report", self.report), ("--chunks", self.options.chunks)):
            if path and not os.access(path if path.exists() else path.parent, os.W_OK):
                raise ConfigError(f"{option} {path}: cannot be written; is there such a folder?")

    async def ingest(self, settings: Settings, progress: Progress, signals: Signals) -> Report:
        from ingestor import display, history, pipeline, telemetry

        stop = asyncio.Event()
        signals.tell(stop)
        shown = display.show(progress, log_format=self.log_format) if self.progress else nullcontext()
        with telemetry.repeat(history.SAMPLE_S, progress.sample), shown:
            return await pipeline.run(settings, options=self.options, stop=stop, progress=progress)

    def write_metrics(self, settings: Settings, progress: Progress) -> None:
        """Leave the last counters in the textfile; that this fails is no failure of the run."""
        if (textfile := settings.metrics.textfile) and not self.options.dry_run:
            from ingestor import publish, telemetry

            try:
                publish.write_last(progress, textfile)
            except OSError as error:
                telemetry.logger().warning("metrics", textfile=textfile, error=reason(error))

    def tell(self, report: Report, failure: BaseException | None) -> int:
        """Say how the run ended; a report that cannot be written makes it a failed one."""
        if failure is None:
            self.say("report", report.text(), **report.to_dict())
        else:
            self.say("error", in_words(failure))
        try:
            if self.report:
                report.write(self.report)
        except OSError as error:
            self.say("error", f"--report {self.report}: {reason(error)}")
            return report.exit_code or 1
        return report.exit_code

    def say(self, event: str, text: str, **values: Any) -> None:
        from ingestor import telemetry

        if self.log_format == "json":
            log = telemetry.logger().error if event == "error" else telemetry.logger().info
            log(event, **(values or {"text": text}))
        elif event == "error":
            complain(text)
        else:
            telemetry.say(text)


def kill_workers() -> None:
    if pipeline := sys.modules.get("ingestor.pipeline"):
        pipeline.kill_workers()


def complain(text: str, label: str = "error") -> None:
    for line in text.splitlines():
        sys.stderr.write(f"{label}: {line}\n")
