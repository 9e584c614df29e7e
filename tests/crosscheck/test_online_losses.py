"""Every loss TRL's GRPO trainer knows and posttrain has: same loss, same gradient, from rewards to weights.

Where TRL departs from the papers on purpose, posttrain is set to TRL's constant and the test says so; what no option
reaches is compared with the difference by formula.
"""

import pytest
import torch

from posttrain.presets.read import with_preset
from tests.crosscheck import material, ours, sampled
from tests.crosscheck.theirs import assert_same

EPSILON = {"epsilon": 1e-4}
"""TRL adds 1e-4 to the standard deviation, a hundred times posttrain's 1e-6: stated here, in every row below."""
NO_KL = {"kl_coefficient": 0.0}
GRPO = EPSILON | NO_KL
TOKEN_MEAN = {"reduction": "token-mean"}
CASES = {
    "grpo": ({"loss_type": "grpo"}, ("grpo", GRPO)),
    "bnpo": ({"loss_type": "bnpo"}, ("grpo", GRPO | TOKEN_MEAN)),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, ("dapo", EPSILON | {"overlong_buffer": 0})),
    "dr_grpo": ({"loss_type": "dr_grpo", "scale_rewards": "none"}, ("dr_grpo", {})),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ("gspo", EPSILON),
    ),
    "luspo": (
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ("gspo", EPSILON | {"reduction": "seq-mean-token-sum"}),
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.5}, ("cispo", EPSILON | {"clip_high": 0.5})),
    "sapo": ({"loss_type": "sapo"}, ("sapo", EPSILON)),
    "gmpo": ({"name": "GMPO", "epsilon": 0.1}, ("gmpo", EPSILON | {"clip": 0.1})),
    "two-sided clip": ({"loss_type": "grpo", "delta": 1.25}, ("grpo", GRPO | {"dual_clip": 1.25})),
    "entropy bonus": (
        {"loss_type": "bnpo", "entropy_coef": 0.05},
        ("grpo", GRPO | TOKEN_MEAN | {"entropy_coefficient": 0.05}),
    ),
}
WITH_KL = {
    "default, ratio times k3": ({"loss_type": "grpo"}, {"kl_estimator": "rho_k3"}),
    "ratio times k3 over tokens": ({"loss_type": "bnpo"}, TOKEN_MEAN | {"kl_estimator": "rho_k3"}),
    "k3": ({"loss_type": "grpo", "use_bias_correction_kl": False}, {"kl_estimator": "k3"}),
}
TOOL_MASKS = ((None, (1, 1, 0, 0, 1), None, (1, 0, 1, 1)), (None, None, (1, 1, 1, 0, 0, 0, 1, 1), None))


def mine(name, options, *, old=None, reference=None, **groups):
    plug = ours.algorithm(name, **options)
    return ours.evaluate(plug, material.online_groups(**groups), material.policy(), old=old, reference=reference)


@pytest.mark.parametrize("case", CASES)
def test_off_policy_loss_and_gradient(case):
    options, plug = CASES[case]
    assert_same(sampled.evaluate(old=material.old_policy(), **options), mine(*plug, old=material.old_policy()))


@pytest.mark.parametrize("case", CASES)
def test_on_policy_loss_and_gradient(case):
    options, plug = CASES[case]
    assert_same(sampled.evaluate(**options), mine(*plug))


@pytest.mark.parametrize("case", ["grpo", "dapo", "dr_grpo"])
def test_the_clip_is_really_active_in_what_is_compared(case):
    stats = mine(*CASES[case][1], old=material.old_policy()).stats
    assert min(stats["clip_share/low"], stats["clip_share/high"]) > 0


def test_the_weight_bound_of_cispo_is_really_active():
    assert mine(*CASES["cispo"][1], old=material.old_policy()).stats["weight_share/high"] > 0


@pytest.mark.parametrize("case", ["grpo", "bnpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo", "gmpo"])
def test_tokens_the_policy_did_not_sample(case):
    options, plug = CASES[case]
    theirs = sampled.evaluate(masks=TOOL_MASKS, old=material.old_policy(), **options)
    assert_same(theirs, mine(*plug, masks=TOOL_MASKS, old=material.old_policy()))


@pytest.mark.parametrize("case", WITH_KL)
def test_kl_to_the_reference_in_the_loss(case):
    options, extra = WITH_KL[case]
    theirs = sampled.evaluate(old=material.old_policy(), reference=material.reference(), beta=0.3, **options)
    plug = ("grpo", EPSILON | extra | {"kl_coefficient": 0.3})
    assert_same(theirs, mine(*plug, old=material.old_policy(), reference=material.reference()))


def test_answers_that_were_cut_off_can_be_masked():
    options, (name, plug) = CASES["dapo"]
    theirs = sampled.evaluate(mask_truncated_completions=True, old=material.old_policy(), **options)
    assert_same(theirs, mine(name, plug | {"overlong": "mask"}, old=material.old_policy()))


def test_default_cap_of_cispo_cuts_every_ratio_to_its_clip_high():
    """TRL's ``epsilon_high`` is the cap itself and defaults to epsilon = 0.2, so that by default no weight exceeds 0.2.

    Every off-policy ratio here is above it: TRL's default gradient is 0.2 times REINFORCE's.
    """
    theirs = sampled.evaluate(loss_type="cispo", old=material.old_policy())
    plain = mine("cispo", EPSILON)
    scaled = {name: 0.2 * gradient for name, gradient in plain.gradients.items()}
    assert_same(theirs, ours.Found(loss=0.2 * plain.loss, gradients=scaled, stats={}))


def halves(**options):
    """TRL's loss of one optimizer step whose generation batch was cut into two microbatches."""
    trainer = sampled.online(per_device_train_batch_size=4, gradient_accumulation_steps=2, **options)
    trainer.current_gradient_accumulation_steps = 2
    batch = sampled.anchored(trainer, sampled.scored(trainer), material.old_policy())
    parts = [{k: v[rows] if v.ndim else v for k, v in batch.items()} for rows in (slice(0, 4), slice(4, 8))]
    return [trainer._compute_loss(trainer.model, part).detach().double() for part in parts]


@pytest.mark.parametrize("case", ["grpo", "dapo", "dr_grpo", "cispo", "sapo"])
def test_two_accumulated_microbatches_are_one_batch(case):
    options, plug = CASES[case]
    parts = halves(**options)
    assert mine(*plug, old=material.old_policy()).loss == pytest.approx(float(sum(parts)), abs=1e-5)


def test_bnpo_is_a_mean_of_microbatch_means_where_posttrain_has_one_mean_over_tokens():
    """TRL's bnpo divides each microbatch by its own tokens: halves weigh the same, whatever they hold."""
    parts = halves(loss_type="bnpo")
    tokens = torch.tensor([sum(map(len, answers)) for answers in material.ANSWERS], dtype=torch.float64)
    means = torch.stack([2 * part for part in parts])
    whole = mine(*CASES["bnpo"][1], old=material.old_policy()).loss
    assert whole == pytest.approx(float((tokens * means).sum() / tokens.sum()), abs=1e-5)
    assert whole != pytest.approx(float(means.mean()), abs=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_preset_named_after_trl_is_what_its_trainer_does_by_default(beta):
    theirs = sampled.evaluate(old=material.old_policy(), reference=material.reference(), beta=beta)
    options = with_preset("grpo", {"preset": "trl-1.16", "kl_coefficient": beta})
    assert_same(theirs, mine("grpo", options, old=material.old_policy(), reference=material.reference()))
