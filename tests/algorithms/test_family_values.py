"""Every algorithm of the policy gradient family against the golden values, through its own class."""

import dataclasses

import pytest
import torch

from posttrain.types import Score
from tests.algorithms.examples import batch, gradient, logprobs, value
from tests.algorithms.family import f1_group, final, group_of, make, rollout, samples_of, scores, segment
from tests.golden.fixtures import MASK, SAMPLES, A, f64, golden, new

LOSS, ADV = golden("loss"), golden("adv")


def at_tokens(table) -> list[float]:
    """Golden numbers by row, or by row and column, at the trained tokens."""
    if not isinstance(table[0], list):
        return f64(table)[SAMPLES].tolist()
    return torch.tensor(table, dtype=torch.float64)[MASK].tolist()


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("dr_grpo", {}, "drgrpo"),
        ("rloo", {"kl_coefficient": 0.0}, "rloo"),
        ("opo", {}, "opo.adv"),
        ("maxrl", {}, "maxrl.adv"),
        ("gspo", {}, "grpo.ddof1.eps1e-6"),
        ("cispo", {"ddof": 0}, "grpo.ddof0.eps1e-6"),
        ("dapo", {"epsilon": 1e-4}, "grpo.ddof1.eps1e-4(TRL)"),
        ("dppo", {}, "drgrpo"),
        ("grpo_process", {}, "grpo.ddof1.eps1e-6"),
        ("reinforce_pp", {"kl_coefficient": 0.1}, "reinforcepp.adv.ddof1"),
        ("reinforce_pp", {"kl_coefficient": 0.1, "ddof": 0}, "reinforcepp.adv.ddof0(OpenRLHF)"),
        ("reinforce_pp_baseline", {}, "reinforcepp_baseline.adv(token-weighted whitening)"),
        ("reinforce_pp_baseline", {"whiten_by": "sequence"}, "reinforcepp_baseline.adv(sequence-weighted)"),
    ],
)
def test_advantages_are_the_golden_ones(name, options, key):
    assert at_tokens(ADV[key]) == pytest.approx(final(make(name, **options), f1_group()), abs=1e-9)


def test_remax_compares_with_the_greedy_rollout():
    group = f1_group(greedy=rollout(4, 0.5))
    assert at_tokens(ADV["remax.adv"]) == pytest.approx(final(make("remax"), group), abs=1e-12)


def test_process_rewards_are_the_golden_ones():
    ends = [(1, 3), (1, 2), (0, 2, 3), (1,)]
    rewards = [(0.2, 0.9), (0.1, 0.0), (0.6, 0.7, 1.0), (0.3,)]
    group = f1_group()
    judged = tuple(
        dataclasses.replace(
            r, scores=(Score(name="prm", value=0.0, outcome="scored", steps=tuple(zip(e, v, strict=True))),)
        )
        for r, e, v in zip(group.rollouts, ends, rewards, strict=True)
    )
    found = final(make("grpo_process", part="prm"), dataclasses.replace(group, rollouts=judged))
    assert at_tokens(ADV["grpo_process.adv"]) == pytest.approx(found, abs=1e-9)


def test_reward_parts_are_the_golden_ones():
    parts = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 1.0)]
    rollouts = [rollout(i % 2, a + b / 2, scores=scores(right=a, form=b)) for i, (a, b) in enumerate(parts)]
    groups = [group_of(*rollouts[:2]), group_of(*rollouts[2:], position=1)]
    found = make("gdpo", weights={"form": 0.5}).advantages(groups)
    assert ADV["gdpo.batch_normalised.ddof1"] == pytest.approx([float(a) for row in found for a in row], abs=1e-9)


def turns(index, reward, *states):
    """A rollout that met these states, two sampled tokens and one tool token in each."""
    messages = [m for s in states for m in ({"role": "user", "content": s}, {"role": "assistant", "content": "go"})]
    named = [turn for turn in range(len(states)) for _ in range(2)]
    row = segment([1, 1, 0] * len(states), turns=named)
    return rollout(index, reward, row, messages=tuple(messages), turn_count=len(states))


def test_step_groups_are_the_golden_ones():
    group = group_of(turns(0, 10.0, "s0", "s1", "s2"), turns(1, 0.0, "s0", "s1"))
    expected = [a for row in ADV["gigpo.joint(paper, omega=1)"] for a in row for _ in range(2)]
    assert expected == pytest.approx(final(make("gigpo"), group, old=torch.zeros(10), ref=torch.zeros(10)), abs=1e-9)


TOKEN_A = A + f64([0.1, -0.1, 0.05, 0, 0, 0.1, -0.1, 0.2, 0, 0, 0, 0, 0])
PLAIN = {"kl_coefficient": 0.0}
LOSSES = [
    ("reinforce", {"reduction": "token-mean"}, "reinforce.token-mean"),
    ("reinforce", {"reduction": "seq-mean-token-mean"}, "reinforce.seq-mean-token-mean"),
    ("rloo", {"reduction": "token-mean"}, "reinforce.token-mean"),
    ("remax", {"reduction": "token-mean"}, "reinforce.token-mean"),
    ("opo", {"reduction": "token-mean"}, "reinforce.token-mean"),
    ("dapo", {}, "ppo_clip.0.2/0.28.token-mean"),
    ("reinforce_pp", {}, "ppo_clip.0.2.token-mean"),
    ("reinforce_pp_baseline", {}, "ppo_clip.0.2.token-mean"),
    ("maxrl", {}, "ppo_clip.0.2.token-mean"),
    ("gdpo", {}, "ppo_clip.0.2.token-mean"),
    ("gigpo", {}, "ppo_clip.0.2.token-mean"),
    ("clip_cov", {}, "ppo_clip.0.2.token-mean"),
    ("grpo_process", {}, "ppo_clip.0.2.seq-mean-token-mean"),
    ("gspo", {}, "gspo.loss.0.0003/0.0004"),
    ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, "gspo.loss.0.2/0.2"),
    ("cispo", {"clip_high": 0.2}, "cispo.hi0.2.token-mean"),
    ("cispo", {}, "cispo.TRL_abs_cap5.token-mean"),
    ("sapo", {}, "sapo.seq-mean-token-mean"),
    ("gmpo", {}, "gmpo.0.4.loss"),
    ("dppo", {}, "dppo_tv.verl_surrogate.token-mean"),
]


def total(algorithm, **fields):
    leaf = logprobs()
    given = dataclasses.replace(batch(streams=algorithm.needs.streams), **fields)
    return algorithm.loss(given, leaf, None, None), leaf


@pytest.mark.parametrize(("name", "options", "key"), LOSSES)
def test_loss_is_the_golden_one(name, options, key):
    assert LOSS[key] == pytest.approx(value(total(make(name, **(PLAIN | options)))[0]), abs=1e-9)


def test_dr_grpo_divides_by_a_constant():
    algorithm = make("dr_grpo", reduction="seq-mean-token-sum")
    assert LOSS["ppo_clip.0.2.seq-mean-token-sum"] == pytest.approx(value(total(algorithm)[0]), abs=1e-9)
    assert "seq-mean-token-sum-norm" == make("dr_grpo").needs.streams["policy"]


def test_gspo_token_takes_advantages_that_differ_inside_a_row():
    algorithm = make("gspo_token", clip_low=0.2, clip_high=0.2)
    expected = LOSS["gspo_token.0.2.seq-mean-token-mean"]
    assert expected == pytest.approx(value(total(algorithm, advantages=TOKEN_A)[0]), abs=1e-9)


@pytest.mark.parametrize("clip", [{}, {"clip_low": 0.2, "clip_high": 0.2}])
def test_gspo_is_gspo_token_for_one_advantage_per_row(clip):
    (one, leaf), (other, same) = total(make("gspo", **clip)), total(make("gspo_token", **clip))
    assert value(one) == pytest.approx(value(other), abs=1e-12)
    assert gradient(one, leaf) == pytest.approx(gradient(other, same), abs=1e-12)


def test_kl_cov_chooses_and_penalises_the_golden_tokens():
    algorithm = make("kl_cov", share=0.2)
    group = f1_group()
    refined = algorithm.refine(with_advantages(group))
    chosen = torch.tensor([bool(c) for s in refined for c in s.selected[s.loss_mask]])
    places = torch.zeros(MASK.shape, dtype=torch.bool)
    places[MASK] = chosen
    assert LOSS["kl_cov.top_k_frac0.2.positions(row,col)"] == torch.nonzero(places).tolist()
    assert LOSS["kl_cov.coef1.token-mean"] == pytest.approx(value(total(algorithm, selected=chosen)[0]), abs=1e-9)


def with_advantages(group):
    """F1's samples with Dr.GRPO's advantages, covariance being taken with the current log-probabilities."""
    return samples_of(make("dr_grpo"), group, old=new)


def test_clip_cov_takes_chosen_tokens_out_of_the_gradient_only():
    algorithm = make("clip_cov")
    chosen = torch.zeros(13, dtype=torch.bool)
    chosen[[1, 5]] = True
    (loss, leaf), (whole, other) = total(algorithm, selected=chosen), total(algorithm)
    slopes, full = gradient(loss, leaf), gradient(whole, other)
    assert [0.0, 0.0] == [slopes[1], slopes[5]]
    assert [s for i, s in enumerate(full) if not chosen[i]] == [s for i, s in enumerate(slopes) if not chosen[i]]
