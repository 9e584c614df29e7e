"""Results in a file come back as they were; comparing them pairs prompts and warns of other protocols."""

from dataclasses import replace

import pytest

from posttrain.errors import RecordError
from posttrain.evals.record import FILE_NAME, append_result, compare, read_results
from posttrain.functional.intervals import paired_difference
from tests.evals.builders import PROTOCOL, prompt, result

BEFORE = result(prompt("a", 1), prompt("b", 2), prompt("c", 0), step=0, label="before")
AFTER = result(prompt("a", 2), prompt("b", 4), prompt("c", 1), step=9, label="after")


def test_results_come_back_equal_and_in_order(tmp_path):
    for one in (BEFORE, AFTER):
        append_result(tmp_path / FILE_NAME, one)
    assert [BEFORE, AFTER] == read_results(tmp_path / FILE_NAME)


def test_a_result_of_one_prompt_comes_back_too(tmp_path):
    single = result(prompt("a", 2))
    append_result(tmp_path / FILE_NAME, single)
    assert [single] == read_results(tmp_path / FILE_NAME)


def test_the_row_holds_the_digest_of_its_protocol():
    assert BEFORE.to_json()["digest"] == PROTOCOL.digest


def test_a_missing_file_holds_no_results(tmp_path):
    assert [] == read_results(tmp_path / FILE_NAME)


@pytest.mark.parametrize("line", ['{"pass_at": 1}\n', '{"step": 3}\n'])
def test_a_row_that_is_no_result_is_named_by_line(line, tmp_path):
    (tmp_path / FILE_NAME).write_text(line)
    with pytest.raises(RecordError, match="line 1: not an evaluation result"):
        read_results(tmp_path / FILE_NAME)


def test_the_metrics_carry_the_numbers_by_name():
    metrics = AFTER.metrics()
    assert (AFTER.pass_at[2].mean, AFTER.average.mean) == (metrics["eval/pass@2"], metrics["eval/avg@4"])


def test_a_comparison_pairs_the_prompts():
    found = compare(BEFORE, AFTER)
    assert paired_difference([0.25, 0.5, 0.0], [0.5, 1.0, 0.25]) == found.differences["average"]


def test_a_comparison_holds_every_common_number():
    other = result(prompt("a", 1), prompt("b", 2), prompt("c", 0), ks=(2, 4))
    assert list(compare(BEFORE, other).differences) == ["pass@2", "average", "majority"]


def test_a_number_that_one_side_lacks_is_not_compared():
    silent = result(*(prompt(name, 1, answers=0) for name in "abc"))
    assert "majority" not in compare(BEFORE, silent).differences


def test_a_result_without_majority_comes_back(tmp_path):
    silent = result(prompt("a", 1, answers=0))
    append_result(tmp_path / FILE_NAME, silent)
    assert [silent] == read_results(tmp_path / FILE_NAME)


def test_the_same_protocol_gives_no_warning():
    assert compare(BEFORE, AFTER).warnings == ()


def test_prompts_are_paired_by_id_and_not_by_place():
    shuffled = result(prompt("c", 1), prompt("a", 2), prompt("b", 4))
    assert compare(BEFORE, AFTER).differences == compare(BEFORE, shuffled).differences


def test_another_protocol_is_a_warning_that_says_what_differs():
    longer = result(
        prompt("a", 2),
        prompt("b", 4),
        prompt("c", 1),
        fingerprint=replace(PROTOCOL, sampling={**PROTOCOL.sampling, "max_new_tokens": 64}),
    )
    assert compare(BEFORE, longer).warnings == (
        "not the same protocol: token limit (max_new_tokens) differs: 16 and 64",
    )


def test_other_prompts_are_a_warning_and_only_common_ones_are_compared():
    found = compare(BEFORE, result(prompt("b", 4), prompt("c", 1), prompt("d", 4)))
    assert (2, ("not the same prompts: 3 and 3 were scored, 2 of them in both",)) == (
        found.shared_prompts,
        found.warnings,
    )


def test_nothing_in_common_has_no_difference():
    found = compare(BEFORE, result(prompt("x", 4), prompt("y", 1)))
    assert ({}, 0, True) == (found.differences, found.shared_prompts, "no prompt in common" in found.warnings[-1])
