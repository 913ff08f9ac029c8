"""Where Prometheus finds a run's counters: on a port while it goes on, and in a file that outlives it.

The file is for node_exporter's textfile collector. What it says of the past, the last success above all, is
read from it before it is replaced, so a run that fails keeps it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from ingestor.errors import ConfigError, reason
from ingestor.telemetry import logger
from ingestor.watching.metrics import PAST, RunCollector
from ingestor.watching.progress import Progress

INTERVAL_S = 15.0
"""Between two writings of the file; node_exporter is asked about as often."""
CLOSING_S = 5.0


@contextmanager
def publish(progress: Progress, port: int | None, textfile: str | None) -> Iterator[None]:
    """Serve the counters on a port, and write them to a file now and then, while the block runs.

    Raises:
        ConfigError: the port is taken, or the file cannot be written.
    """
    past = read_past(textfile)
    registry = CollectorRegistry()
    registry.register(RunCollector(progress, past))
    with ExitStack() as stack:
        if textfile:
            stack.enter_context(_written(textfile, registry))
        if port:
            stack.enter_context(_served(port, registry))
        yield


def write_last(progress: Progress, textfile: str) -> None:
    """Write what is known after the end of a run; its report holds how it ended.

    Raises:
        OSError: the file cannot be written.
    """
    report, past = progress.report, read_past(textfile)
    ended = time.time()
    past |= {"last_run_timestamp_seconds": ended, "last_run_seconds": report.seconds}
    past["exit_code"] = report.exit_code
    if report.exit_code == 0:
        past["last_success_timestamp_seconds"] = ended
    if progress.accounted:
        past |= {"failures_open": report.failures_open, "documents_withheld": report.documents.withheld}
    registry = CollectorRegistry()
    registry.register(RunCollector(progress, past, running=False))
    write_to_textfile(textfile, registry)


def read_past(textfile: str | None) -> dict[str, float]:
    """What the file says of earlier runs; nothing where there is none, or it is something else."""
    found: dict[str, float] = {}
    try:
        text = Path(textfile).read_text("utf-8") if textfile else ""
        for family in text_string_to_metric_families(text):
            name = family.name.removeprefix("ingestor_")
            if name in PAST and family.samples:
                found[name] = family.samples[0].value
    except (OSError, ValueError):
        return {}
    return found


@contextmanager
def _served(port: int, registry: CollectorRegistry) -> Iterator[None]:
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigError(f"metrics.port: {port} cannot be used: {error.strerror}; name another") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _written(textfile: str, registry: CollectorRegistry) -> Iterator[None]:
    """Write the file again and again, in a thread of its own: a dead disk must not stop the event loop."""
    try:
        write_to_textfile(textfile, registry)
    except OSError as error:
        raise ConfigError(
            f"metrics.textfile: {textfile}: cannot be written: {reason(error)}; make"
            " its folder, or name another"
        ) from error
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(INTERVAL_S):
            try:
                write_to_textfile(textfile, registry)
            except OSError as error:
                logger().warning("metrics", textfile=textfile, error=reason(error))

    thread = threading.Thread(target=write, name="metrics", daemon=True)  # a dead disk must not keep us
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(CLOSING_S)
