"""Pictures of curves, as SVG: one style for all. They need the extra `plot`."""

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

from opic.errors import MissingExtra
from opic.whole_files import whole_files

PANEL_INCHES: Final = {1: (9.0, 4.0), 2: (5.0, 3.6), 3: (3.7, 3.1)}  # By how many there are in a row.
TITLE_CHARS_AN_INCH: Final = 9.5
CAPTION_CHARS_AN_INCH: Final = 13.0
LEGEND_CHARS_AN_INCH: Final = 12.0
LINE_INCHES: Final = 0.21  # Of the legend and the caption, which take no height from the panels.
LEGEND_HANDLE_CHARS: Final = 8  # The space that an entry takes beside its text.
# Okabe and Ito's colours, which colour-blind people tell apart, without the yellow: it is faint on white.
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
DASHES: Final = ("-", "--", ":", "-.")  # The next one, once all colours are taken.
FAINT: Final = "#5f6b7a"
DECADES_SPARSE: Final = 2.5  # A log axis of more has ticks at powers of ten only.
PLAIN_FROM, PLAIN_TO = 1e-3, 1e6  # Ticks of a log axis outside are shown as powers of ten.
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # Text stays text: it can be searched and read out.
    "svg.hashsalt": "opic",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": FAINT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": "#1f2933",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.1,  # Inches.
    "figure.constrained_layout.h_pad": 0.1,
    "figure.facecolor": "white",  # A background of its own: it is readable on a dark page too.
}
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves with one title: by name, points from left to right; and what the axes show.

    Points in another order are not joined: they are a cloud.
    """

    title: str
    lines: Mapping[str, Points]
    x: str
    y: str
    x_scale: str = "linear"  # As matplotlib names it, or "time": Unix seconds.
    y_scale: str = "log"
    levels: Mapping[str, float] = field(default_factory=dict)  # Lines across, with their names on them.
    band: tuple[str, float, float] | None = None  # A range across: its name, low and high end.
    mark: tuple[str, float, float] | None = None  # A point: what to say of it, x, y.
    paper: Mapping[str, Points] = field(default_factory=dict)  # Of a line, what a paper prints: hollow circles.


def write_plot(path: Path, *panels: Panel) -> None:
    """Draw what a command found, and say so on stderr.

    Raises:
        BadInput: the file can't be written.
        MissingExtra: matplotlib is not installed.
    """
    with whole_files([path]) as (file,):
        draw(panels, file)
    print(f"wrote {path}", file=sys.stderr)


def draw(panels: Sequence[Panel], file: BinaryIO, caption: str = "") -> None:
    """Draw panels in rows of up to three, as SVG, with a caption above them; a single line needs no legend.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the package {error.name}", "plot") from None
    columns = 2 if len(panels) == 4 else min(len(panels), max(PANEL_INCHES))
    rows, (width, height) = -(-len(panels) // columns), PANEL_INCHES[columns]
    with mpl.rc_context(STYLE):
        figure = Figure((width * columns, height * rows), layout="constrained")
        places = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        looks = _looks(panels)
        for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
            _draw_panel(axes, panel, looks, width)
            if number % columns and panel.y == panels[number - 1].y:
                axes.set_ylabel("")
        lines = _add_legend(figure, places, panels)
        if caption:
            text = textwrap.fill(caption, int(width * columns * CAPTION_CHARS_AN_INCH))
            figure.suptitle(_plain(text), x=0.01, ha="left", fontsize=10, color=FAINT)
            lines += text.count("\n") + 2
        figure.set_figheight(height * rows + lines * LINE_INCHES)
        figure.savefig(file, format="svg", metadata={"Date": None, "Title": caption or panels[0].title})


def _looks(panels: Sequence[Panel]) -> dict[str, dict[str, str]]:
    """Return the colour and the dashes of each line: the same in all panels."""
    names = dict.fromkeys(name for panel in panels for name in panel.lines)
    return {
        name: {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[number // len(COLORS) % len(DASHES)]}
        for number, name in enumerate(names)
    }


def _draw_panel(axes: Any, panel: Panel, looks: Mapping[str, Mapping[str, str]], inches: float) -> None:
    if panel.band is not None:
        name, low, high = panel.band
        axes.axhspan(low, high, color=COLORS[0], alpha=0.15, linewidth=0, label=_plain(name))
    for name, points in panel.lines.items():
        x, y = _columns(points, panel)
        style = dict(looks[name])
        if any(after < before for before, after in pairwise(x)):
            style |= {"linestyle": "", "marker": "."}
        axes.plot(x, y, label=_plain(name), **({"marker": "o"} if len(points) == 1 else {}) | style)
    for name, points in panel.paper.items():
        x, y = _columns(points, panel)
        style = {"color": looks[name]["color"]} if name in looks else {"color": FAINT}
        axes.plot(x, y, label="read from the paper", linestyle="", marker="o", markerfacecolor="white", **style)
    if panel.levels:
        axes.margins(y=0.12)  # For the names on the lines.
    for name, level in panel.levels.items():
        axes.axhline(level, color=FAINT, linewidth=1, linestyle="--")
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(_plain(name), (0.01, level), (0, 3), color=FAINT, va="bottom", **beside)
    axes.set(yscale=panel.y_scale, xscale="linear" if panel.x_scale == "time" else panel.x_scale)
    axes.set(xlabel=_plain(panel.x), ylabel=_plain(panel.y))
    axes.set_title(_plain(_shortened(panel.title, int(inches * TITLE_CHARS_AN_INCH))))
    if panel.mark is not None:
        _draw_mark(axes, *panel.mark)
    _set_ticks(axes, panel)


def _draw_mark(axes: Any, said: str, x: float, y: float) -> None:
    """Draw a point with a line down to the axis, and say beside its foot what it is."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    axes.vlines(x, bottom, y, color=FAINT, linewidth=1, linestyle=":")
    axes.plot([x], [y], marker="o", color=COLORS[0], markersize=7, clip_on=False)
    left = x > sum(axes.get_xlim()) / 2
    side: dict[str, Any] = {"ha": "right", "xytext": (-5, 5)} if left else {"ha": "left", "xytext": (5, 5)}
    axes.annotate(_plain(said), (x, bottom), textcoords="offset points", va="bottom", fontweight="bold", **side)


def _columns(points: Points, panel: Panel) -> tuple[Sequence[Any], Sequence[float]]:
    x, y = zip(*points, strict=True)
    return [datetime.fromtimestamp(seconds, UTC) for seconds in x] if panel.x_scale == "time" else x, y


def _set_ticks(axes: Any, panel: Panel) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis, scale in ((axes.xaxis, panel.x_scale), (axes.yaxis, panel.y_scale)):
        if scale == "time":
            locator = AutoDateLocator(maxticks=7)  # type: ignore[no-untyped-call]
            axis.set_major_locator(locator)
            axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
            continue
        low, high = sorted(axis.get_view_interval())
        if scale == "log" and low > 0:
            decades = math.log10(high / low)
            if decades < 1:  # Powers of ten may be missing altogether.
                axis.set_major_locator(MaxNLocator(4))
            elif decades < DECADES_SPARSE:
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: _log_tick(value)))
            axis.set_minor_formatter(NullFormatter())
        elif high >= 1_000 and scale == "linear" and not 1900 < low < high < 2100:  # Not years.
            axis.set_major_locator(MaxNLocator(5))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _log_tick(value: float) -> str:
    """Return how a tick of a log axis is shown.

    >>> [_log_tick(value) for value in (0.02, 1, 20_000, 1e-06, 2e6)]
    ['0.02', '1', '20,000', '10⁻⁶', '2·10⁶']
    """
    if value <= 0:  # A place beyond the end of the axis.
        return ""
    if PLAIN_FROM <= value < PLAIN_TO:
        return f"{value:,.10g}"
    power = math.floor(math.log10(value) + 1e-9)
    factor = value / 10**power
    shown = f"10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return shown if math.isclose(factor, 1) else f"{factor:.3g}·{shown}"


def _add_legend(figure: Any, places: Sequence[Any], panels: Sequence[Panel]) -> int:
    """Name what is drawn, below all panels; in its panel, where only one of several does not tell by its words.

    Returns: how many lines it takes below the panels.
    """
    legends = [(axes, *axes.get_legend_handles_labels(), panel) for axes, panel in zip(places, panels, strict=False)]
    named = [
        legend
        for legend in legends
        if len(legend[2]) > 1 or legend[2][0].lower() not in f"{legend[3].title} {legend[3].y}".lower()
    ]
    entries = dict[str, Any]()
    for _, handles, names, _ in legends:
        entries = dict(zip(names, handles, strict=True)) | entries
    if not named or len(entries) < 2:
        return 0
    if len(named) == 1 and len(panels) > 1:
        named[0][0].legend(loc="best", frameon=True, framealpha=0.9, edgecolor="none")
        return 0
    order = list(dict.fromkeys(name for _, _, names, _ in named for name in names))
    widest = max(map(len, order)) + LEGEND_HANDLE_CHARS
    columns = max(1, min(len(order), int(figure.get_figwidth() * LEGEND_CHARS_AN_INCH / widest)))
    figure.legend([entries[name] for name in order], order, loc="outside lower left", ncols=columns)
    return -(-len(order) // columns)


def _shortened(text: str, chars: int) -> str:
    """Return a title that fits: what is too long, such as a URL, loses its middle.

    >>> _shortened("http://a.example/a/long/path/to/a/page", 20)
    'http://a.e…to/a/page'
    """
    kept = chars - 1
    return text if len(text) <= chars else f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def _plain(text: str) -> str:
    """Return text that matplotlib shows as it is, where a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
