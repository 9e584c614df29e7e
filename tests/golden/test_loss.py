"""Golden policy losses, reductions and gradients: golden_loss.json, every key."""

import pytest
import torch

from posttrain.functional import covariance, kl, surrogates
from posttrain.functional.controllers import AdaptiveEntropy
from posttrain.functional.entropy import entropy
from posttrain.functional.ratios import sequence_ratio, straight_through_sequence_ratio, token_ratio
from posttrain.functional.reduce import token_weights
from tests.golden.fixtures import (
    ADVANTAGE,
    COUNT,
    COUNTS,
    SAMPLES,
    A,
    f64,
    golden,
    new,
    old,
    plain,
    ref,
    same,
    spread,
    uncovered,
)

GOLDEN = golden("loss")
RATIO = token_ratio(new, old)
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
LOGITS = f64([2.0, 1.0, 0.0, -1.0])
TOKEN_A = A + f64([0.1, -0.1, 0.05, 0, 0, 0.1, -0.1, 0.2, 0, 0, 0, 0, 0])
STARTS = torch.tensor([0, 4, 7, 11])


def reduced(losses: torch.Tensor, mode: str = "token-mean", **arguments) -> torch.Tensor:
    return (token_weights(mode, COUNTS, **arguments)[SAMPLES] * losses).sum()


def ppo(ratio: torch.Tensor = RATIO, **clip) -> torch.Tensor:
    return surrogates.clipped(ratio, A, **(CLIP | clip))


def slope(loss) -> torch.Tensor:
    """Gradient of a summed loss by the current log-probabilities."""
    logprobs = new.clone().requires_grad_()
    loss(logprobs).sum().backward()
    return logprobs.grad


def active() -> torch.Tensor:
    low, high = surrogates.clip_sides(RATIO, A, **CLIP)
    return (low | high).double()


def gspo(logprobs: torch.Tensor, low: float, high: float) -> torch.Tensor:
    ratio = sequence_ratio(logprobs, old, SAMPLES, COUNT)[SAMPLES]
    return surrogates.clipped(ratio, A, clip_low=low, clip_high=high)


def gspo_token() -> torch.Tensor:
    ratio = straight_through_sequence_ratio(new, old, SAMPLES, COUNT)
    return reduced(surrogates.clipped(ratio, TOKEN_A, **CLIP), "seq-mean-token-mean")


def one_dual_clip(ratio: float, advantage: float) -> dict:
    arguments = (f64([ratio]), f64([advantage]))
    return {
        "ppo": surrogates.clipped(*arguments, **CLIP)[0],
        "dual_c3": surrogates.clipped(*arguments, dual_clip=3.0, **CLIP)[0],
    }


def sapo_factor(ratio: float) -> torch.Tensor:
    logprob = f64([ratio]).log().requires_grad_()
    surrogates.sapo(token_ratio(logprob, torch.zeros_like(logprob)), f64([1.0])).sum().backward()
    return -logprob.grad[0]


def kl_cov() -> tuple[torch.Tensor, torch.Tensor]:
    chosen = covariance.kl_cov_selection(covariance.covariances(A, new), share=0.2)
    return chosen, covariance.kl_cov(new, old, A, chosen)


def positions(chosen: torch.Tensor) -> list[list[int]]:
    return torch.nonzero(spread(chosen)).tolist()


def micro(rows: tuple[int, ...], losses: torch.Tensor) -> torch.Tensor:
    return losses[torch.isin(SAMPLES, torch.tensor(rows))]


def entropy_trace() -> list[list[float]]:
    controller, trace = AdaptiveEntropy(), []
    for value in (0.5, 0.3, 0.15, 0.1, 0.25, 0.1):
        used, controller = controller.used, controller.after(value)
        trace.append([value, used, controller.coefficient])
    return trace


def positive_nll() -> torch.Tensor:
    positive = torch.tensor([True, False, True, False])
    return reduced(-new, "positive-token-mean", positive=positive)


def first_token_slopes(estimate) -> torch.Tensor:
    return slope(lambda x: estimate(x, ref))[0]


CASES = {
    "ratio*mask": lambda: spread(RATIO),
    "ppo_clip.0.2.per_token*mask": lambda: spread(ppo()),
    "ppo_clip.0.2.token-mean": lambda: reduced(ppo()),
    "ppo_clip.0.2.seq-mean-token-mean": lambda: reduced(ppo(), "seq-mean-token-mean"),
    "ppo_clip.0.2.seq-mean-token-sum": lambda: reduced(ppo(), "seq-mean-token-sum"),
    "ppo_clip.0.2.seq-mean-token-sum-norm": lambda: reduced(ppo(), "seq-mean-token-sum-norm", constant=5),
    "ppo_clip.0.2/0.28.token-mean": lambda: reduced(ppo(clip_high=0.28)),
    "ppo_clip.0.2/0.28.seq-mean-token-mean": lambda: reduced(ppo(clip_high=0.28), "seq-mean-token-mean"),
    "ppo_clip.0.2.active_clip_positions": lambda: spread(active()),
    "ppo_clip.0.2.clipfrac_tokens": lambda: active().mean(),
    "reinforce.token-mean": lambda: reduced(surrogates.reinforce(new, A)),
    "reinforce.seq-mean-token-mean": lambda: reduced(surrogates.reinforce(new, A), "seq-mean-token-mean"),
    "dual_clip.r=5.0.A=-1.0": lambda: one_dual_clip(5, -1),
    "dual_clip.r=2.0.A=-1.0": lambda: one_dual_clip(2, -1),
    "dual_clip.r=0.5.A=-1.0": lambda: one_dual_clip(0.5, -1),
    "dual_clip.r=5.0.A=1.0": lambda: one_dual_clip(5, 1),
    "ppo_clip.0.2.dL_dlogp(per-token loss)": lambda: spread(slope(lambda x: ppo(token_ratio(x, old)))),
    "gspo.seq_ratio": lambda: sequence_ratio(new, old, SAMPLES, COUNT),
    "gspo.loss.per_seq.0.0003/0.0004": lambda: gspo(new, 3e-4, 4e-4)[STARTS],
    "gspo.loss.0.0003/0.0004": lambda: reduced(gspo(new, 3e-4, 4e-4), "seq-mean-token-mean"),
    "gspo.loss.per_seq.0.2/0.2": lambda: gspo(new, 0.2, 0.2)[STARTS],
    "gspo.loss.0.2/0.2": lambda: reduced(gspo(new, 0.2, 0.2), "seq-mean-token-mean"),
    "gspo.0.2.grad_per_token": lambda: spread(slope(lambda x: reduced(gspo(x, 0.2, 0.2), "seq-mean-token-mean"))),
    "gspo_token.0.2.seq-mean-token-mean": gspo_token,
    "cispo.hi0.2.token-mean": lambda: reduced(surrogates.cispo(new, RATIO, A, clip_high=0.2)),
    "cispo.hi0.2.coef_dL_dlogp*mask": lambda: spread(
        slope(lambda x: surrogates.cispo(x, token_ratio(x, old), A, clip_high=0.2))
    ),
    "cispo.TRL_abs_cap5.token-mean": lambda: reduced(surrogates.cispo(new, RATIO, A, clip_high=4.0)),
    "sapo.per_token*mask": lambda: spread(surrogates.sapo(RATIO, A)),
    "sapo.seq-mean-token-mean": lambda: reduced(surrogates.sapo(RATIO, A), "seq-mean-token-mean"),
    "sapo.grad_factor_at_r(1,1.2,2,0.5)tau1": lambda: [sapo_factor(r) for r in (1, 1.2, 2, 0.5)],
    "gmpo.0.4.per_seq": lambda: surrogates.geometric_mean(new, old, A, SAMPLES, COUNT)[STARTS],
    "gmpo.0.4.loss": lambda: reduced(surrogates.geometric_mean(new, old, A, SAMPLES, COUNT), "seq-mean-token-mean"),
    "dppo_tv.keep_mask": lambda: spread(surrogates.dppo_keep(new, old, A).double()),
    "dppo_tv.verl_surrogate.token-mean": lambda: reduced(
        surrogates.dppo(new, old, A, surrogates.dppo_keep(new, old, A))
    ),
    "cov.matrix*mask": lambda: spread(covariance.covariances(A, new)),
    "kl_cov.top_k_frac0.2.positions(row,col)": lambda: positions(kl_cov()[0]),
    "kl_cov.coef1.token-mean": lambda: reduced(kl_cov()[1]),
    "dro.beta0.1.token-mean": lambda: reduced(surrogates.dro(new, old, A)),
    "entropy.logits[2,1,0,-1]": lambda: entropy(LOGITS),
    "entropy.dH_dz": lambda: torch.func.grad(entropy)(LOGITS),
    "agg.micro_token_means": lambda: [micro(rows, ppo()).mean() for rows in ((0, 1), (2, 3))],
    "agg.RIGHT_token_mean": lambda: reduced(ppo()),
    "agg.micro_contributions_sum/Nglobal": lambda: [micro(rows, ppo()).sum() / 13 for rows in ((0, 1), (2, 3))],
    "agg.seq_mean.4_nonempty": lambda: reduced(ppo(), "seq-mean-token-mean"),
    "ratio1.ppo.token-mean": lambda: reduced(ppo(torch.ones_like(RATIO))),
    "ratio1.ppo.seq-mean-token-mean": lambda: reduced(ppo(torch.ones_like(RATIO)), "seq-mean-token-mean"),
    "ratio1.dL_dlogp.token-mean": lambda: spread(slope(lambda x: reduced(ppo(token_ratio(x, new))))),
    "ratio1.same_gradient_as_reinforce": lambda: torch.allclose(
        slope(lambda x: ppo(token_ratio(x, new))), slope(lambda x: surrogates.reinforce(x, A)), atol=1e-15
    ),
    "kl_loss.F1.k1.token-mean": lambda: reduced(kl.k1(new, ref)),
    "kl_loss.F1.k2.token-mean": lambda: reduced(kl.k2(new, ref)),
    "kl_loss.F1.k3.token-mean": lambda: reduced(kl.k3(new, ref)),
    "kl_loss.F1.k3.seq-mean-token-mean": lambda: reduced(kl.k3(new, ref), "seq-mean-token-mean"),
    "grpo_loss.F1.clip0.2+0.04*k3.token-mean": lambda: reduced(ppo() + 0.04 * kl.k3(new, ref)),
    "kl_grad_coef.F1 per token d/dlogpi: k1,k2,k3 at (0,0)": lambda: [
        first_token_slopes(estimate) for estimate in (kl.k1, kl.k2, kl.k3)
    ],
    "kl_identity: d/dlogpi of exp(l-sg l)*k3 equals x (= k2 gradient)": lambda: [
        slope(lambda x: kl.k3_corrected(x, ref, new))[0],
        (new - ref)[0],
    ],
    "k3_plus.value,grad at (0,0)": lambda: [kl.k3_k2(new, ref)[0], first_token_slopes(kl.k3_k2)],
    "all_masked.any_mode": lambda: (token_weights("token-mean", torch.tensor([0]))[SAMPLES[:0]] * new[:0]).sum(),
    "vapo.positive_nll(rows 0,2)": positive_nll,
    "vapo.total mu0.1 (ppo 0.2 token-mean)": lambda: reduced(ppo()) + 0.1 * positive_nll(),
    "adaptive_entropy.target0.2.delta0.005 [H,alpha used,coef after]": entropy_trace,
}
TRAPS = {
    "gspo.WRONG_seq_ratio_divide_by_padded_T": CASES["gspo.seq_ratio"],
    "agg.WRONG_mean_of_micro_token_means": CASES["agg.RIGHT_token_mean"],
    "agg.seq_mean.if_divided_by_5_incl_empty": lambda: (
        token_weights("seq-mean-token-mean", torch.cat([COUNTS, torch.tensor([0])]))[SAMPLES] * ppo()
    ).sum(),
}


@pytest.mark.parametrize("key", CASES)
def test_value_is_the_golden_one(key):
    assert same(GOLDEN[key], plain(CASES[key]()))


@pytest.mark.parametrize("key", TRAPS)
def test_known_fault_is_not_ours(key):
    assert not same(GOLDEN[key], plain(TRAPS[key]()))


def test_an_empty_row_does_not_change_the_sequence_mean():
    assert same(GOLDEN["agg.seq_mean.4_nonempty"], plain(TRAPS["agg.seq_mean.if_divided_by_5_incl_empty"]()))


def test_every_key_is_covered():
    assert set() == uncovered("loss", CASES, TRAPS)


def test_fixture_advantage_is_dr_grpo():
    assert golden("adv")["drgrpo"] == ADVANTAGE.tolist()
