"""Golden values of distillation: every key of golden_distill is computed here or listed with the reason why not."""

import math

import pytest
import torch

from posttrain.functional.distill import entropy, forward_kl, geometric_mixture, jsd, kl, log_softmax, reverse_kl
from posttrain.functional.distill_aligned import shared_spans, sorted_l1, span_advantages
from posttrain.functional.distill_sampled import prefix_weights, return_to_go, sampled_advantage
from posttrain.functional.distill_topk import generalised_kl, topk_divergence, with_tail
from posttrain.functional.masked import flatten, row_count
from posttrain.functional.reduce import token_weights
from tests.golden.fixtures_preference import close, f64, golden, plain

FACTS = golden("distill")
STUDENT, TEACHER = f64(FACTS["student_logits"]), f64(FACTS["teacher_logits"])
MASK = f64(FACTS["mask"]).bool()
TOKENS = torch.tensor(FACTS["tokens"])
SECOND = f64([[[0.9 * math.sin(2 + i + 1.5 * t + v * v) for v in range(5)] for t in range(3)] for i in range(2)])
"""Logits of the second teacher."""
S, T, T2 = STUDENT.log_softmax(-1), TEACHER.log_softmax(-1), SECOND.log_softmax(-1)
ROWS = flatten(MASK)[0]
ADVANTAGE = sampled_advantage(
    T.gather(-1, TOKENS[..., None])[..., 0][MASK], S.gather(-1, TOKENS[..., None])[..., 0][MASK]
)
REVERSE = kl(S, T)
TRUNCATED_P, TRUNCATED_Q = f64([[0.5, 0.3]]).log(), f64([[0.7, 0.25]]).log()
SPANS = shared_spans([3, 5, 9, 12], [5, 7, 9, 12])


def reduce(values: torch.Tensor, mode: str) -> float:
    """Weigh the trained tokens' values [2, 3]."""
    weights = token_weights(mode, row_count(ROWS, 2))
    return float((weights[ROWS] * values[MASK]).sum())


def spread(values: torch.Tensor) -> list[list[float]]:
    """Flat values back in [2, 3], 0 where nothing is trained."""
    return torch.zeros(2, 3, dtype=torch.float64).masked_scatter(MASK, values).tolist()


def topk(direction: str, by: torch.Tensor, rest: str) -> torch.Tensor:
    """Top-2 divergence on the support that ``by`` ranks highest, [2, 3]."""
    ids = by.topk(2, dim=-1).indices
    return topk_divergence(S.gather(-1, ids), T.gather(-1, ids), direction=direction, rest=rest)


def gradient(loss) -> list[float]:
    """Gradient of ``loss`` of logits [1, 5] at row 0, position 0."""
    leaf = STUDENT[0, :1].clone().requires_grad_()
    loss(leaf, TEACHER[0, :1]).sum().backward()
    return leaf.grad[0].tolist()


def generalised(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    ids = teacher.topk(2).indices
    return generalised_kl(log_softmax(student).gather(-1, ids), log_softmax(teacher).gather(-1, ids))


def expected_sampled_gradient() -> list[float]:
    """E over tokens of A grad log p at (0, 0), enumerated."""
    leaf = STUDENT[0, :1].clone().requires_grad_()
    logprobs = log_softmax(leaf)
    (logprobs.detach().exp() * sampled_advantage(T[0, :1], logprobs) * logprobs).sum().backward()
    return leaf.grad[0].tolist()


def expected_advantages() -> list[float]:
    plain_one = sampled_advantage(T[0, 0], S[0, 0])
    centred = sampled_advantage(T[0, 0], S[0, 0], baseline=REVERSE[0, :1])
    return [float((S[0, 0].exp() * advantage).sum()) for advantage in (plain_one, centred)]


def span_sums() -> dict[str, list[float]]:
    student, teacher = f64([-0.5, -0.7, -0.2, -0.1]), f64([-0.9, -0.3, -0.4, -0.05])
    advantages = span_advantages(student, teacher, SPANS)
    return {
        "student": [float(student[list(own)].sum()) for own, _ in SPANS],
        "teacher": [float(teacher[list(other)].sum()) for _, other in SPANS],
        "adv=teacher-student per span": [float(advantages[own[0]]) for own, _ in SPANS],
    }


MIXTURE, CONSTANT = geometric_mixture(torch.stack([T.flatten(0, 1), T2.flatten(0, 1)]), f64([0.7, 0.3]))
WEIGHTED = 0.7 * REVERSE + 0.3 * kl(S, T2)
TO_MIXTURE = kl(S, MIXTURE.view_as(S))
FORWARD_TAU = forward_kl(STUDENT, TEACHER, temperature=2.0)
DIVERGENCES = {
    "fkl": kl(T, S),
    "rkl": REVERSE,
    **{f"jsd.beta{beta}": jsd(STUDENT, TEACHER, beta=beta) for beta in (0.5, 0.1, 0.9)},
}
ACTUAL = {
    **{f"{name}.per_token": values for name, values in DIVERGENCES.items()},
    **{
        f"{name}.{mode}": reduce(values, mode)
        for name, values in DIVERGENCES.items()
        for mode in ("token-mean", "seq-mean-token-mean")
    },
    **{
        f"topk2.{letter}kl.{side}_support.{name}.per_token": topk(direction, by, rest)
        for letter, direction in (("f", "forward"), ("r", "reverse"))
        for side, by in (("teacher", T), ("student", S))
        for name, rest in (("truncated", "truncated"), ("renorm", "renormalised"), ("tail", "tail"))
    },
    "jsd.discontinuity: beta1e-4 value, /beta, fkl": [
        reduce(jsd(STUDENT, TEACHER, beta=1e-4), "token-mean"),
        reduce(jsd(STUDENT, TEACHER, beta=1e-4), "token-mean") / 1e-4,
        reduce(jsd(STUDENT, TEACHER, beta=0.0), "token-mean"),
    ],
    "ce_minus_teacher_entropy_equals_fkl": [
        float((kl(T, S) + entropy(T))[0, 0]),
        float(entropy(T)[0, 0]),
        float(kl(T, S)[0, 0]),
    ],
    "grad.fkl(0,0)=p_s-p_t": gradient(forward_kl),
    "grad.rkl(0,0)=s*(log(s/t)-RKL)": gradient(reverse_kl),
    "fkl.tau2.token-mean (x1, x tau^2)": [reduce(FORWARD_TAU, "token-mean"), 4 * reduce(FORWARD_TAU, "token-mean")],
    "grad.fkl.tau2(0,0) before tau^2 = (p_s-p_t)/tau": gradient(lambda s, t: forward_kl(s, t, temperature=2.0)),
    "topk5(all).tail_equals_full? k=V needs special case (tail mass 0)": [
        float((topk_divergence(S, T, direction="forward", complete=True) - kl(T, S)).abs().max())
    ],
    "opd.logp_student": spread(S.gather(-1, TOKENS[..., None])[..., 0][MASK]),
    "opd.logp_teacher": spread(T.gather(-1, TOKENS[..., None])[..., 0][MASK]),
    "opd.adv=logT-logS": spread(ADVANTAGE),
    "opd.adv.coef0.5": spread(sampled_advantage(ADVANTAGE, torch.zeros(5), coefficient=0.5)),
    "opd.adv.vopd(baseline added: +RKL)": spread(sampled_advantage(ADVANTAGE, torch.zeros(5), baseline=REVERSE[MASK])),
    "opd.adv.clipped[-1,1]": spread(sampled_advantage(ADVANTAGE, torch.zeros(5), limit=1.0)),
    "opd.expected_grad(0,0) = -grad RKL": expected_sampled_gradient(),
    "opd.expected_adv(no baseline, vopd)": expected_advantages(),
    "opd.variance_of_single_sample_adv(0,0) raw vs k3-style": [
        float((S[0, 0].exp() * (sampled_advantage(T[0, 0], S[0, 0]) + REVERSE[0, 0]) ** 2).sum())
    ],
    "opd.return_to_go(gamma 1)": spread(return_to_go(ADVANTAGE, ROWS, 2)),
    "opd+rl.adv (A_rl=[0.5,-0.5], coef 0.1)": spread(f64([0.5, -0.5])[ROWS] + 0.1 * ADVANTAGE),
    "mopd.weighted_rkl.token-mean": reduce(WEIGHTED, "token-mean"),
    "mopd.rkl_to_geometric_mixture.token-mean": reduce(TO_MIXTURE, "token-mean"),
    "mopd.difference_per_token (= -logsumexp, independent of student)": WEIGHTED - TO_MIXTURE,
    "mopd.check -log Z": CONSTANT.view(2, 3),
    "mopd.routed (row0->teacher1,row1->teacher2).token-mean": reduce(kl(S, torch.stack([T[0], T2[1]])), "token-mean"),
    "uld.sorted_l1(0,0) vs 3-token teacher": float(sorted_l1(S[0, :1].exp(), f64([[0.6, 0.3, 0.1]]))),
    "uld.permutation_trap: sorted L1 of [.9,.1] and [.1,.9]": float(sorted_l1(f64([[0.9, 0.1]]), f64([[0.1, 0.9]]))),
    "gold.groups student ends [3,5,9,12] teacher ends [5,7,9,12]": SPANS,
    "gold.span_logp: student [-.5,-.7,-.2,-.1] teacher [-.9,-.3,-.4,-.05]": span_sums(),
    "iw_opd.weights.row0": prefix_weights(ADVANTAGE, ROWS, 2)[:3],
    "topk2.rkl.teacher_support.generalised(-p+q).per_token": topk("reverse", T, "generalised"),
    "topk2.rkl.generalised.grad_z(0,0)": gradient(generalised),
    "topk.truncated_can_be_negative p=[.5,.3] q=[.7,.25]": float(
        topk_divergence(TRUNCATED_P, TRUNCATED_Q, direction="reverse", rest="truncated")
    ),
    "topk.same_with_tail_bucket": float(topk_divergence(TRUNCATED_P, TRUNCATED_Q, direction="reverse")),
    "topk.truncated_log_sum_lower_bound P log(P/Q)": float(
        0.8 * (torch.logsumexp(TRUNCATED_P, -1) - torch.logsumexp(TRUNCATED_Q, -1))
    ),
    "verl.topk.negative_positions": (topk("forward", T, "truncated") < 0).nonzero(),
}
NOT_COMPUTED = {
    "student_logits": "input",
    "teacher_logits": "input",
    "mask": "input",
    "tokens": "input",
}


def test_every_key_is_computed_or_explained():
    assert FACTS.keys() == ACTUAL.keys() | NOT_COMPUTED.keys()


@pytest.mark.parametrize("key", ACTUAL)
def test_value(key):
    assert close(FACTS[key], plain(ACTUAL[key])), (key, FACTS[key], plain(ACTUAL[key]))


@pytest.mark.parametrize("letter", ["f", "r"])
def test_trap_a_truncated_divergence_falls_below_zero_where_the_tail_bucket_does_not(letter):
    keys = [key for key in FACTS if key.startswith(f"topk2.{letter}kl") and key.endswith("truncated.per_token")]
    assert any(value < 0 for key in keys for row in FACTS[key] for value in row)
    tails = [plain(ACTUAL[key.replace("truncated", "tail")]) for key in keys]
    assert all(value >= 0 for tail in tails for row in tail for value in row)


def test_trap_sorted_distance_cannot_see_which_token_is_likely():
    assert FACTS["uld.permutation_trap: sorted L1 of [.9,.1] and [.1,.9]"] == 0.0


def test_with_tail_of_the_example_holds_the_missing_mass():
    assert [0.2, 0.05] == pytest.approx([float(with_tail(x)[0, -1].exp()) for x in (TRUNCATED_P, TRUNCATED_Q)])
