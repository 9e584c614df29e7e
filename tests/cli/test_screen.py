"""What a person sees: on a terminal one live line, elsewhere a line now and then, and never a lost bracket."""

import math
from io import StringIO

import pytest
from rich.console import Console

from posttrain.checks.report import CheckResult
from posttrain.cli.screen import Screen, check_line, flat, interval_text, show_evaluations, sparkline
from posttrain.types import Ending, Group
from tests.evals.builders import prompt, result
from tests.records.examples import TASK, build_group, build_rollout


def screen(*, terminal):
    console = Console(file=StringIO(), force_terminal=terminal, width=120, record=True, color_system=None)
    return Screen("GRPO", console=console), console


def shown(console):
    return console.file.getvalue()


METRICS = {"reward/mean": 0.5, "loss": 0.25, "entropy": 1.0, "tokens_per_second/generate": 1234.0}


def play(view, steps=3):
    with view:
        view.begin(0, steps)
        for step in range(1, steps + 1):
            view.station("generate")
            view.rollouts(1, 8)
            view.sample(build_group())
            view.step(step, METRICS)


def test_elsewhere_a_line_says_where_it_is():
    view, console = screen(terminal=False)
    play(view)
    assert "step 3/3  reward 0.500  loss 0.2500  entropy 1.000  gen tok/s 1234  left 0:00" in shown(console)


def test_elsewhere_there_are_no_control_codes():
    view, console = screen(terminal=False)
    play(view)
    assert "\x1b" not in shown(console)


def test_elsewhere_lines_come_now_and_then():
    view, console = screen(terminal=False)
    play(view, steps=50)
    assert 1 <= shown(console).count("step ") <= 3


def test_on_a_terminal_the_line_lives():
    view, console = screen(terminal=True)
    play(view)
    assert ("\x1b" in shown(console), "GRPO" in shown(console), "3/3" in shown(console)) == (True, True, True)


def test_on_a_terminal_no_lines_pile_up():
    view, console = screen(terminal=True)
    play(view)
    assert "step 3/3" not in shown(console)


def test_the_terminal_is_given_back_after_an_error():
    view, _ = screen(terminal=True)
    with pytest.raises(KeyError):
        interrupted(view)
    assert None is view._live


def interrupted(view):
    with view:
        view.begin(0, 3)
        raise KeyError


def test_ending_twice_is_no_fault():
    view, _ = screen(terminal=True)
    view.begin(0, 1)
    view.end()
    assert None is view.end()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_first_rollout_is_shown_once(terminal):
    view, console = screen(terminal=terminal)
    play(view)
    assert 1 == shown(console).count("first rollout:")


def test_a_rollout_may_hold_markup():
    view, console = screen(terminal=False)
    rollout = build_rollout(text="[bold]no[/bold] [/] [red", ending=Ending.LENGTH)
    view.sample(Group(position=0, task=TASK, rollouts=(rollout,)))
    assert "[bold]no[/bold] [/] [red" in shown(console)


def test_an_empty_group_is_not_shown():
    view, console = screen(terminal=False)
    view.sample(build_group(rewards=()))
    assert "" == shown(console)


def test_a_long_rollout_is_cut():
    view, console = screen(terminal=False)
    view.sample(
        build_group().__class__(position=0, task=build_rollout().task, rollouts=(build_rollout(text="x" * 999),))
    )
    assert (True, False) == ("…" in shown(console), "x" * 200 in shown(console))


def test_notes_keep_their_brackets():
    view, console = screen(terminal=False)
    view.note("k = [8], [[rewards]] and [bold]")
    assert "k = [8], [[rewards]] and [bold]" in shown(console)


def test_the_station_says_what_is_counted():
    view, _ = screen(terminal=True)
    view.station("evaluate")
    view.rollouts(3, 8)
    view.rollouts(4, 8)
    assert "evaluate 4/8" == view._station


def test_a_check_is_a_line():
    view, console = screen(terminal=False)
    view.check(CheckResult(name="ratio", status="pass", measured="0", expected="at most 1e-04", seconds=0.25))
    assert "✓ ratio  0 (at most 1e-04, 0.2 s)" in shown(console)


@pytest.mark.parametrize(("status", "mark"), [("pass", "✓"), ("fail", "✗"), ("warn", "!"), ("skip", "–")])
def test_every_status_has_a_mark(status, mark):
    assert mark in check_line(CheckResult(name="x", status=status, measured="", expected=""))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ""), ([1.0], "▁"), ([2.0, 2.0], "▁▁"), ([0.0, 0.5, 1.0], "▁▅█"), ([5.0, 0.0, 1.0], "▁█")],
)
def test_a_curve(values, expected):
    width = 2 if values[:1] == [5.0] else 10
    assert expected == sparkline(values, width).replace("▄", "▅")


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_a_curve_with_a_gap(gap):
    assert "▁ █" == sparkline([0.0, gap, 1.0], 10)


def test_a_curve_of_gaps():
    assert "  " == sparkline([math.nan, math.nan], 10)


def test_sections_become_dotted_keys():
    nested = {"run": {"steps": 1}, "rewards": [{"type": "exact"}], "k": [1, 2], "empty": {}}
    expected = [("run.steps", 1), ("rewards.0.type", "exact"), ("k", [1, 2]), ("empty", {})]
    assert expected == flat(nested)


def test_results_share_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [("before", result(prompt("a", 1), prompt("b", 2))), ("after", result(prompt("a", 4), prompt("b", 4)))]
    show_evaluations(rows)
    out = capsys.readouterr().out
    assert [] == [word for word in ("before", "after", "pass@1", "pass@2", "100.0%") if word not in out]


def test_an_interval_in_words():
    class Interval:
        mean, low, high = 0.441, 0.402, 0.48

    assert all(number in interval_text(Interval()) for number in ("44.1%", "40.2", "48.0"))
