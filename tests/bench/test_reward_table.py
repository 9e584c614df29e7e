"""When a curve reaches a goal, and how that is written."""

import json

from bench.reward_table import cell, reached, read_curve, reward_table


def curve(*rewards):
    return [{"step": step, "cpu": 2.0 * step, "reward": reward} for step, reward in enumerate(rewards, start=1)]


def test_the_mean_of_the_last_steps_counts_not_a_single_one():
    assert reached(curve(1.0, 0.0, 0.0, 1.0, 1.0), 0.6, width=3)["step"] == 5


def test_too_few_steps_reach_nothing():
    assert reached(curve(1.0, 1.0), 0.5, width=3) is None


def test_a_goal_that_is_missed_says_how_long_was_tried():
    assert cell(curve(*[0.1] * 20), 0.5) == "not in 40"


def test_a_goal_that_is_reached_gives_seconds_and_step():
    assert cell(curve(*[0.5] * 20), 0.5) == "20 (10)"


def test_lines_without_a_reward_are_left_out(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in [{"step": 0, "test_acc": 0.2}, *curve(0.5)]))
    assert read_curve(path) == curve(0.5)


def test_the_table_has_a_line_per_curve():
    text = reward_table({"ours, seed 0": curve(*[0.5] * 20)})
    assert text.splitlines()[-1] == "| ours, seed 0 | 2.00 | 20 (10) | 20 (10) | not in 40 |"
