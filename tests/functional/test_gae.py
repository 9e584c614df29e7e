"""GAE: limits of lambda, tool tokens, turns, bootstrap, rows on their own, and a plain loop as oracle."""

import pytest
import torch

from posttrain.functional.gae import advantages, bi_level, length_adaptive_lambda, turn_level
from posttrain.functional.masked import flatten
from posttrain.functional.returns import returns_to_go
from tests.golden.fixtures import F2_REWARDS, F2_SAMPLES, F2_TURNS, F2_VALUES, f64

LENGTHS = [4, 0, 1, 6]
SAMPLES = torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))
TURNS = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 2, 2, 2])
GENERATOR = torch.Generator().manual_seed(0)
REWARDS, VALUES = torch.randn(2, 11, generator=GENERATOR, dtype=torch.float64)
BOOTSTRAP = f64([0.3, 5.0, -0.2, 0.9])


def looped(gamma, lambda_, turn_gamma, turn_lambda) -> list[float]:
    """The unified recursion, token by token."""
    result, later = [0.0] * 11, 0.0
    for t in reversed(range(11)):
        last = t == 10 or SAMPLES[t + 1] != SAMPLES[t]
        crossing = not last and TURNS[t + 1] != TURNS[t]
        g, decay = (turn_gamma, turn_lambda) if crossing else (gamma, lambda_)
        value = BOOTSTRAP[SAMPLES[t]] if last else VALUES[t + 1]
        later = float(REWARDS[t] + g * value - VALUES[t]) + (0.0 if last else g * decay * later)
        result[t] = later
    return result


@pytest.mark.parametrize("coefficients", [(1.0, 0.95, 1.0, 0.95), (0.9, 0.8, 0.7, 0.0), (0.99, 1.0, 0.5, 0.6)])
def test_it_is_the_plain_loop(coefficients):
    gamma, lambda_, turn_gamma, turn_lambda = coefficients
    options = {"gamma": gamma, "lambda_": lambda_, "turn_gamma": turn_gamma, "turn_lambda": turn_lambda}
    actual = advantages(REWARDS, VALUES, SAMPLES, 4, turns=TURNS, bootstrap=BOOTSTRAP, **options)
    assert looped(*coefficients) == pytest.approx(actual.tolist(), abs=1e-12)


def test_lambda_one_is_the_monte_carlo_return_minus_the_value():
    expected = returns_to_go(REWARDS, SAMPLES, 4, discount=0.9) - VALUES
    assert expected.tolist() == pytest.approx(
        advantages(REWARDS, VALUES, SAMPLES, 4, gamma=0.9, lambda_=1.0).tolist(), abs=1e-12
    )


def test_lambda_zero_is_the_one_step_error():
    first = float(REWARDS[0] + 0.9 * VALUES[1] - VALUES[0])
    assert first == pytest.approx(float(advantages(REWARDS, VALUES, SAMPLES, 4, gamma=0.9, lambda_=0.0)[0]))


def test_exact_values_leave_no_advantage():
    values = returns_to_go(REWARDS, SAMPLES, 4)
    assert [0.0] * 11 == pytest.approx(advantages(REWARDS, values, SAMPLES, 4, lambda_=0.5).tolist(), abs=1e-12)


def test_equal_turn_coefficients_are_plain():
    plain = advantages(REWARDS, VALUES, SAMPLES, 4, gamma=0.9, lambda_=0.8)
    turned = advantages(
        REWARDS, VALUES, SAMPLES, 4, gamma=0.9, lambda_=0.8, turns=TURNS, turn_gamma=0.9, turn_lambda=0.8
    )
    assert plain.tolist() == turned.tolist()


def test_turns_without_turn_coefficients_change_nothing():
    plain = advantages(REWARDS, VALUES, SAMPLES, 4)
    assert plain.tolist() == advantages(REWARDS, VALUES, SAMPLES, 4, turns=TURNS).tolist()


@pytest.mark.parametrize("option", ["turn_gamma", "turn_lambda"])
def test_turn_coefficients_without_turns_are_refused(option):
    with pytest.raises(ValueError, match="need turns"):
        advantages(REWARDS, VALUES, SAMPLES, 4, **{option: 0.5})


@pytest.mark.parametrize("tools", [0, 1, 10, 100, 500])
def test_tool_tokens_change_no_advantage(tools):
    mask = torch.tensor([[True] * 3 + [False] * tools + [True] * 2])
    rewards, values = torch.full((2, 1, 5 + tools), float("nan"), dtype=torch.float64)
    rewards[mask], values[mask] = F2_REWARDS, F2_VALUES
    samples, flat_rewards, flat_values = flatten(mask, rewards, values)
    expected = advantages(F2_REWARDS, F2_VALUES, F2_SAMPLES, 1)
    assert expected.tolist() == advantages(flat_rewards, flat_values, samples, 1).tolist()


def test_rows_do_not_see_each_other():
    alone = advantages(REWARDS[5:], VALUES[5:], torch.zeros(6, dtype=torch.int64), 1)
    assert alone.tolist() == advantages(REWARDS, VALUES, SAMPLES, 4)[5:].tolist()


def test_termination_and_truncation_differ_by_the_discounted_bootstrap():
    cut = advantages(REWARDS, VALUES, SAMPLES, 4, gamma=0.9, bootstrap=BOOTSTRAP)
    over = advantages(REWARDS, VALUES, SAMPLES, 4, gamma=0.9)
    assert 0.9 * 0.9 == pytest.approx(float(cut[-1] - over[-1]))


def test_each_row_may_have_its_own_lambda():
    mixed = advantages(REWARDS, VALUES, SAMPLES, 4, lambda_=f64([0.0, 0.5, 0.5, 1.0]))
    assert advantages(REWARDS, VALUES, SAMPLES, 4, lambda_=0.0)[:4].tolist() == mixed[:4].tolist()
    assert advantages(REWARDS, VALUES, SAMPLES, 4, lambda_=1.0)[5:].tolist() == mixed[5:].tolist()


def test_no_gradient_reaches_the_critic_through_the_advantage():
    assert not advantages(REWARDS, VALUES.clone().requires_grad_(), SAMPLES, 4).requires_grad


def test_turn_level_gives_every_token_of_a_turn_the_same():
    actual, _, trained = turn_level(REWARDS, VALUES, SAMPLES, TURNS, 4)
    assert actual[0] == actual[1] != actual[2]
    assert [0, 2, 4, 5, 7, 8] == torch.nonzero(trained)[:, 0].tolist()


def test_turn_level_with_one_token_per_turn_is_plain():
    turns = torch.arange(11)
    plain = advantages(REWARDS, VALUES, SAMPLES, 4, gamma=0.9, lambda_=0.8, bootstrap=BOOTSTRAP)
    turned, _, _ = turn_level(REWARDS, VALUES, SAMPLES, turns, 4, gamma=0.9, lambda_=0.8, bootstrap=BOOTSTRAP)
    assert plain.tolist() == pytest.approx(turned.tolist(), abs=1e-12)


def test_a_turn_without_reward_is_still_a_turn():
    rewards = F2_REWARDS.masked_fill(F2_TURNS == 0, 0.0)
    _, _, trained = turn_level(rewards, F2_VALUES, F2_SAMPLES, F2_TURNS, 1)
    assert 2 == int(trained.sum())


def test_bi_level_with_a_single_turn_is_plain():
    plain = advantages(F2_REWARDS, F2_VALUES, F2_SAMPLES, 1, lambda_=0.9)
    actual = bi_level(F2_REWARDS, F2_VALUES, F2_SAMPLES, torch.zeros(5), 1, lambda_=0.9)
    assert plain.tolist() == pytest.approx(actual.tolist(), abs=1e-12)


def test_bi_level_bootstraps_the_last_turn():
    cut = bi_level(F2_REWARDS, F2_VALUES, F2_SAMPLES, F2_TURNS, 1, bootstrap=f64([2.0]))
    over = bi_level(F2_REWARDS, F2_VALUES, F2_SAMPLES, F2_TURNS, 1)
    assert 0.95 * 2.0 == pytest.approx(float(cut[-1] - over[-1]))


def test_no_tokens_give_nothing():
    none, rows = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    assert [] == advantages(none, none, rows, 2, turns=rows, turn_lambda=0.0).tolist()
    assert [] == turn_level(none, none, rows, rows, 2)[0].tolist()
    assert [] == bi_level(none, none, rows, rows, 2).tolist()


def test_length_adaptive_lambda_stays_between_zero_and_one():
    actual = length_adaptive_lambda(torch.arange(0, 5000))
    assert bool(((actual >= 0) & (actual <= 1)).all())


def test_a_whole_row_in_float32_stays_close():
    wide = advantages(REWARDS, VALUES, SAMPLES, 4)
    narrow = advantages(REWARDS.float(), VALUES.float(), SAMPLES, 4)
    assert wide.tolist() == pytest.approx(narrow.tolist(), abs=1e-5)
