"""FLOPs and seconds of the work that cannot be spared, counted by hand."""

import pytest
from bench.needed import Tokens, branch, flops, needed_seconds, plus, times
from bench.workloads import Row

RATES = {"body": 100.0, "decode": 50.0, "head": 25.0, "body-9m": 1.0, "decode-9m": 1.0, "head-9m": 1.0}


def test_one_token_through_the_body_of_the_small_model():
    weights = 5 * (128 * 256 + 128 * 128 + 3 * 128 * 384)
    assert flops("char1m", Tokens(body=1, seen=0, head=0)) == (2.0 * weights, 0.0)


def test_a_token_seen_costs_two_products_in_every_layer():
    assert flops("char1m", Tokens(body=0, seen=1, head=0)) == (5 * 4.0 * 128, 0.0)


def test_a_head_token_costs_the_vocabulary():
    assert flops("bpe10m", Tokens(body=0, seen=0, head=1)) == (0.0, 2.0 * 192 * 32000)


def test_the_last_token_of_a_completion_is_never_computed():
    assert branch(10, [3, 1]) == Tokens(body=2, seen=2 * 10 + 2 * 3 / 2, head=4)


def test_tokens_add_up():
    one = Tokens(body=1, seen=2, head=3)
    assert plus(one, times(one, 2)) == Tokens(body=3, seen=6, head=9)


def row(**changes):
    given = {"name": "x", "trainer": "grpo", "model": "char1m", "count": 2, "prompt": 8, "completion": 4, "group": 3}
    return Row(**{**given, **changes})


def test_backward_is_twice_forward():
    needed = needed_seconds(row(), RATES)
    assert needed["backward"] == pytest.approx(2 * needed["forward"])


def test_a_prompt_counts_once_per_step_however_many_completions_it_has():
    assert needed_seconds(row(group=3), RATES)["prefill"] == needed_seconds(row(group=30), RATES)["prefill"]


def test_completions_count_one_by_one():
    one, ten = (needed_seconds(row(group=size), RATES)["decode"] for size in (1, 10))
    assert ten == pytest.approx(10 * one)


def test_free_lengths_take_the_measured_mean():
    assert needed_seconds(row(), RATES, sampled=6 * 4)["decode"] == needed_seconds(row(), RATES)["decode"]


def test_preference_pairs_need_the_reference_too():
    needed = needed_seconds(row(trainer="dpo", group=1), RATES)
    assert needed["anchor"] == needed["forward"]


def test_a_reward_model_needs_no_head_over_the_vocabulary():
    rates = {**RATES, "head": 1e-12}
    assert needed_seconds(row(trainer="reward", group=1), rates) == needed_seconds(
        row(trainer="reward", group=1), RATES
    )
