"""What the commands draw with --plot: curves in an SVG file. The extra `plot` is needed only to write it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opic.errors import MissingExtra

WIDE_INCHES: Final = (9.0, 4.0)


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves with one title: by name, points from left to right; and what the axes show."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str
    x_scale: str = "linear"  # As matplotlib names it, or "time": Unix seconds.
    y_scale: str = "log"


def write_plot(path: Path, *panels: Panel, inches: tuple[float, float] = WIDE_INCHES) -> None:
    """Draw panels of a size into a file, and say so on stderr.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from opic.cli.pictures import draw
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the package {error.name}", "plot") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(panels, path, inches=inches)
    print(f"wrote {path}", file=sys.stderr)
