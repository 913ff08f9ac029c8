"""A run's counters as Prometheus wants them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingestor import __version__
from ingestor.watching.progress import Progress

PAST = {
    "last_run_timestamp_seconds": "When the last run ended.",
    "last_run_seconds": "How long it took.",
    "last_success_timestamp_seconds": "When a run last ended with exit code 0.",
    "exit_code": "That of the last run.",
    "failures_open": "Failures to be mended, of the last run and of earlier ones.",
    "documents_withheld": "Deletions that the last run held back.",
}
"""What a run leaves for the time after it, and what is still true while the next one goes on."""


Found = float | Mapping[Any, float] | None
"""One value, or one for each combination of labels."""


class RunCollector(Collector):
    """Reads the counters when it is asked, in whatever thread.

    Args:
        progress: the run's.
        past: values of `PAST`.
        running: the run has not ended.
    """

    def __init__(self, progress: Progress, past: Mapping[str, float], *, running: bool = True) -> None:
        self._progress = progress
        self._past = dict(past)
        self._running = running

    def collect(self) -> Iterator[Metric]:
        """All metrics; those of a stage appear with the first sample."""
        yield from self._about_the_run()
        yield from self._counters()
        yield from self._stages()

    def _about_the_run(self) -> Iterator[Metric]:
        progress = self._progress
        about = {(__version__, progress.report.target): 1}
        yield self._gauge("info", "What runs, and where to; always 1.", about, "version", "target")
        yield self._gauge("running", "1 while a run goes on.", self._running)
        yield self._gauge("run_start_timestamp_seconds", "When the run began.", progress.began)
        moved = time.time() - progress.still_s if self._running else None
        yield self._gauge("last_progress_timestamp_seconds", "When a counter of the run last moved.", moved)
        yield self._gauge("progress_ratio", "Share of the work that is done, about.", progress.done)
        left = progress.left_s() if self._running else None
        yield self._gauge("remaining_seconds", "To the end of the run, about.", left)
        for name, said in PAST.items():
            yield self._gauge(name, said, self._past.get(name))

    def _counters(self) -> Iterator[Metric]:
        tally, shards, size = self._progress.tally, self._progress.shards_total, self._progress.bytes_total
        yield self._gauge("shards", "Shards that the run reads.", shards)
        yield self._gauge("shards_done", "Those of them that are settled.", tally.shards_done)
        yield self._gauge("source_bytes", "Their size on disk.", size)
        yield self._gauge("source_read_bytes", "As much of it as was read.", tally.taken)
        outcomes = ("indexed", "unchanged", "duplicates", "failed")
        found = {name: getattr(tally, name) for name in outcomes}  # may fall: a later record takes over
        yield self._gauge("documents", "Documents by what became of them.", found, "outcome")
        yield self._counter(
            "documents_read", "Documents that were read, or known to be unchanged.", tally.read
        )
        yield self._gauge(
            "rejected", "Records and documents that were refused.", dict(tally.rejected), "kind"
        )
        yield self._gauge("skipped", "Records that were passed over by design.", dict(tally.skipped), "kind")
        yield self._counter("shard_errors", "Shards that broke off.", len(tally.shard_errors))
        yield self._counter("chunks_embedded", "Chunks that went to the encoder.", tally.chunks)
        yield self._counter("tokens_embedded", "Tokens in them.", tally.tokens)
        yield self._counter("tokens_padding", "Padding that went there with them.", tally.padding)
        yield self._counter("points_upserted", "Points that were written.", tally.points)
        yield self._counter("points_deleted", "Points that were deleted.", tally.points_deleted)

        waited = self._progress.waited()
        times = {kind: count for kind, (count, _) in waited.items()}
        yield self._counter("sink_waits", "Pauses before a request was made again.", times, "kind")
        seconds = {kind: took for kind, (_, took) in waited.items()}
        yield self._counter("sink_wait_seconds", "How long they were.", seconds, "kind")

    def _stages(self) -> Iterator[Metric]:
        if not (recent := list(self._progress.history.recent)):
            return
        last = recent[-1]
        seconds = {
            (stage, state): getattr(spent, f"{state}_s")
            for stage, spent in last.stages.items()
            for state in ("busy", "waiting_for_input", "waiting_for_room")
        }
        said = "Where each stage's time went."
        yield self._counter("stage_seconds", said, seconds, "stage", "state")
        held = {queue: now for queue, (now, _) in last.queues.items()}
        yield self._gauge(
            "queue_items", "What waits before a stage, or the slots that are held.", held, "queue"
        )
        room = {queue: most for queue, (_, most) in last.queues.items()}
        yield self._gauge("queue_size", "How many can wait there.", room, "queue")

    def _gauge(self, name: str, said: str, found: Found, *labels: str) -> Metric:
        return self._filled(
            GaugeMetricFamily(f"ingestor_{name}", said, labels=("collection", *labels)), found
        )

    def _counter(self, name: str, said: str, found: Found, *labels: str) -> Metric:
        family = CounterMetricFamily(f"ingestor_{name}", said, labels=("collection", *labels))
        return self._filled(family, found)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, found: Found) -> Metric:
        """Add the values; the keys of a mapping are a label's value, or the values of all labels."""
        values: Mapping[Any, float | None] = found if isinstance(found, Mapping) else {(): found}
        for labels, value in values.items():
            rest = [labels] if isinstance(labels, str) else labels
            if value is not None:
                family.add_metric([self._progress.report.collection, *rest], float(value))
        return family
