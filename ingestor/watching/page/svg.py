"""Matplotlib figures as SVG for a page: its own colours, text as text, and parts that say what they are.

What is drawn in one of `COLOURS` gets the page's variable of that name, so that one drawing serves
light, dark and paper.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of its cache of fonts
DOTS_PER_INCH = 72
"""So that one unit of the drawing is one pixel of the page at its full width."""
COLOURS = {
    "ink": "#010000",
    "muted": "#020000",
    "grid": "#030000",
    "card": "#040000",
    "busy": "#050000",
    "input": "#060000",
    "room": "#070000",
    "series": "#080000",
    **{f"stage{number}": f"#0{number}ff00" for number in range(9)},
}
"""Name of a variable of the page's style: the colour to draw with, which stands for it."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.labelsize": 12,
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 1,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 10,
    "ytick.major.pad": 6,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "path.simplify": True,
}


class Drawing:
    """A figure of a width and height in pixels.

    Attributes:
        figure: to draw on.
        name: unique on the page.
    """

    def __init__(self, name: str, width: int, height: int) -> None:
        self.name = name
        self.width = width
        size = (width / DOTS_PER_INCH, height / DOTS_PER_INCH)
        self.figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
        self.figure.get_layout_engine().set(w_pad=0.02, h_pad=0.04)  # type: ignore[union-attr, call-arg]
        self._tips: dict[str, str] = {}

    def tip(self, artist: Any, text: str) -> None:
        """Show this text where the mouse rests on the artist."""
        name = f"tip{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = text

    def svg(self, label: str) -> str:
        """The drawing as an element of a page; `label` is what it is for who cannot see it."""
        file = io.StringIO()
        FigureCanvasSVG(self.figure).print_svg(file, metadata={"Date": None, "Creator": None})
        text = file.getvalue()
        text = text[text.index("<svg") :]
        box = re.search(r'viewBox="[^"]*"', text)
        assert box
        inside = text[text.index(">") + 1 :]
        inside = re.sub(r"<metadata>.*?</metadata>", "", inside, flags=re.DOTALL)
        inside = _named(inside, self.name, self._tips)
        for name, colour in COLOURS.items():
            inside = inside.replace(colour, f"var(--{name})")
        return (
            f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img"'
            f' aria-label="{escape(label)}" style="max-width: {self.width}px">{inside.strip()}'
        )


def styled() -> Any:
    """The style, for what is drawn inside `with`."""
    return rc_context(STYLE)


def _named(svg: str, prefix: str, tips: Mapping[str, str]) -> str:
    """Drop the names that nothing refers to, make the others unique on the page, and add the tips."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))

    def rename(found: re.Match[str]) -> str:
        name = found[1]
        return f' id="{prefix}-{name}"' if name in used or name in tips else ""

    svg = re.sub(r' id="([^"]*)"', rename, svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    for name, text in tips.items():
        opened = f'<g id="{prefix}-{name}">'
        svg = svg.replace(opened, f"<g><title>{escape(text)}</title>")
    return re.sub(r">\s+<", "><", svg)
