"""GRPO: the paper's numbers, its invariances, and the groups that must move nothing."""

import pytest
import torch

from posttrain.algorithms.grpo import GRPO, Config
from posttrain.types import merge_stats
from tests.algorithms.examples import batch, empty, gradient, group, logprobs, value
from tests.golden.fixtures import REWARD, A, golden, new, ref

LOSS, ADV = golden("loss"), golden("adv")


def build(**options) -> GRPO:
    return GRPO(Config(**options))


def advantages(rewards, **options) -> list[float]:
    return [float(a) for a in build(**options).advantages([group(rewards)])[0]]


def total(grpo: GRPO, rows=(0, 1, 2, 3), *, on_policy=False, entropy=None):
    leaf = logprobs(rows)
    loss = grpo.loss(batch(rows, streams=grpo.needs.streams, on_policy=on_policy), leaf, entropy, None)
    return loss, leaf


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("grpo.ddof1.eps1e-6", {}),
        ("grpo.ddof0.eps1e-6", {"ddof": 0}),
        ("grpo.ddof1.eps1e-4(TRL)", {"epsilon": 1e-4}),
        ("drgrpo", {"scale": "none"}),
        ("rloo", {"scale": "none", "centre": "leave_one_out"}),
    ],
)
def test_advantages_are_the_golden_ones(key, options):
    assert ADV[key] == pytest.approx(advantages(REWARD.tolist(), **options), abs=1e-9)


@pytest.mark.parametrize("options", [{}, {"scale": "none"}, {"centre": "leave_one_out"}, {"ddof": 0}])
@pytest.mark.parametrize("rewards", [[0.7] * 7, [0.1] * 3, [1.0] * 8, [0.0] * 2, [0.3]])
def test_equal_rewards_and_singletons_move_nothing(options, rewards):
    assert [0.0] * len(rewards) == advantages(rewards, **options)


def test_groups_do_not_see_each_other():
    grpo = build()
    both = grpo.advantages([group([1.0, 0.0]), group([1.0, 0.5], position=1)])
    expected = golden("adv")["grpo.two_groups.ddof1"]
    assert expected == pytest.approx([float(a) for row in both for a in row], abs=1e-9)


def test_shift_of_all_rewards_changes_nothing():
    assert advantages([1.0, 0.0, 0.5]) == pytest.approx(advantages([11.0, 10.0, 10.5]), abs=1e-12)


def test_a_rollout_without_reward_is_refused():
    with pytest.raises(ValueError, match="no reward"):
        build().advantages([group([1.0, None])])


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("ppo_clip.0.2.token-mean", {"reduction": "token-mean"}),
        ("ppo_clip.0.2.seq-mean-token-mean", {}),
        ("ppo_clip.0.2/0.28.token-mean", {"reduction": "token-mean", "clip_high": 0.28}),
        ("grpo_loss.F1.clip0.2+0.04*k3.token-mean", {"reduction": "token-mean", "kl_coefficient": 0.04}),
    ],
)
def test_loss_is_the_golden_one(key, options):
    loss, _ = total(build(**({"kl_coefficient": 0.0} | options)))
    assert LOSS[key] == pytest.approx(value(loss), abs=1e-9)


def test_first_step_has_the_gradient_of_reinforce():
    loss, leaf = total(build(kl_coefficient=0.0, reduction="token-mean"), on_policy=True)
    assert (-A / 13).tolist() == pytest.approx(gradient(loss, leaf), abs=1e-12)


def test_first_step_loss_is_minus_the_mean_advantage():
    loss, _ = total(build(kl_coefficient=0.0, reduction="token-mean"), on_policy=True)
    assert LOSS["ratio1.ppo.token-mean"] == pytest.approx(value(loss), abs=1e-12)


def test_first_step_clips_nothing():
    stats = total(build(), on_policy=True)[0].stats
    assert (0.0, 0.0) == (stats["clip_share/low"].result, stats["clip_share/high"].result)


def test_clip_shares_are_the_golden_ones():
    stats = total(build())[0].stats
    actual = stats["clip_share/low"].result + stats["clip_share/high"].result
    assert LOSS["ppo_clip.0.2.clipfrac_tokens"] == pytest.approx(actual, abs=1e-12)


def test_kl_gradient_is_beta_times_one_minus_the_inverse_ratio():
    with_kl, leaf = total(build(kl_coefficient=0.04, reduction="token-mean"))
    without, other = total(build(kl_coefficient=0.0, reduction="token-mean"))
    difference = torch.tensor(gradient(with_kl, leaf)) - torch.tensor(gradient(without, other))
    assert (0.04 / 13 * (1 - (ref - new).exp())).tolist() == pytest.approx(difference.tolist(), abs=1e-7)


def test_entropy_bonus_pushes_entropy_up():
    entropy = torch.ones(13, dtype=torch.float64, requires_grad=True)
    loss, _ = total(build(entropy_coefficient=0.01, reduction="token-mean"), entropy=entropy)
    (slope,) = torch.autograd.grad(loss.total, entropy)
    assert [-0.01 / 13] * 13 == pytest.approx(slope.tolist(), abs=1e-12)


def test_dual_clip_bounds_the_loss():
    plain, _ = total(build(kl_coefficient=0.0, clip_high=9.0))
    capped, _ = total(build(kl_coefficient=0.0, clip_high=9.0, dual_clip=1.01))
    assert value(capped) < value(plain)


@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("split", [((0, 1), (2, 3)), ((3, 0), (1,), (2,)), ((2, 3, 1, 0),)])
def test_split_and_row_order_change_neither_loss_nor_gradient(reduction, split):
    grpo = build(reduction=reduction)
    whole, leaf = total(grpo)
    expected = dict(zip(new.tolist(), gradient(whole, leaf), strict=True))
    losses = [total(grpo, rows) for rows in split]
    actual = {k: v for part, own in losses for k, v in zip(own.tolist(), gradient(part, own), strict=True)}
    assert value(whole) == pytest.approx(sum(value(part) for part, _ in losses), abs=1e-12)
    assert expected == pytest.approx(actual, abs=1e-12)


def test_stats_of_microbatches_merge_to_those_of_the_whole():
    grpo = build()
    whole = total(grpo)[0].stats
    merged = merge_stats([total(grpo, rows)[0].stats for rows in ((0, 1), (2, 3))])
    assert {k: v.result for k, v in whole.items()} == pytest.approx({k: v.result for k, v in merged.items()})


def test_an_empty_batch_is_zero_with_a_live_graph():
    grpo = build()
    leaf = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss = grpo.loss(empty(grpo.needs.streams), leaf, None, None)
    assert (0.0, []) == (value(loss), gradient(loss, leaf))


@pytest.mark.parametrize(("rewards", "kept"), [([0.7] * 7, False), ([0.3], False), ([0.0, 1.0], True)])
def test_degenerate_groups_can_be_dropped(rewards, kept):
    assert kept is build(drop_degenerate=True).keep(group(rewards))


def test_degenerate_groups_stay_by_default():
    assert build().keep(group([1.0, 1.0]))


def test_without_kl_no_reference_is_needed():
    assert build().needs.ref_logprobs
    assert not build(kl_coefficient=0.0).needs.ref_logprobs


def test_each_loss_part_has_its_own_weights():
    assert {"policy", "kl", "entropy"} == set(build(entropy_coefficient=0.1).needs.streams)


def test_the_parts_add_up_to_the_loss():
    stats = total(build())[0].stats
    assert stats["loss"].result == pytest.approx(stats["loss/policy"].result + stats["loss/kl"].result, abs=1e-12)
