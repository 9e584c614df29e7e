"""Golden GAE, critic, controllers and KL table: golden_gae.json, every key."""

import pytest
import torch

from posttrain.functional import controllers, critic, gae, kl
from tests.golden.fixtures import F2_MASK, F2_REWARDS, F2_SAMPLES, F2_TURNS, F2_VALUES, f64, golden, plain, same, spread
from tests.golden.fixtures import uncovered as missing

GOLDEN = golden("gae")
V_OLD, V_NEW, TARGETS = f64([0.5, 0.2, -0.3]), f64([0.9, 0.1, 0.4]), f64([1.0, 0.0, -0.1])
P_LOGITS, OLD_LOGITS = f64([0.3, -0.2, 0.9]), f64([0.1, 0.1, 0.6])
Q = f64([1.0, 0.0, -0.5]).log_softmax(0)
P, BEHAVIOUR = P_LOGITS.log_softmax(0), OLD_LOGITS.log_softmax(0)
KLS = (kl.k1(P, Q), kl.k2(P, Q), kl.k3(P, Q))
RAGEN_VALUES, RAGEN_REWARDS = torch.arange(1, 11).double() / 10, f64([0, 0, 0, 0, 1, 0, 0, 0, 0, 1])
RAGEN_SAMPLES, RAGEN_TURNS = torch.zeros(10, dtype=torch.int64), torch.tensor([0] * 5 + [1] * 5)


def advantage(**options) -> torch.Tensor:
    turns = {"turns": F2_TURNS} if any(name.startswith("turn_") for name in options) else {}
    return gae.advantages(F2_REWARDS, F2_VALUES, F2_SAMPLES, 1, **turns, **options)


def place(values: torch.Tensor) -> torch.Tensor:
    return spread(values, F2_MASK)


def both(gamma: float, lambda_: float) -> dict:
    name = f"gae.skip_obs.g{gamma}.l{lambda_}"
    return {
        f"{name}.adv": lambda: place(advantage(gamma=gamma, lambda_=lambda_)),
        f"{name}.returns": lambda: place(advantage(gamma=gamma, lambda_=lambda_) + F2_VALUES),
    }


def turned() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return gae.turn_level(F2_REWARDS, F2_VALUES, F2_SAMPLES, F2_TURNS, 1, gamma=0.99, lambda_=0.9)


def ragen() -> torch.Tensor:
    return gae.bi_level(RAGEN_REWARDS, RAGEN_VALUES, RAGEN_SAMPLES, RAGEN_TURNS, 1, lambda_=1.0)


def bi_level() -> torch.Tensor:
    return gae.bi_level(F2_REWARDS, F2_VALUES, F2_SAMPLES, F2_TURNS, 1, lambda_=0.95)


def adapted(measured: float) -> float:
    controller = controllers.AdaptiveKL(coefficient=0.2, target=6, horizon=10_000, unit="sequence-sum")
    return controller.after_measured(measured, 256).coefficient


def gradient(loss, weights: torch.Tensor) -> torch.Tensor:
    """Gradient by the policy's logits of the expected loss, the sampling ``weights`` held fixed."""
    logits = P_LOGITS.clone().requires_grad_()
    (weights * loss(logits.log_softmax(0))).sum().backward()
    return logits.grad


def exact_kl(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs.exp() * (logprobs - Q)).sum()


CASES = {
    **both(1.0, 0.95),
    **both(1.0, 0.0),
    **both(1.0, 1.0),
    **both(0.99, 0.95),
    "gae.noskip_zeroed.g1.l1.adv(equal to skip at l=1,g=1)": lambda: place(advantage(lambda_=1.0)),
    "gae.skip_obs.bootstrap_v0.7_at_truncation.g1.l0.95": lambda: place(advantage(bootstrap=f64([0.7]))),
    "gae.truncated_at_turn.g1.l0.95.adv": lambda: place(advantage(turn_lambda=0.0)),
    "gae.truncated_at_turn.returns": lambda: place(advantage(turn_lambda=0.0) + F2_VALUES),
    "gae.two_level_boundary.gturn0.95.lturn1.adv": lambda: place(
        advantage(lambda_=1.0, turn_gamma=0.95, turn_lambda=1.0)
    ),
    "turn_gae.g0.99.l0.9.A_per_turn": lambda: turned()[0][turned()[2]],
    "turn_gae.broadcast": lambda: place(turned()[0]),
    "turn_gae.value_targets(first token of each turn)": lambda: turned()[1][turned()[2]],
    "bilevel.ragen_example.adv(unwhitened)": ragen,
    "bilevel.ragen_example.returns": lambda: ragen() + RAGEN_VALUES,
    "bilevel.F2.g1.l0.95.gh0.95.adv": lambda: place(bi_level()),
    "bilevel.F2.returns": lambda: place(bi_level() + F2_VALUES),
    "value_clip.eps0.2.per_elem(0.5*max)": lambda: critic.value_loss(V_NEW, TARGETS, V_OLD, clip=0.2),
    "value_clip.mean": lambda: critic.value_loss(V_NEW, TARGETS, V_OLD, clip=0.2).mean(),
    "value_clip.clipfrac": lambda: critic.value_clip_active(V_NEW, TARGETS, V_OLD, clip=0.2).double().mean(),
    "explained_variance.example": lambda: critic.explained_variance(V_NEW, TARGETS),
    "kl_ctl.adaptive.v0.2.kl9.target6.h10000.n256": lambda: adapted(9),
    "kl_ctl.adaptive.v0.2.kl6.3": lambda: adapted(6.3),
    "kl_ctl.adaptive.v0.2.kl1": lambda: adapted(1),
    "kl.p,q": lambda: [P.exp(), Q.exp()],
    "kl.per_token.k1,k2,k3": lambda: list(KLS),
    "kl.exact_KL(p||q)": lambda: exact_kl(P),
    "kl.E[k1],E[k2],E[k3]": lambda: [(P.exp() * k).sum() for k in KLS],
    "kl.grad_z KL(p||q) (true reverse KL)": lambda: torch.func.grad(lambda z: exact_kl(z.log_softmax(0)))(P_LOGITS),
    "kl.grad E[k1 in loss] (sample fixed)": lambda: gradient(lambda x: kl.k1(x, Q), P.exp()),
    "kl.grad E[k2 in loss]": lambda: gradient(lambda x: kl.k2(x, Q), P.exp()),
    "kl.grad E[k3 in loss]": lambda: gradient(lambda x: kl.k3(x, Q), P.exp()),
    "kl.grad_z KL(q||p) = p-q": lambda: P.exp() - Q.exp(),
    "kl.E_old[rho*k3]": lambda: (BEHAVIOUR.exp() * kl.k3_corrected(P, Q, BEHAVIOUR)).sum(),
    "kl.grad E_old[rho*k3], rho differentiated": lambda: gradient(
        lambda x: kl.k3_corrected(x, Q, BEHAVIOUR), BEHAVIOUR.exp()
    ),
    "kl.grad E_old[sg(rho)*k3]": lambda: gradient(
        lambda x: (x - BEHAVIOUR).exp().detach() * kl.k3(x, Q), BEHAVIOUR.exp()
    ),
    "kl.grad E_old[k3] uncorrected": lambda: gradient(lambda x: kl.k3(x, Q), BEHAVIOUR.exp()),
    **{
        f"vapo.lambda_policy.alpha0.05.L{n}": lambda n=n: gae.length_adaptive_lambda(torch.tensor(n))
        for n in (20, 21, 50, 100, 1000, 8192)
    },
}
TRAPS = {
    "gae.noskip_zeroed.g1.l0.95.adv(TRAP)": lambda: place(advantage()),
    "vapo.lambda_policy.alpha0.05.L10": lambda: gae.length_adaptive_lambda(torch.tensor(10)),
    "kl.clamp_trap.k3_at_logdiff_30": lambda: kl.k3(f64(-30.0), f64(0.0)),
}


@pytest.mark.parametrize("key", CASES)
def test_value_is_the_golden_one(key):
    assert same(GOLDEN[key], plain(CASES[key]()))


@pytest.mark.parametrize("key", TRAPS)
def test_known_fault_is_not_ours(key):
    assert not same(GOLDEN[key], plain(TRAPS[key]()))


def test_wrong_reading_of_the_corrected_kl_is_the_opposite_gradient():
    assert same(GOLDEN["kl.grad_z KL(q||p) = p-q"], GOLDEN["kl.grad E_old[sg(rho)*k3]"])


def test_negative_lambda_becomes_zero():
    assert 0.0 == float(gae.length_adaptive_lambda(torch.tensor(10)))


def test_every_key_is_covered():
    assert set() == missing("gae", CASES, TRAPS)
