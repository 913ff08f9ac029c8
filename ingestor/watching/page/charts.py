"""The drawings of the page about a run: speed, stages, a window of batches, lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from ingestor.channel import StageTime
from ingestor.records import Int64s
from ingestor.watching.history import Sample
from ingestor.watching.page.svg import COLOURS, Drawing, styled
from ingestor.watching.timeline import Window
from ingestor.watching.words import short

Floats = npt.NDArray[np.float64]
WIDE, NARROW = 960, 360
"""Pixels: each drawing is made for a desk and for a phone."""
POINTS = 160
"""Of a line, at most; more cannot be told apart."""
BINS = 40
SPANS_DRAWN = 1200
SEEN = 0.002
"""Share of the width that a bar needs to be seen."""
STATES = {"busy": "busy", "input": "waiting for input", "room": "waiting for room"}


def both(name: str, label: str, draw: Callable[[Drawing], None], height: int) -> str:
    """One drawing for wide pages and one for narrow ones; the page shows the one that fits."""
    with styled():
        found = []
        for kind, width in (("wide", WIDE), ("narrow", NARROW)):
            drawing = Drawing(f"{name}-{kind}", width, height)
            draw(drawing)
            found.append(f'<div class="{kind}">{drawing.svg(label)}</div>')
    return "".join(found)


def speed(samples: Sequence[Sample]) -> str:
    """Documents, tokens and points a second, from the start of the run to its end."""
    at, rates = _rates(samples)
    unit, size = _unit(float(at[-1]))

    def draw(drawing: Drawing) -> None:
        panels = drawing.figure.subplots(len(rates), 1, sharex=True)
        for axes, (name, rate) in zip(panels, rates.items(), strict=True):
            axes.fill_between(at / size, rate, color=COLOURS["series"], alpha=0.15, linewidth=0)
            axes.plot(at / size, rate, color=COLOURS["series"], linewidth=1.8)
            axes.set_ylim(0, max(float(rate.max()) * 1.12, 1e-9))
            axes.set_xlim(0, at[-1] / size)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
            axes.set_title(f"{name}/s", loc="left", fontsize=12, color=COLOURS["ink"])
            if drawing.width == WIDE:
                _tips(drawing, axes, at / size, [f"{short(value)} {name}/s" for value in rate], unit)
        panels[-1].set_xlabel(f"time since the run began [{unit}]")

    return both("speed", "Documents, tokens and points a second over time", draw, 430)


def stages(times: Mapping[str, StageTime]) -> str:
    """Where the time of each stage went."""
    names = list(times)
    columns = {
        "busy": [times[name].busy_s for name in names],
        "input": [times[name].waiting_for_input_s for name in names],
        "room": [times[name].waiting_for_room_s for name in names],
    }
    total = max((sum(values) for values in zip(*columns.values(), strict=True)), default=1.0)
    unit, size = _unit(total)

    def draw(drawing: Drawing) -> None:
        axes = drawing.figure.add_subplot()
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        left = np.zeros(len(names))
        for state, seconds in columns.items():
            widths = np.array(seconds) / size
            bars = axes.barh(names, widths, left=left, height=0.62, color=COLOURS[state])
            for bar, name, took in zip(bars, names, seconds, strict=True):
                drawing.tip(bar, f"{name}: {STATES[state]} {took:,.1f} s")
            left += widths
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelcolor=COLOURS["ink"])
        axes.set_xlabel(f"time [{unit}]")
        axes.set_xlim(0, total / size)

    return both("stages", "Busy and waiting time of each stage", draw, 60 + 30 * len(names))


def timeline(window: Window, order: Sequence[str]) -> str:
    """When each stage worked during a window of batches, as a profiler draws it."""
    rows = [name for name in order if any(stage == name for stage, _, _ in window.spans)]
    end = window.end or max((end for _, _, end in window.spans), default=window.begin + 1)
    unit, size = ("ms", 1e6) if end - window.begin < 2e9 else ("s", 1e9)
    spans = sorted(window.spans, key=lambda span: span[1] - span[2])[:SPANS_DRAWN]  # the longest ones

    def draw(drawing: Drawing) -> None:
        axes = drawing.figure.add_subplot()
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        for stage, since, until in sorted(spans, key=lambda span: span[1]):
            start, stop = max(since, window.begin), min(until, end)
            share = (stop - start) / (end - window.begin)
            bar = axes.barh(
                rows.index(stage),
                max(share, SEEN) * (end - window.begin) / size,
                left=(start - window.begin) / size,
                height=0.7,
                color=COLOURS[f"stage{order.index(stage) % 9}"],
                edgecolor=COLOURS["card"],
                linewidth=0.6 if share > 4 * SEEN else 0,
            )[0]
            if drawing.width == WIDE:
                began = (since - window.begin) / size
                drawing.tip(bar, f"{stage}: {(until - since) / size:,.1f} {unit}, from {began:,.1f} {unit}")
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(axis="y", labelcolor=COLOURS["ink"])
        axes.invert_yaxis()
        axes.set_xlim(0, (end - window.begin) / size)
        axes.set_xlabel(f"time since the first of these batches set out [{unit}]")

    return both("timeline", "When each stage worked", draw, 60 + 34 * len(rows))


def histogram(name: str, counts: Int64s, what: str, of: str) -> str:
    """How many of something there are of each length."""
    longest = int(np.flatnonzero(counts)[-1])
    first = int(np.flatnonzero(counts)[0])
    width = max(1, -(-(longest + 1 - first) // BINS))
    edges = np.arange(first, longest + width + 1, width)
    sums = np.add.reduceat(np.append(counts, np.zeros(width, np.int64)), edges[:-1])

    def draw(drawing: Drawing) -> None:
        axes = drawing.figure.add_subplot()
        middles = edges[:-1] + (width - 1) / 2
        bars = axes.bar(middles, sums, width=width * 0.92, color=COLOURS["series"])
        axes.set_xlim(edges[0] - 0.7, edges[-1] - 0.3)
        for bar, low, count in zip(bars, edges[:-1].tolist(), sums.tolist(), strict=True):
            there = f"{low:,}" if width == 1 else f"{low:,} to {low + width - 1:,}"
            drawing.tip(bar, f"{there} {what}: {count:,} {of}")
        axes.set_xlabel(f"{what} in a {of.removesuffix('s')}")
        axes.set_ylabel(of)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.xaxis.set_major_locator(MaxNLocator(8 if drawing.width == WIDE else 5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))

    return both(name, f"{of} by their {what}", draw, 240)


def _rates(samples: Sequence[Sample]) -> tuple[Floats, dict[str, Floats]]:
    """Times in seconds, and the mean rates around them."""
    step = max(1, -(-(len(samples) - 1) // POINTS))
    kept = [*samples[:-1:step], samples[-1]]
    at = np.array([sample.at_s for sample in kept])
    gaps = np.maximum(np.diff(at), 1e-9)
    rates = {
        name: np.diff([getattr(sample, name) for sample in kept]) / gaps
        for name in ("documents", "tokens", "points")
    }
    smooth = max(1, len(gaps) // 40)  # sinks answer in bursts
    kernel = np.ones(smooth)
    weights = np.convolve(gaps, kernel, "same")
    middle = (at[1:] + at[:-1]) / 2
    means = {
        name: np.maximum(np.convolve(rate * gaps, kernel, "same") / weights, 0)
        for name, rate in rates.items()
    }
    ends = np.concatenate([[0.0], middle, [at[-1]]])
    return ends, {name: np.concatenate([mean[:1], mean, mean[-1:]]) for name, mean in means.items()}


def _unit(seconds: float) -> tuple[str, float]:
    if seconds < 300:
        return "s", 1.0
    return ("min", 60.0) if seconds < 4 * 3600 else ("h", 3600.0)


def _tips(drawing: Drawing, axes: Axes, at: Floats, said: Sequence[str], unit: str) -> None:
    """Say the value under the mouse, by areas that nobody sees."""
    borders = np.concatenate([[at[0]], (at[1:] + at[:-1]) / 2, [at[-1]]])
    for left, right, here, text in zip(borders[:-1], borders[1:], at, said, strict=True):
        area = axes.axvspan(left, right, alpha=0, linewidth=0)
        drawing.tip(area, f"at {here:,.1f} {unit}: {text}")


def spread(counts: Int64s) -> str:
    """A histogram in words: mean, median and the 95th percentile."""
    total = int(counts.sum())
    numbers, so_far = np.arange(len(counts)), np.cumsum(counts)
    mean = float((numbers * counts).sum()) / total
    median, most = (int(np.searchsorted(so_far, share * total)) for share in (0.5, 0.95))
    return f"mean {mean:,.1f}, median {median:,}, 95 % have {most:,} or fewer"
