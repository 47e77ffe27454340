"""`opic series --plot` draws what `opic series --json` answers, of a crawl that a service follows."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import curls
import numpy as np
import pytest
from processes import wait_until
from repository import ROOT
from serving import serving

from opic.cli.pictures import COLORS
from opic.cli.store import PAGES_DRAWN
from opic.service.service import EmbeddedService
from opic.settings import Settings

SVG = "{http://www.w3.org/2000/svg}"
PAGES = [f"http://a.example/{n}" for n in range(40)]
OUTSIDE = [f"http://b.example/{n}" for n in range(9)]
TURNS = 10
Curve = Sequence[tuple[float, float]]


def opic(*words: object) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
    return subprocess.run(
        [sys.executable, "-m", "opic.cli.main", *map(str, words)],
        env=clean | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def points(path: ElementTree.Element) -> list[tuple[float, float]]:
    words = path.get("d", "").split()
    return [(float(x), float(y)) for x, y in zip(words[1::3], words[2::3], strict=True)]


def number(text: str) -> float:
    """Read a tick: 1,000, 0.02, 10⁻⁶ or 2·10⁻⁶."""
    factor, _, power = text.rpartition("·")
    if not set(power) & set("⁻⁰¹²³⁴⁵⁶⁷⁸⁹"):
        return float(text.replace(",", "").replace("−", "-"))
    exponent = power[2:].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(factor or 1) * 10 ** int(exponent)


def curves_of(axes: ElementTree.Element, *, log: bool = False) -> dict[str, list[tuple[float, float]]]:
    """Return the curves of a panel by colour: x is a place on the page, y what its axis says, or its log10."""
    ticks = dict[float, float]()
    for tick in (group for group in axes.iter(f"{SVG}g") if group.get("id", "").startswith("ytick")):
        for text in tick.iter(f"{SVG}text"):  # Small ticks have none.
            ticks[points(next(tick.iter(f"{SVG}path")))[0][1]] = number(text.text or "")
    ticks = {place: float(np.log10(at)) if log else at for place, at in ticks.items()}
    (low, at_low), (high, at_high) = min(ticks.items()), max(ticks.items())
    scale = (at_high - at_low) / (high - low)
    found = dict[str, list[tuple[float, float]]]()
    for group in axes.iterfind(f"{SVG}g"):
        path = group.find(f"{SVG}path")
        for color in COLORS:
            if path is not None and group.get("id", "").startswith("line2d") and color in path.get("style", ""):
                found[color] = [(x, at_low + (y - low) * scale) for x, y in points(path)]
    return found


def assert_same(drawn: Curve, answer: Curve) -> None:
    """Each point of the answer is on the curve, which begins and ends where the answer does."""
    (x, y), (right_x, right_y) = np.array(drawn).T, np.array(answer, dtype=float).T
    place = x[0] + (right_x - right_x[0]) / (right_x[-1] - right_x[0]) * (x[-1] - x[0])
    assert np.abs(np.interp(place, x, y) - right_y).max() < 0.005 * (np.ptp(right_y) or 1)


def is_settled(stats: Mapping[str, object]) -> bool:
    """Whether all events took effect and the error bound is known: a point that is noted earlier has none."""
    return stats["lag"] == 0 and stats.get("error_bound") is not None


def crawl(service: EmbeddedService, url: str) -> None:
    """Read pages in turns, so that the curve has points; some fail, some are outside of the scope."""
    for turn in range(TURNS):
        read = PAGES[turn : 2 * turn + 1]
        events: list[Mapping[str, object]] = [{"url": page, "links": [*PAGES, *OUTSIDE[:turn]]} for page in read]
        failed = {"url": f"http://a.example/bad{turn}", "status": 500, "give_up": True}
        curls.post(f"{url}/v1/events", json=[*events, failed]).raise_for_status()
        wait_until(lambda: is_settled(curls.get(f"{url}/v1/stats").json()))
        service.backend.curve.note()


@pytest.mark.slow
def test_curves_are_those_of_the_answer(tmp_path: Path) -> None:
    picture = tmp_path / "progress.svg"
    settings = Settings.load(data=tmp_path / "data", host_delay_seconds=0, scope="a.example")
    with EmbeddedService(settings) as service, serving(service) as url:
        early = opic("series", "--service", url, "--plot", picture)
        assert (early.returncode, picture.exists()) == (2, False)
        assert "a picture needs two points" in early.stderr
        crawl(service, url)
        done = opic("series", "--service", url, "--plot", picture, "--json")
    assert done.returncode == 0, done.stderr
    assert f"wrote {picture}" in done.stderr
    answer, drawn = json.loads(done.stdout), ElementTree.parse(picture).getroot()
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert [name for name in PAGES_DRAWN if name in texts] == ["read", "to fetch", "failed", "outside the scope"]
    pages, bound = (axes for axes in drawn.iter(f"{SVG}g") if axes.get("id", "").startswith("axes_"))
    fields = ("read_pages", "to_fetch_pages", "failed_pages", "outside_pages")
    assert answer["progress"][-1]["outside_pages"] == TURNS - 1
    curves = curves_of(pages)
    for color, field in zip(COLORS, fields, strict=False):
        assert_same(curves[color], [(one["time"], one[field]) for one in answer["progress"]])
    (drawn_bound,) = curves_of(bound, log=True).values()
    told = [(one["rounds"], np.log10(one["error_bound"])) for one in answer["convergence"] if one["error_bound"]]
    assert_same(drawn_bound, told)
