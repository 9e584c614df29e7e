"""Token weights of every mode against the written formulas, and what must not change them."""

import pytest
import torch

from posttrain.functional.reduce import MODES, token_weights

COUNTS = torch.tensor([4, 3, 0, 2])


def weights(mode: str, **arguments) -> list[float]:
    return token_weights(mode, COUNTS, **arguments).tolist()


def labelled(labels: list[int]) -> dict:
    """Every argument any mode may want; rows with an even label are positive."""
    tensor = torch.tensor(labels, dtype=torch.int64)
    return {"rollouts": tensor, "prompts": tensor, "constant": 8.0, "positive": tensor % 2 == 0}


def test_token_mean_gives_every_token_the_same():
    assert [1 / 9] * 4 == pytest.approx(weights("token-mean"), abs=1e-15)


def test_sequence_mean_ignores_the_empty_row():
    expected = [1 / 12, 1 / 9, 1 / 6]
    assert expected == pytest.approx([weights("seq-mean-token-mean")[i] for i in (0, 1, 3)], abs=1e-15)


def test_sequence_sum_divides_by_rows_with_tokens():
    assert [1 / 3] * 4 == pytest.approx(weights("seq-mean-token-sum"), abs=1e-15)


def test_sequence_sum_norm_divides_by_the_constant_too():
    assert [1 / 15] * 4 == pytest.approx(weights("seq-mean-token-sum-norm", constant=5), abs=1e-15)


def test_token_sum_is_one():
    assert [1.0] * 4 == weights("token-sum")


def test_rollout_mean_shares_a_rollout_among_its_rows():
    actual = weights("rollout-mean", rollouts=torch.tensor([7, 7, 7, 9]))
    assert [1 / 14, 1 / 14, 1 / 4] == pytest.approx([actual[i] for i in (0, 1, 3)], abs=1e-15)


def test_rollout_without_tokens_does_not_count():
    actual = weights("rollout-mean", rollouts=torch.tensor([1, 1, 2, 3]))
    assert [1 / 14, 1 / 14, 1 / 4] == pytest.approx([actual[i] for i in (0, 1, 3)], abs=1e-15)


def test_prompt_mean_gives_every_prompt_the_same():
    actual = weights("prompt-mean", prompts=torch.tensor([0, 5, 5, 5]))
    assert [1 / 8, 1 / 10, 1 / 10] == pytest.approx([actual[i] for i in (0, 1, 3)], abs=1e-15)


def test_positive_mean_leaves_the_other_rows_out():
    actual = weights("positive-token-mean", positive=torch.tensor([True, False, True, True]))
    assert [1 / 6, 0.0, 1 / 6, 1 / 6] == pytest.approx(actual, abs=1e-15)


def test_positive_mean_without_a_positive_row_is_zero():
    assert [0.0] * 4 == weights("positive-token-mean", positive=torch.zeros(4, dtype=torch.bool))


def test_positive_mean_refuses_missing_labels():
    with pytest.raises(ValueError, match="positive"):
        weights("positive-token-mean")


MEANS = ["token-mean", "seq-mean-token-mean", "rollout-mean", "prompt-mean", "positive-token-mean"]


@pytest.mark.parametrize("mode", MEANS)
def test_means_sum_to_one_over_the_batch(mode):
    total = (token_weights(mode, COUNTS, **labelled([0, 0, 1, 1])) * COUNTS).sum()
    assert pytest.approx(1.0, abs=1e-15) == float(total)


@pytest.mark.parametrize("mode", MODES)
def test_an_added_empty_row_changes_nothing(mode):
    without = token_weights(mode, torch.tensor([4, 3, 2]), **labelled([0, 1, 2]))
    added = token_weights(mode, torch.tensor([4, 3, 2, 0]), **labelled([0, 1, 2, 3]))
    assert without.tolist() == added[:3].tolist()


@pytest.mark.parametrize("mode", MODES)
def test_row_order_permutes_the_weights(mode):
    labels, order = [0, 0, 1, 1], [3, 1, 0, 2]
    direct = token_weights(mode, COUNTS, **labelled(labels))
    permuted = token_weights(mode, COUNTS[order], **labelled([labels[i] for i in order]))
    assert direct[order].tolist() == permuted.tolist()


@pytest.mark.parametrize("mode", MODES)
def test_an_all_empty_batch_is_finite(mode):
    actual = token_weights(mode, torch.tensor([0, 0]), **labelled([0, 1]))
    assert bool(actual.isfinite().all())


@pytest.mark.parametrize("mode", MODES)
def test_no_rows_at_all_gives_no_weights(mode):
    assert [] == token_weights(mode, torch.zeros(0, dtype=torch.int64), **labelled([])).tolist()


def test_unknown_mode_names_the_choices():
    with pytest.raises(ValueError, match="token-mean"):
        token_weights("mean", COUNTS)


@pytest.mark.parametrize("constant", [None, 0.0, -1.0])
def test_norm_refuses_a_missing_or_senseless_constant(constant):
    with pytest.raises(ValueError, match="positive constant"):
        token_weights("seq-mean-token-sum-norm", COUNTS, constant=constant)


@pytest.mark.parametrize("mode", ["rollout-mean", "prompt-mean"])
def test_label_modes_refuse_missing_labels(mode):
    with pytest.raises(ValueError, match="label"):
        token_weights(mode, COUNTS)
