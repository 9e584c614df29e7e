"""Steps to costs, costs to a page."""

import json
from dataclasses import asdict

import pytest
from bench.compare import Comparison, Cost, cost, even
from bench.growth import Table, exponent, markdown
from bench.results import describe, keep, memory_aim, read_results, report
from bench.workloads import ROWS, answer_lengths, find_rows, verdict

STEPS = [
    {"cpu": 3.0, "wall": 4.0, "tokens": 30, "stations": {"decode": 2.0}},
    {"cpu": 2.0, "wall": 5.0, "tokens": 10, "stations": {"decode": 1.0}},
]
MEMORY = {"idle": 100.0, "peak": 350.0}


def test_the_cheapest_step_counts():
    found = cost(STEPS, MEMORY, per_token=False)
    assert (found.cpu, found.wall, found.memory, found.stations) == (2.0, 4.0, 250.0, {"decode": 1.0})


def test_free_lengths_are_paid_per_token():
    found = cost(STEPS, MEMORY, per_token=True)
    assert found.cpu == pytest.approx(3.0 * 20 / 30)
    assert found.tokens == 20


def test_ours_is_moved_to_the_tokens_of_the_peer():
    ours, peer = cost(STEPS, MEMORY, per_token=True), cost([{**STEPS[0], "tokens": 40}], MEMORY, per_token=True)
    assert even(ours, peer).cpu == pytest.approx(2 * ours.cpu)
    assert even(ours, peer).tokens == 40


def side(seconds, memory):
    same = {"tokens": 1.0, "idle": 9.0, "stations": {"decode": 0.5}}
    return Cost(cpu=seconds, median=seconds, wall=seconds, memory=memory, **same)


def compared(cpu=1.0):
    ours, peer = side(cpu, 100.0), side(3.0, 500.0)
    return Comparison(row=ROWS[0].name, ours=ours, peer=peer, gradient=5e-7, versions={"trl": "1"})


def test_ratio_and_share():
    assert (compared().ratio, compared().memory_share) == (3.0, 0.2)


def kept(cpu=1.0):
    return keep({"rows": {}, "defaults": {}}, ROWS[0], asdict(compared(cpu)), {"decode": 0.25}, {"body": 80.0})


def test_a_kept_row_carries_ratio_machine_and_rates():
    line = kept()["rows"][ROWS[0].name]
    assert (line["ratio"], line["memory_share"], line["gemm"]) == (3.0, 0.2, {"body": 80.0})
    assert "cores" in line["machine"]


def test_other_rows_stay_as_they_were():
    before = {"rows": {"other": {"ratio": 1}}, "defaults": {}, "extra": {"a": "b"}}
    after = keep(before, ROWS[0], asdict(compared()), {}, {})
    assert after["rows"]["other"] == {"ratio": 1}
    assert after["extra"] == {"a": "b"}


def test_the_page_names_ratio_and_share_of_needed_work():
    page = report(kept())
    assert "**3.0×** | 2× |" in page
    assert "| decode | 0.500 | 0.250 | 50% |" in page


def test_a_missed_aim_is_said():
    assert "2× (missed)" in report(kept(cpu=2.0))


def test_growth_tables_follow_the_comparison():
    assert "### Something" in report({**kept(), "extra": {"growth-x": "### Something"}})


def test_no_file_is_no_results(tmp_path):
    assert read_results(tmp_path / "none.json") == {"rows": {}, "defaults": {}}


def test_results_survive_a_file(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(kept()))
    assert read_results(tmp_path / "r.json") == kept() | {"rows": read_results(tmp_path / "r.json")["rows"]}


def test_memory_aims_stand_only_where_there_is_one():
    assert memory_aim(ROWS[0], {"memory_share": 0.5}) == ""
    row = next(row for row in ROWS if row.memory_aim == 0.2)
    assert memory_aim(row, {"memory_share": 0.1}) == " (aim 0.2)"
    assert memory_aim(row, {"memory_share": 0.3}) == " (aim 0.2, missed)"


def test_rows_are_described_in_words():
    assert describe(ROWS[0]) == "GRPO, 1 M, 8×8, prompt 32, completion 64"


def test_an_unknown_row_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match="no row nonsense; there are grpo-1m-32-64"):
        find_rows(["nonsense"])


def test_all_rows_if_none_is_named():
    assert find_rows([]) == list(ROWS)


def test_ragged_answers_have_the_mean_that_is_said():
    row = next(row for row in ROWS if row.ragged)
    lengths = answer_lengths(row, 4000)
    assert sum(lengths) / 4000 == pytest.approx(row.completion - 1, rel=0.03)
    assert max(lengths) > 3 * min(lengths)


def test_rewards_differ_between_texts():
    assert len({verdict(text) for text in ("ab", "ba!", "abc", "b")}) == 4


def test_exponent_of_a_power():
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2.0)


def test_a_table_with_its_exponent():
    table = Table(title="T", size="n", columns=("s",), fitted=(("s", "1"),), lines=((1, 2.0), (10, 20.0)))
    assert markdown(table).splitlines()[-1] == "Exponent of s: **1.00** (should be 1)."
