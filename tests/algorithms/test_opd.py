"""OPD: golden advantages and divergences, its identity by enumeration, and the mix with a reward."""

import math

import pytest
import torch

from posttrain.algorithms.opd import OPD, Config
from posttrain.functional.distill import reverse_kl
from posttrain.types import TokenBatch
from tests.algorithms.distillation import FACTS, OTHER, OWN, ROWS, distilled, facts, slope
from tests.algorithms.examples import group, value
from tests.golden.fixtures import f64


def build(**options) -> OPD:
    return OPD(Config(**({"reduction": "token-mean", "reward_reduction": "token-mean"} | options)))


def advantages(**options) -> list[float]:
    """What each token's log-probability is pushed by: minus the gradient, times the number of tokens."""
    loss, _, logprobs = distilled(build(**options))
    return (-5 * slope(loss, logprobs)).tolist()


def silenced(opd, known):
    """(loss, log-probabilities) where the teacher has a word on the known tokens only."""
    logprobs = facts("opd.logp_student").clone().requires_grad_()
    batch = TokenBatch(
        samples=ROWS,
        sample_count=2,
        advantages=torch.zeros(5, dtype=torch.float64),
        token_weight={"distillation": torch.full((5,), 0.2, dtype=torch.float64)},
        teacher_logprobs=torch.where(known, facts("opd.logp_teacher"), torch.nan),
    )
    return opd.loss(batch, logprobs, None, None), logprobs


class TestSampled:
    @pytest.mark.parametrize(
        ("key", "options"),
        [
            ("opd.adv=logT-logS", {}),
            ("opd.adv.coef0.5", {"coefficient": 0.5}),
            ("opd.adv.clipped[-1,1]", {"limit": 1.0}),
        ],
    )
    def test_the_gradient_is_the_golden_advantage(self, key, options):
        assert facts(key).tolist() == pytest.approx(advantages(**options), abs=1e-9)

    def test_a_baseline_adds_the_golden_reverse_kl_without_a_gradient_of_its_own(self):
        opd = build(baseline=True)
        assert opd.needs.teacher_logprobs
        assert facts("opd.adv.vopd(baseline added: +RKL)").tolist() == pytest.approx(
            advantages(baseline=True), abs=1e-9
        )

    def test_the_first_steps_loss_is_minus_the_mean_advantage(self):
        assert -float(facts("opd.adv=logT-logS").mean()) == pytest.approx(value(distilled(build())[0]), abs=1e-9)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_an_agreeing_teacher_gives_exactly_nothing(self, dtype):
        loss, _, logprobs = distilled(build(), student=OWN.to(dtype), teacher=OWN.to(dtype))
        assert 0.0 == value(loss)
        assert not slope(loss, logprobs).any()

    def test_advantages_are_taken_from_the_policy_that_sampled(self):
        old = facts("opd.logp_student") - 0.1
        loss, _, logprobs = distilled(build(clip_high=9.0), old=old)
        taught = facts("opd.logp_teacher") - old
        assert (-taught * torch.e**0.1 / 5).tolist() == pytest.approx(slope(loss, logprobs).tolist(), abs=1e-9)

    def test_the_ratio_is_clipped_in_later_steps(self):
        old = facts("opd.logp_student") - 0.5
        loss, _, logprobs = distilled(build(), old=old)
        stopped = (facts("opd.logp_teacher") - old > 0).tolist()
        assert stopped == (slope(loss, logprobs) == 0).tolist()

    def test_the_estimated_kl_is_reported(self):
        stat = distilled(build())[0].stats["kl_teacher"]
        assert -float(facts("opd.adv=logT-logS").mean()) == pytest.approx(stat.result, abs=1e-9)

    def test_a_token_without_the_teachers_word_neither_moves_nor_counts(self):
        opd, known = build(cross_tokenizer=True), torch.tensor([True, False, True, True, False])
        loss, logprobs = silenced(opd, known)
        taught = facts("opd.adv=logT-logS")
        assert torch.where(known, -taught / 5, 0.0).tolist() == pytest.approx(slope(loss, logprobs).tolist(), abs=1e-9)
        assert -float(taught[known].mean()) == pytest.approx(loss.stats["kl_teacher"].result, abs=1e-9)
        assert 0.4 == loss.stats["teacher/unaligned"].result

    def test_a_missing_number_of_an_ordinary_teacher_is_not_hidden(self):
        loss, _ = silenced(build(), torch.tensor([True, True, True, True, False]))
        assert math.isnan(value(loss))

    @pytest.mark.parametrize("baseline", [False, True])
    def test_its_expected_gradient_is_the_full_forms(self, baseline):
        """Enumerate every token of every position, each with the probability that the student samples it."""
        opd, full = build(baseline=baseline), build(form="full")
        logits = OWN.clone().requires_grad_()
        logs, taught = logits.log_softmax(-1), OTHER.log_softmax(-1)
        expected_loss = torch.zeros((), dtype=torch.float64)
        for token in range(5):
            batch = TokenBatch(
                samples=ROWS,
                sample_count=2,
                advantages=torch.zeros(5, dtype=torch.float64),
                token_weight={"distillation": logs[:, token].exp().detach() / 5},
                teacher_logprobs=taught[:, token],
                divergence=opd.needs.divergence(logits, OTHER) if baseline else None,
            )
            expected_loss = expected_loss + opd.loss(batch, logs[:, token], None, None).total
        (sampled,) = torch.autograd.grad(expected_loss, logits)
        loss, leaf, _ = distilled(full)
        assert torch.allclose(slope(loss, leaf), sampled, atol=1e-12, rtol=0)


class TestWhole:
    def test_the_divergence_is_the_golden_reverse_kl(self):
        actual = build(form="full").needs.divergence(OWN, OTHER)
        assert facts("rkl.per_token").tolist() == pytest.approx(actual.tolist(), abs=1e-9)

    @pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
    def test_the_loss_is_the_golden_one(self, mode):
        loss, _, _ = distilled(build(form="full", reduction=mode))
        assert FACTS[f"rkl.{mode}"] == pytest.approx(value(loss), abs=1e-9)

    def test_the_gradient_is_the_one_of_the_plain_formula(self):
        leaf = OWN.clone().requires_grad_()
        (expected,) = torch.autograd.grad(reverse_kl(leaf, OTHER).mean(), leaf)
        loss, logits, _ = distilled(build(form="full"))
        assert torch.allclose(expected, slope(loss, logits), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("form", ["full", "top_k"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_an_agreeing_teacher_gives_exactly_nothing(self, form, dtype):
        loss, logits, _ = distilled(build(form=form), student=OWN.to(dtype), teacher=OWN.to(dtype))
        assert 0.0 == value(loss)
        assert not slope(loss, logits).any()

    @pytest.mark.parametrize("support", ["student", "teacher"])
    @pytest.mark.parametrize(
        ("rest", "key"), [("truncated", "truncated"), ("renormalised", "renorm"), ("tail", "tail")]
    )
    def test_top_k_is_the_golden_one(self, support, rest, key):
        actual = build(form="top_k", top_k=2, support=support, rest=rest).needs.divergence(OWN, OTHER)
        assert facts(f"topk2.rkl.{support}_support.{key}.per_token").tolist() == pytest.approx(
            actual.tolist(), abs=1e-9
        )

    @pytest.mark.parametrize("support", ["student", "teacher"])
    def test_a_tail_bucket_lies_between_nothing_and_the_full_kl(self, support):
        full = build(form="full").needs.divergence(OWN, OTHER)
        for k in (1, 2, 3, 4):
            some = build(form="top_k", top_k=k, support=support).needs.divergence(OWN, OTHER)
            assert bool(((some >= 0) & (some <= full + 1e-12)).all())

    def test_all_tokens_are_the_full_form(self):
        full = build(form="full").needs.divergence(OWN, OTHER)
        assert torch.equal(full, build(form="top_k", top_k=5).needs.divergence(OWN, OTHER))


class TestReward:
    def test_the_golden_mix_is_the_sum_of_both_advantages(self):
        loss, _, logprobs = distilled(build(coefficient=0.1, reward_coefficient=1.0), advantages=f64([0.5, -0.5])[ROWS])
        expected = facts("opd+rl.adv (A_rl=[0.5,-0.5], coef 0.1)")
        assert expected.tolist() == pytest.approx((-5 * slope(loss, logprobs)).tolist(), abs=1e-9)

    def test_each_part_has_its_own_weights(self):
        opd = build(reward_coefficient=0.5, reward_reduction="seq-mean-token-mean")
        assert {"distillation": "token-mean", "policy": "seq-mean-token-mean"} == opd.needs.streams
        loss, _, _ = distilled(opd, advantages=f64([0.5, -0.5])[ROWS])
        assert 0.0 == pytest.approx(loss.stats["loss/policy"].result, abs=1e-12)
        assert value(loss) == pytest.approx(sum(loss.stats[f"loss/{part}"].result for part in opd.needs.streams))

    def test_the_rewards_advantage_is_standardised_in_its_group(self):
        found = build(reward_coefficient=1.0).advantages([group([1.0, 0.0])])
        assert [2**-0.5, -(2**-0.5)] == pytest.approx([float(a) for a in found[0]], abs=1e-5)

    def test_it_can_be_centred_only(self):
        found = build(reward_coefficient=1.0, scale="none").advantages([group([1.0, 0.0, 0.5])])
        assert [0.5, -0.5, 0.0] == pytest.approx([float(a) for a in found[0]])

    def test_equal_rewards_move_nothing(self):
        found = build(reward_coefficient=1.0).advantages([group([0.7] * 3)])
        assert [0.0, 0.0, 0.0] == [float(a) for a in found[0]]

    def test_without_it_nothing_needs_a_reward(self):
        opd = build()
        assert not opd.needs.rewarded
        assert [[0.0]] == [[float(a) for a in row] for row in opd.advantages([group([None])])]
        assert opd.keep(group([None]))

    def test_with_it_groups_are_compared(self):
        needs = build(reward_coefficient=1.0).needs
        assert (2, True) == (needs.group_size, needs.rewarded)


@pytest.mark.parametrize("options", [{}, {"form": "full"}, {"form": "top_k", "top_k": 2}, {"baseline": True}])
@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean"])
def test_rows_add_up_to_the_batch(options, reduction):
    opd = build(reward_coefficient=0.3, reduction=reduction, **options)
    pushes = f64([0.5, -0.5])[ROWS]
    parts = [value(distilled(opd, rows=(row,), advantages=pushes)[0]) for row in (0, 1)]
    assert value(distilled(opd, advantages=pushes)[0]) == pytest.approx(sum(parts), abs=1e-12)
