"""Pictures of curves, as SVG. They need the extra `plot`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from opic.cli.plots import Panel

PANEL_INCHES: Final = (5.0, 4.0)
PANELS_A_ROW: Final = 4
COLORS: Final = [mpl.colormaps[name](i) for name, count in (("tab10", 10), ("Dark2", 8)) for i in range(count)]


def draw(panels: Sequence[Panel], path: Path, inches: tuple[float, float] = PANEL_INCHES) -> None:
    """Draw panels of a size in rows of up to PANELS_A_ROW, as SVG; a single line needs no legend."""
    columns = min(len(panels), PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    figure = Figure((inches[0] * columns, inches[1] * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    shown: dict[str, Line2D] = {}  # A line has one colour in all panels.
    for axes, panel in zip(places, panels, strict=False):
        for name, points in panel.lines.items():
            style = "--" if "seen" in name else "-"
            marker = "o" if len(points) == 1 else ""
            color = shown[name].get_color() if name in shown else COLORS[len(shown) % len(COLORS)]
            x, y = zip(*points, strict=True)
            if panel.x_scale == "time":
                x = tuple(datetime.fromtimestamp(at, UTC) for at in x)
            (line,) = axes.plot(x, y, label=name, linestyle=style, marker=marker, color=color)
            shown.setdefault(name, line)
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, yscale=panel.y_scale)
        if panel.x_scale == "time":
            form = ConciseDateFormatter(axes.xaxis.get_major_locator())  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_formatter(form)
        else:
            axes.set_xscale(panel.x_scale)
    if len(shown) > 1:
        figure.legend(list(shown.values()), list(shown), loc="outside right upper")
    with mpl.rc_context({"svg.hashsalt": "opic"}):
        figure.savefig(path, metadata={"Date": None})
