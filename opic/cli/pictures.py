"""Pictures of curves, as SVG. They need the extra `plot`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from opic.errors import MissingExtra
from opic.whole_files import whole_files

PANEL_INCHES: Final = (5.0, 4.0)
WIDE_INCHES: Final = (9.0, 4.0)
PANELS_A_ROW: Final = 4
COLORS: Final = {"tab10": 10, "Dark2": 8}  # Maps of matplotlib, and how many colours each has.


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves with one title: by name, points from left to right; and what the axes show."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str
    x_scale: str = "linear"  # As matplotlib names it, or "time": Unix seconds.
    y_scale: str = "log"


def write_plot(path: Path, *panels: Panel) -> None:
    """Draw what a command found, and say so on stderr.

    Raises:
        BadInput: the file can't be written.
        MissingExtra: matplotlib is not installed.
    """
    with whole_files([path]) as (file,):
        draw(panels, file, inches=WIDE_INCHES if len(panels) == 1 else PANEL_INCHES)
    print(f"wrote {path}", file=sys.stderr)


def draw(panels: Sequence[Panel], file: BinaryIO, inches: tuple[float, float] = PANEL_INCHES) -> None:
    """Draw panels of a size in rows of up to PANELS_A_ROW, as SVG; a single line needs no legend.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.dates import ConciseDateFormatter
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the package {error.name}", "plot") from None
    colors = [mpl.colormaps[name](i) for name, count in COLORS.items() for i in range(count)]
    columns = min(len(panels), PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    figure = Figure((inches[0] * columns, inches[1] * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    shown: dict[str, Any] = {}  # A line has one colour in all panels.
    for axes, panel in zip(places, panels, strict=False):
        for name, points in panel.lines.items():
            style = "--" if "seen" in name else "-"
            marker = "o" if len(points) == 1 else ""
            color = shown[name].get_color() if name in shown else colors[len(shown) % len(colors)]
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
        figure.savefig(file, format="svg", metadata={"Date": None})
