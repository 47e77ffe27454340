"""Every experiment's runs are combined alike: figures, standard errors, curves, notes, progress."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.catalogue import EXPERIMENTS
from experiments.result import Result
from experiments.skeleton import Experiment, Extreme, Run, keys
from opic.arrays import Float64s
from opic.errors import BadInput

COLUMNS = {**keys("place"), "draw": 6, "least": Extreme(min, "draw", 6), "share": ".1%", "said": None}


def drawn(run: Run) -> Iterator[list[object]]:
    """Yield a random number for each place; the second has no figure in later runs, the third is in the first alone."""
    rng = run.rng(7)
    for place in run.steps(("a", "b", "c")):
        value = float(rng.random())
        run.draw("values", place, [(1.0, value), (2.0, 2 * value)][: 2 if run.number else 1])
        if place != "c" or not run.number:
            yield [place, value, None, value, value if place == "a" or not run.number else "> 1"]
    run.note("said once")


def made(**changes: Any) -> Experiment:
    given = {"runs": 3, "combine": median, "notes": ("declared",), **changes}
    return Experiment("made-up", "title", "source", COLUMNS, drawn, **given)


def result(experiment: Experiment, **options: Any) -> Result:
    return experiment.run(None, lambda *_: None, **options)


def of(place: str, table: Result) -> dict[str, object]:
    (row,) = (row for row in table.rows if row[0] == place)
    return dict(zip(table.columns, row, strict=True))


def draws(runs: int) -> Float64s:
    """(runs, 3) What the runs draw."""
    return np.array([np.random.default_rng(7 + number).random(3) for number in range(runs)])


def test_first_run_is_the_recorded_one_at_any_number_of_runs() -> None:
    (row,) = (row for row in result(made(runs=1)).rows if row[0] == "a")
    assert row[1] == of("a", result(made(), runs=1))["draw"] == round(draws(1)[0, 0], 6)


def test_recorded_table_has_medians_and_extremes_of_the_runs() -> None:
    table = result(made())
    assert list(table.columns) == list(COLUMNS)
    row, values = of("a", table), draws(3)[:, 0]
    assert row["draw"] == round(float(np.median(values)), 6)
    assert row["least"] == round(float(values.min()), 6)
    assert row["share"] == f"{np.median(values):.1%}"


@given(runs=st.integers(2, 9))
def test_runs_that_are_asked_for_give_means_and_standard_errors(runs: int) -> None:
    table = result(made(), runs=runs)
    assert list(table.columns) == ["place", "runs", "draw", "draw ±", "share", "share ±", "said", "said ±"]
    row, values = of("a", table), draws(runs)[:, 0]
    assert row["runs"] == runs
    assert row["draw"] == pytest.approx(values.mean(), abs=1e-6)
    assert row["draw ±"] == pytest.approx(values.std(ddof=1) / runs**0.5, abs=1e-6)
    assert f"means of {runs} runs" in table.notes[0]


def test_row_missing_in_some_runs_says_in_how_many_it_is() -> None:
    table = result(made(), runs=4)
    assert of("b", table)["said"] == "in 1 of 4 runs"
    assert of("b", table)["said ±"] == ""
    assert of("c", table)["runs"] == 1
    assert of("c", table)["draw ±"] == ""


def test_curves_are_combined_where_all_runs_have_points() -> None:
    (panel,) = result(made(), runs=3).panels
    assert panel.lines["a"] == [(1.0, pytest.approx(draws(3)[:, 0].mean()))]


def test_picture_has_a_caption_and_the_figures_of_the_paper_in_its_last_panel(tmp_path: Path) -> None:
    found = result(made(printed={"a": [(1.0, 0.5)], "not drawn": [(1.0, 0.5)]}))
    assert [panel.paper for panel in found.panels] == [{"a": [(1.0, 0.5)]}]
    said = "Title. After source; median of 3 runs; circles: figures that the paper prints, of its own graphs."
    assert found.caption == said
    _, picture = found.write(tmp_path)
    assert all(text in picture.read_text() for text in (f"<dc:title>{said}", ">values<", ">read from the paper<"))
    assert result(made()).caption == "Title. After source; median of 3 runs."
    assert [panel.paper for panel in result(made()).panels] == [{}]


def test_repeated_notes_are_printed_once() -> None:
    assert list(result(made()).notes) == ["said once", "declared"]


def test_runs_of_an_experiment_without_random_numbers_are_refused() -> None:
    assert len(result(made(runs=0)).rows) == 3
    with pytest.raises(BadInput, match="made-up: nothing in it is random, so 2 runs would be the same"):
        result(made(runs=0), runs=2)


def test_progress_counts_steps_within_runs() -> None:
    seen = list[tuple[int, int, str]]()
    made().run(None, lambda *said: seen.append(said), runs=2)
    assert [done for done, total, _ in seen if total == 6] == [0, 1, 2, 3, 4, 5]
    assert (4, 6, "run 2, b") in seen
    assert seen[-1] == (2, 2, "")


def test_each_experiment_has_a_key_and_a_figure() -> None:
    for experiment in EXPERIMENTS.values():
        kinds = list(experiment.columns.values())
        assert "key" in kinds
        assert any(kind != "key" for kind in kinds)
